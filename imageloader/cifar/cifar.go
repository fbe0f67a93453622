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

// bytesEach is the size of an image [3, 32, 32].
const bytesEach = 3 * 32 * 32

// Set is a list of images with their labels.
type Set struct {
	Images []byte  // N images [3, 32, 32]: all red pixels, then all green ones, then all blue ones
	Labels []int64 // N class numbers, from 0 to 9, or of CIFAR-100 from 0 to 99
	Coarse []int64 // N numbers of CIFAR-100's 20 superclasses; nil for CIFAR-10
}

// Read reads all training images or all test images of a folder with the files of one data set, in
// the binary version or in the version for Python. The files have the names of the authors'
// archives. Read runs no code of a file. It fails with [ErrFormat] if a file is not whole, or has
// a number of a class that does not exist. The error names the file.
func Read(folder string, train bool) (Set, error) {
	for _, c := range []struct {
		first string // a file that only this version has
		files []string
		read  func(path string) (Set, error)
	}{
		{"data_batch_1.bin", parts("data_batch_%d.bin", "test_batch.bin", train), func(path string) (Set, error) { return readBinary(path, 10) }},
		{"train.bin", parts("train.bin", "test.bin", train), func(path string) (Set, error) { return readBinary(path, 100) }},
		{"data_batch_1", parts("data_batch_%d", "test_batch", train), readPython},
		{"train", parts("train", "test", train), readPython},
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

// readBinary reads a file of the binary version. Its images have one label if there are 10
// classes. If there are 100, the number of the superclass comes before the label.
func readBinary(path string, classes int64) (Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %w", err)
	}
	labels := 1
	if classes == 100 {
		labels = 2
	}
	size := labels + bytesEach
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
	return s, s.check(path, classes)
}

// readPython reads a batch of the version for Python, which is a pickle of protocol 0 to 5.
func readPython(path string) (Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %w", err)
	}
	s, classes, err := batch(text)
	if err != nil {
		return Set{}, fmt.Errorf("cifar: %s: %w: %w", path, err, ErrFormat)
	}
	return s, s.check(path, classes)
}

// batch returns the batch in a pickle, and the number of classes of its data set.
func batch(text []byte) (s Set, classes int64, err error) {
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
	if len(pixels.shape) != 2 || pixels.shape[1] != bytesEach || pixels.dtype != "u1" {
		return Set{}, 0, errors.New(`"data" is not an array of bytes [N, 3072]`)
	}
	s.Images, classes = []byte(pixels.data), 10
	if pixels.columns {
		for i := range s.Images {
			s.Images[i] = pixels.data[i%bytesEach*pixels.shape[0]+i/bytesEach]
		}
	}
	names := []string{"labels"}
	if d.Get("labels") == nil {
		classes, names = 100, []string{"fine_labels", "coarse_labels"}
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
	return s, classes, nil
}

// check fails for a number of a class that does not exist.
func (s Set) check(path string, classes int64) error {
	for i, label := range s.Labels {
		if label < 0 || label >= classes || s.Coarse != nil && (s.Coarse[i] < 0 || s.Coarse[i] >= 20) {
			return fmt.Errorf("cifar: %s: image %d has a label that CIFAR-%d does not have: %w", path, i, classes, ErrFormat)
		}
	}
	return nil
}
