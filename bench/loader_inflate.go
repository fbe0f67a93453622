package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/inflate"
)

// benchLoaderInflate compares inflating a .tgz of photographs, the first time and with its index, with one zlib stream.
func benchLoaderInflate(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		archive := filepath.Join(folder, "photographs.tgz")
		if err := all.writeTgz(archive, c.images()); err != nil {
			return err
		}
		file, err := os.Open(archive)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		p, err := c.startPeer("loader.py", switches{})
		if err != nil {
			return err
		}
		defer p.close()
		index, _, err := inflateFirst(file, info.Size(), c.threads)
		if err != nil {
			return err
		}
		values, err := interleave(c.roundsOr(5),
			func() (float64, error) { _, rate, err := inflateFirst(file, info.Size(), c.threads); return rate, err },
			func() (float64, error) { return inflateAgain(file, index, c.threads) },
			func() (float64, error) { return inflateAgain(file, index, 1) },
			p.value("megabytes_per_second", "inflate", "archive", archive))
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%.0f MB inflated, %d bytes in the page cache, one gzip member with flush markers every 4 MiB, as pigz makes it; %d cores; peer: Python's zlib, %v",
			float64(index.Size())/1e6, info.Size(), runtime.NumCPU(), values[3])
		for i, kind := range []struct{ name, text string }{
			{"first-pass", "from the beginning, on all cores, making the index"}, {"with-index", "segments of the index, on all cores"},
			{"with-index-1-core", "segments of the index, one at a time"},
		} {
			emit(against("loader/inflate/"+kind.name, values[i].median(), "MB/s", "zlib, one stream", values[3].median(), higher,
				fmt.Sprintf("%s; ours %v; %s", kind.text, values[i], note)))
		}
		return nil
	})
}

func inflateFirst(file *os.File, size int64, workers int) (*inflate.Index, float64, error) {
	began := time.Now()
	r := inflate.NewReader(context.Background(), file, size, inflate.Options{Workers: workers})
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, 0, err
	}
	return r.Index(), float64(r.Index().Size()) / 1e6 / time.Since(began).Seconds(), nil
}

// inflateAgain inflates every segment, in the way of a loader: so many at a time, each into memory that is used again.
func inflateAgain(file *os.File, index *inflate.Index, workers int) (float64, error) {
	memory := arena.New(256 << 20)
	defer memory.Close()
	content := inflate.NewFile(file, index, memory)
	began := time.Now()
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			var buffer []byte
			for i := int(next.Add(1)) - 1; i < index.Segments() && errs[w] == nil; i = int(next.Add(1)) - 1 {
				to := index.Size()
				if i+1 < index.Segments() {
					to = index.Segment(i + 1)
				}
				_, errs[w] = content.Inflate(index.Segment(i), to, func(n int) []byte {
					if n > cap(buffer) {
						buffer = make([]byte, n)
					}
					return buffer[:n]
				})
			}
		}()
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(index.Size()) / 1e6 / time.Since(began).Seconds(), nil
}
