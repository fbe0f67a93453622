package cifar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/pickle"
)

// ErrFormat is the error of a file that is not a whole file of CIFAR.
var ErrFormat = errors.New("not a whole file of CIFAR")

// Height, Width and Pixels are the size of an image. Pixels counts all three channels.
const (
	Height = 32
	Width  = 32
	Pixels = 3 * Height * Width
)

// Set is a list of images with their labels.
type Set struct {
	Images []byte  // N images [3, 32, 32]: all red pixels, then all green ones, then all blue ones
	Labels []int64 // N class numbers, from 0 to 9, or of CIFAR-100 from 0 to 99
	Coarse []int64 // N numbers of CIFAR-100's 20 superclasses; nil for CIFAR-10
}

// Len returns the number of images.
func (s Set) Len() int { return len(s.Labels) }

// Kind is a data set.
type Kind int

// These are the kinds of data sets.
const (
	CIFAR10  Kind = 10
	CIFAR100 Kind = 100
)

// Read reads all training images or all test images of a folder with the files of one data set. The
// files have the names of the authors' archives. It fails with [ErrFormat] if a file is not whole.
// The error names the file.
func Read(folder string, train bool) (Set, error) {
	for _, c := range []struct {
		first string // a file that only this version has
		files []string
		read  func(path string) (Set, error)
	}{
		{"data_batch_1.bin", parts("data_batch_%d.bin", "test_batch.bin", train), func(path string) (Set, error) { return ReadBinary(path, CIFAR10) }},
		{"train.bin", parts("train.bin", "test.bin", train), func(path string) (Set, error) { return ReadBinary(path, CIFAR100) }},
		{"data_batch_1", parts("data_batch_%d", "test_batch", train), ReadPython},
		{"train", parts("train", "test", train), ReadPython},
	} {
		if info, err := os.Stat(filepath.Join(folder, c.first)); err != nil || info.IsDir() {
			continue
		}
		var all Set
		for _, name := range c.files {
			s, err := c.read(filepath.Join(folder, name))
			if err != nil {
				return Set{}, err
			}
			all.Images, all.Labels, all.Coarse = append(all.Images, s.Images...), append(all.Labels, s.Labels...), append(all.Coarse, s.Coarse...)
		}
		return all, nil
	}
	return Set{}, fmt.Errorf("cifar: %s: no data_batch_1.bin, train.bin, data_batch_1 or train: %w", folder, fs.ErrNotExist)
}

// parts returns the names of the files of one part of a data set.
func parts(train, test string, training bool) []string {
	switch {
	case !training:
		return []string{test}
	case !strings.Contains(train, "%d"):
		return []string{train}
	}
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf(train, i+1))
	}
	return names
}

// ReadBinary reads a file of the binary version. Its images have one label for CIFAR-10, and for
// CIFAR-100 the number of the superclass before the label. It fails with [ErrFormat] for a file
// with another size, or with a number of a class that does not exist. The error names the file.
func ReadBinary(path string, kind Kind) (Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %w", err)
	}
	labels := 1
	if kind == CIFAR100 {
		labels = 2
	}
	size := labels + Pixels
	if len(text) == 0 || len(text)%size != 0 {
		return Set{}, fmt.Errorf("cifar: %s: %d bytes, want a multiple of %d: %w", path, len(text), size, ErrFormat)
	}
	var s Set
	for record := range slices.Chunk(text, size) {
		s.Labels = append(s.Labels, int64(record[labels-1]))
		if labels == 2 {
			s.Coarse = append(s.Coarse, int64(record[0]))
		}
		s.Images = append(s.Images, record[labels:]...)
	}
	return s, s.check(path, kind)
}

// ReadPython reads a batch of the version for Python, which is a pickle of protocol 0 to 5. It runs
// no code of the pickle. It fails with [ErrFormat] for a pickle that is not a batch. The error
// names the file.
func ReadPython(path string) (Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %w", err)
	}
	s, kind, err := batch(text)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %s: %w: %w", path, err, ErrFormat)
	}
	return s, s.check(path, kind)
}

// batch returns the batch in a pickle.
func batch(text []byte) (s Set, kind Kind, err error) {
	value, _, err := pickle.Read(text, pickle.Builder{})
	if err != nil {
		return Set{}, 0, err
	}
	d, ok := value.(*pickle.Dict)
	if !ok {
		return Set{}, 0, fmt.Errorf("it holds a %T, want a dict", value)
	}
	pixels, err := arrayOf(d.Get("data"))
	if err != nil {
		return Set{}, 0, fmt.Errorf(`"data": %w`, err)
	}
	if len(pixels.shape) != 2 || pixels.shape[1] != Pixels || pixels.dtype != "u1" {
		return Set{}, 0, errors.New(`"data" is not an array of bytes [N, 3072]`)
	}
	s.Images, kind = []byte(pixels.data), CIFAR10
	if pixels.columns {
		for i := range s.Images {
			s.Images[i] = pixels.data[i%Pixels*pixels.shape[0]+i/Pixels]
		}
	}
	names := []string{"labels"}
	if d.Get("labels") == nil {
		kind, names = CIFAR100, []string{"fine_labels", "coarse_labels"}
	}
	for i, into := range []*[]int64{&s.Labels, &s.Coarse}[:len(names)] {
		numbers, err := wholeNumbers(d.Get(names[i]))
		if err == nil && len(numbers) != pixels.shape[0] {
			err = fmt.Errorf("it has %d", len(numbers))
		}
		if err != nil {
			return Set{}, 0, fmt.Errorf("%q is not a list of %d numbers: %w", names[i], pixels.shape[0], err)
		}
		*into = numbers
	}
	return s, kind, nil
}

// check fails for a number of a class that does not exist.
func (s Set) check(path string, kind Kind) error {
	for i, label := range s.Labels {
		if label < 0 || label >= int64(kind) || s.Coarse != nil && (s.Coarse[i] < 0 || s.Coarse[i] >= 20) {
			return fmt.Errorf("cifar: %s: image %d has a label that CIFAR-%d does not have: %w", path, i, kind, ErrFormat)
		}
	}
	return nil
}
