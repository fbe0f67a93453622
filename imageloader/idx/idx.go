package idx

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrFormat is the error of a file that is not a whole idx file.
var ErrFormat = errors.New("not a whole idx file")

// maxBytes is the largest size of an array, in bytes. Read refuses larger ones.
const maxBytes = 2 << 30

// element is the type of an array's elements.
type element struct {
	name string
	size int64
}

// elements are the types of the format, by their numbers.
func elements() map[byte]element {
	return map[byte]element{0x08: {"uint8", 1}, 0x09: {"int8", 1}, 0x0B: {"int16", 2}, 0x0C: {"int32", 4}, 0x0D: {"float32", 4}, 0x0E: {"float64", 8}}
}

// Array is the content of an idx file.
type Array struct {
	Type  string // "uint8", "int8", "int16", "int32", "float32" or "float64"
	Shape []int
	Data  []byte // the elements as they are in the file, row-major, with their high byte first
}

// Read reads an idx file, which may be compressed by gzip. It fails with [ErrFormat] for any other
// file, and for a file that is cut short or goes on behind its elements. The error names the file.
func Read(path string) (Array, error) {
	f, err := os.Open(path)
	if err != nil {
		return Array{}, fmt.Errorf("idx: %w", err)
	}
	defer f.Close()
	a, err := decode(f)
	if err != nil {
		return Array{}, fmt.Errorf("idx: %s: %w", path, err)
	}
	return a, nil
}

// decode is [Read] for a reader. Its errors name no file.
func decode(r io.Reader) (Array, error) {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return Array{}, fmt.Errorf("%w: %w", err, ErrFormat)
		}
		defer z.Close()
		b = bufio.NewReader(z)
	}
	var head [4]byte
	if _, err := io.ReadFull(b, head[:]); err != nil {
		return Array{}, fmt.Errorf("the header: %w: %w", err, ErrFormat)
	}
	of, ok := elements()[head[2]]
	a, size := Array{Type: of.name}, of.size
	if head[0] != 0 || head[1] != 0 || !ok || head[3] == 0 {
		return Array{}, fmt.Errorf("it begins with % x: %w", head, ErrFormat)
	}
	for range head[3] {
		var n uint32
		if err := binary.Read(b, binary.BigEndian, &n); err != nil {
			return Array{}, fmt.Errorf("the sizes: %w: %w", err, ErrFormat)
		}
		a.Shape = append(a.Shape, int(n))
		if n > 0 && size > maxBytes/int64(n) {
			return Array{}, fmt.Errorf("an array of %v and more dimensions has more than %d bytes: %w", a.Shape, int64(maxBytes), ErrFormat)
		}
		size *= int64(n)
	}
	data, err := io.ReadAll(io.LimitReader(b, size+1)) // memory grows with the data, and not with what the header says
	switch {
	case err != nil:
		return Array{}, fmt.Errorf("%w: %w", err, ErrFormat)
	case int64(len(data)) != size:
		return Array{}, fmt.Errorf("the elements of %v: there are %d bytes, or more, and not %d: %w", a.Shape, len(data), size, ErrFormat)
	}
	a.Data = data
	return a, nil
}

// Set is a part of MNIST, or of a data set with the same files.
type Set struct {
	Images        []byte // N*Height*Width gray pixels, row-major
	Labels        []byte // N class numbers
	N             int
	Height, Width int
}

// ReadMNIST reads the training images or the test images of a folder, with their labels. The files
// have the names that they have in MNIST, FashionMNIST and KMNIST, with or without ".gz". It fails
// as [Read] does, and with [ErrFormat] if images and labels do not fit.
func ReadMNIST(folder string, train bool) (Set, error) {
	part := "t10k"
	if train {
		part = "train"
	}
	images, path, err := find(folder, part+"-images-idx3-ubyte")
	if err != nil {
		return Set{}, err
	}
	labels, labelPath, err := find(folder, part+"-labels-idx1-ubyte")
	if err != nil {
		return Set{}, err
	}
	if images.Type != "uint8" || len(images.Shape) != 3 {
		return Set{}, fmt.Errorf("idx: %s: an array %v, want images of bytes: %w", path, images.Shape, ErrFormat)
	}
	if labels.Type != "uint8" || len(labels.Shape) != 1 || labels.Shape[0] != images.Shape[0] {
		return Set{}, fmt.Errorf("idx: %s: an array %v, want %d labels of bytes: %w", labelPath, labels.Shape, images.Shape[0], ErrFormat)
	}
	return Set{images.Data, labels.Data, images.Shape[0], images.Shape[1], images.Shape[2]}, nil
}

// find reads a file of a folder that may end in ".gz".
func find(folder, name string) (a Array, path string, err error) {
	path = filepath.Join(folder, name)
	if _, missing := os.Stat(path); missing != nil {
		if _, missing := os.Stat(path + ".gz"); missing == nil {
			path += ".gz"
		}
	}
	a, err = Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; give the folder of MNIST's four files", err)
	}
	return a, path, err
}
