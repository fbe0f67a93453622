package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"sync"
)

// photographs are files from which archives of any length are made.
type photographs []photograph

type photograph struct {
	name string
	data []byte
}

// readPhotographs reads all files of the .tgz at `from`.
func readPhotographs(from string) (all photographs, err error) {
	file, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	compressed, err := gzip.NewReader(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	for r := tar.NewReader(compressed); ; {
		header, err := r.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		all = append(all, photograph{header.Name, data})
	}
}

// classes returns the sorted names of the folders in which the photographs lie.
func (all photographs) classes() []string {
	names := map[string]bool{}
	for _, p := range all {
		names[path.Base(path.Dir(p.name))] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// writeTar writes a .tar with the given number of images to a file. The photographs repeat. Each
// repetition has new file names in the same folders.
func (all photographs) writeTar(to string, images int) error {
	return create(to, func(w io.Writer) error { return all.write(w, images) })
}

// writeTgz is like writeTar, but compresses with gzip.
func (all photographs) writeTgz(to string, images int) error {
	return create(to, func(w io.Writer) error {
		from, pipe := io.Pipe()
		defer from.Close()
		go func() { pipe.CloseWithError(all.write(pipe, images)) }()
		return compress(w, from)
	})
}

func (all photographs) write(to io.Writer, images int) error {
	w := tar.NewWriter(to)
	for i := range images {
		p := all[i%len(all)]
		name := fmt.Sprintf("%03d-%s", i/len(all), path.Base(p.name))
		header := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(p.data)), Name: path.Join(path.Dir(p.name), name)}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(p.data); err != nil {
			return err
		}
	}
	return w.Close()
}

func create(path string, write func(io.Writer) error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffered := bufio.NewWriterSize(file, 1<<20)
	return errors.Join(write(buffered), buffered.Flush())
}

const gzipPiece = 4 << 20 // bytes

// compress writes what it reads as one gzip member, with all cores, as pigz does. The pieces are
// compressed independently. Each ends with an empty block.
//
// The level is 6, which is the default of gzip. Level 1 of compress/gzip stores most of a JPEG file
// without compression, and so does level 6 of klauspost/pgzip. Such archives inflate three to five
// times as fast as those of gzip.
func compress(to io.Writer, from io.Reader) error {
	sum, length := crc32.NewIEEE(), 0
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255} // method deflate, no name, no time, unknown system
	for ended := false; !ended; {
		if _, err := to.Write(out); err != nil {
			return err
		}
		pieces := make([]bytes.Buffer, runtime.NumCPU())
		var all sync.WaitGroup
		for i := range pieces {
			piece := make([]byte, gzipPiece)
			n, err := io.ReadFull(from, piece)
			if ended = err == io.EOF || err == io.ErrUnexpectedEOF; err != nil && !ended {
				return err
			}
			sum.Write(piece[:n])
			length += n
			all.Add(1)
			go func() {
				defer all.Done()
				w, _ := flate.NewWriter(&pieces[i], 6) // NewWriter fails only for a wrong level
				w.Write(piece[:n])
				w.Flush()
			}()
			if ended {
				break
			}
		}
		all.Wait()
		out = out[:0]
		for i := range pieces {
			out = append(out, pieces[i].Bytes()...)
		}
	}
	out = append(out, 1, 0, 0, 0xff, 0xff) // the last block, which is empty
	out = binary.LittleEndian.AppendUint32(out, sum.Sum32())
	_, err := to.Write(binary.LittleEndian.AppendUint32(out, uint32(length)))
	return err
}
