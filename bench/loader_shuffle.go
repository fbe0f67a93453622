package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// benchLoaderShuffle measures how far from a uniform permutation the order of an epoch is, of an archive of which the shuffle buffer
// holds a fifth, packed class by class. Beside it stands the order that WebDataset's shuffle gives with a buffer of as
// many images as fit into the same memory, computed here by its algorithm.
func benchLoaderShuffle(c *config, emit func(row)) error {
	const side = 90 // pixels; 8 KB a file
	images, classes := c.or(1000, 40_000), c.or(20, 50)
	folder, err := os.MkdirTemp("", "bench-shuffle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	archive := filepath.Join(folder, "noise.tgz")
	each := 0
	if err := create(archive, func(w io.Writer) error { each, err = writeNoise(w, images, classes, side); return err }); err != nil {
		return err
	}
	buffer := images / 5 * each
	loader, err := imageloader.Open(archive, imageloader.Options{
		Train: true, BatchSize: 256, ShuffleBuffer: buffer, NoIndexFile: true, Transform: decode.RandomCrop{Height: 1, Width: 1},
	})
	if err != nil {
		return err
	}
	defer loader.Close()
	var order []int
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		for _, name := range batch.Names {
			var class, number int
			if _, err := fmt.Sscanf(name, "%d/%d.png", &class, &number); err != nil {
				return err
			}
			order = append(order, number)
		}
		batch.Release()
	}
	buffered := bufferShuffle(images, buffer/each)
	uniform := rand.New(rand.NewPCG(1, 1)).Perm(images)
	note := fmt.Sprintf("%d files of %d bytes, %d classes, one behind the other, in a .tgz; shuffle buffer of %d MB, a fifth; peer: a buffer of %d files, each drawn from it evenly; as a share of what a uniform permutation gives",
		images, each, classes, buffer/1_000_000, buffer/each)
	for _, m := range []struct {
		name, text string
		measure    func([]int) float64
	}{
		{"displacement", "mean distance of a file's place from its place in the archive", displacement},
		{"neighbours", "mean distance in the archive of files that follow one another", neighbours},
		{"classes", "mean number of classes in 256 files that follow one another", func(order []int) float64 { return classesIn(order, 256, images/classes) }},
	} {
		full := m.measure(uniform)
		emit(against("loader/shuffle/"+m.name, m.measure(order)/full, "of a uniform permutation", "WebDataset's buffer", m.measure(buffered)/full, higher, m.text+"; "+note))
	}
	return nil
}

// writeNoise writes an archive of images of noise, class by class, and returns the size of a file.
func writeNoise(to io.Writer, images, classes, side int) (int, error) {
	z, err := newGzipWriter(to)
	if err != nil {
		return 0, err
	}
	w := tar.NewWriter(z)
	random := rand.New(rand.NewPCG(2, 2))
	encoder := png.Encoder{CompressionLevel: png.NoCompression}
	size := 0
	for i := range images {
		img := image.NewGray(image.Rect(0, 0, side, side))
		for j := range img.Pix {
			img.Pix[j] = byte(random.Uint32())
		}
		var body bytes.Buffer
		if err := encoder.Encode(&body, img); err != nil {
			return 0, err
		}
		size = body.Len()
		header := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(size), Name: fmt.Sprintf("%04d/%06d.png", i*classes/images, i)}
		if err := w.WriteHeader(header); err != nil {
			return 0, err
		}
		if _, err := w.Write(body.Bytes()); err != nil {
			return 0, err
		}
	}
	return size, errors.Join(w.Close(), z.Close())
}

// bufferShuffle returns the order of n files behind a buffer: it is filled first; then each file that comes takes the place of a
// random one.
func bufferShuffle(n, size int) []int {
	random := rand.New(rand.NewPCG(3, 3))
	var buffer, order []int
	for i := range n {
		if len(buffer) < size {
			buffer = append(buffer, i)
			continue
		}
		j := random.IntN(size)
		order = append(order, buffer[j])
		buffer[j] = i
	}
	random.Shuffle(len(buffer), func(i, j int) { buffer[i], buffer[j] = buffer[j], buffer[i] })
	return append(order, buffer...)
}

func displacement(order []int) float64 {
	sum := 0
	for place, n := range order {
		sum += max(n-place, place-n)
	}
	return float64(sum) / float64(len(order))
}

func neighbours(order []int) float64 {
	sum := 0
	for i, n := range order[1:] {
		sum += max(n-order[i], order[i]-n)
	}
	return float64(sum) / float64(len(order)-1)
}

// classesIn counts the classes of each run of so many files, of which each class has perClass one behind the other.
func classesIn(order []int, run, perClass int) float64 {
	sum, runs := 0, 0
	for ; len(order) >= run; order = order[run:] {
		seen := map[int]bool{}
		for _, n := range order[:run] {
			seen[n/perClass] = true
		}
		sum, runs = sum+len(seen), runs+1
	}
	return float64(sum) / float64(runs)
}
