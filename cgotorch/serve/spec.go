package serve

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Spec describes an input or an output of the served function, for one entry of a batch.
type Spec struct {
	Name  string
	DType cgotorch.DType
	// Shape is without the first dimension, which is that of the batch. A size of -1 is the length of
	// the request. Entries are padded with zeros to one of [Options.Lengths].
	Shape []int64
	// Least and Most bound the elements of an input of uint8 or signed integers, such as token ids. A
	// request with another element is refused. Without bounds, a wrong index of an embedding loses the
	// GPU. Both 0 means no bound. Padding is 0 in any case.
	Least, Most int64
	// Decoder, of an input, decodes images. A request may then have [Array.Files]. DType and Shape
	// are those of the decoded pixels, and may be left out. The Batcher does not close the Decoder.
	Decoder Decoder
}

// Decoder decodes images on threads of its own. The Pool of package imageloader/decode is one. Its
// methods are called from several goroutines.
type Decoder interface {
	Workers() int                                // number of threads
	Size() (height, width, channels int)         // of the decoded pixels
	DecodeFiles(files [][]byte, to []byte) error // fails with the first file that cannot be decoded
}

// complete returns the Spec of an input with dtype and shape.
func (s Spec) complete() (Spec, error) {
	s.Shape = slices.Clone(s.Shape)
	if s.Decoder != nil {
		h, w, c := s.Decoder.Size()
		pixels := []int64{int64(h), int64(w), int64(c)}
		if s.DType == 0 && len(s.Shape) == 0 {
			s.DType, s.Shape = cgotorch.Uint8, pixels
		}
		if s.DType != cgotorch.Uint8 || !slices.Equal(s.Shape, pixels) {
			return s, fmt.Errorf("is %v of shape %v, and its Decoder gives uint8 of shape %v; leave DType and Shape out", s.DType, s.Shape, pixels)
		}
	}
	if s.DType.Size() == 0 || slices.ContainsFunc(s.Shape, func(d int64) bool { return d < 1 && d != -1 }) {
		return s, fmt.Errorf("is %v of shape %v; want a dtype, and sizes above 0 or -1", s.DType, s.Shape)
	}
	integers := []cgotorch.DType{cgotorch.Uint8, cgotorch.Int8, cgotorch.Int16, cgotorch.Int32, cgotorch.Int64}
	if s.bounded() && (s.Least > s.Most || s.Decoder != nil || !slices.Contains(integers, s.DType)) {
		return s, fmt.Errorf("is %v with Least %d and Most %d; want Least at most Most, and uint8 or signed integers without a Decoder", s.DType, s.Least, s.Most)
	}
	return s, nil
}

// cloned returns Specs with shapes of their own.
func cloned(specs []Spec) []Spec {
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Shape = slices.Clone(specs[i].Shape)
	}
	return specs
}

func (s Spec) bounded() bool { return s.Least != 0 || s.Most != 0 }

func (s Spec) variable() bool { return slices.Contains(s.Shape, -1) }

// at returns the shape of an entry that is padded to a length.
func (s Spec) at(length int64) []int64 {
	shape := slices.Clone(s.Shape)
	for i, d := range shape {
		if d < 0 {
			shape[i] = length
		}
	}
	return shape
}

// bytes returns the bytes of an entry that is padded to a length.
func (s Spec) bytes(length int64) int { return s.DType.Size() * int(product(s.at(length))) }

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d > 0 && n > math.MaxInt64/64/d {
			return math.MaxInt64 / 64 // no Array is as large
		}
		n *= d
	}
	return n
}

// entries returns how many entries an Array has, and the largest of its variable dimensions. It
// fails if the Array does not fit.
func (s Spec) entries(a Array) (n int, length int64, err error) {
	if a.Files != nil {
		if s.Decoder == nil || len(a.Files) == 0 || a.Data != nil {
			return 0, 0, s.refuse("has %d encoded files; it takes %v of shape %s", len(a.Files), s.DType, s.shape())
		}
		return len(a.Files), 0, nil
	}
	fits := len(a.Shape) == len(s.Shape)+1 && a.Shape[0] >= 1
	for i := 0; fits && i < len(s.Shape); i++ {
		got, want := a.Shape[i+1], s.Shape[i]
		fits = got == want || want < 0 && got >= 1
		if want < 0 {
			length = max(length, got)
		}
	}
	switch {
	case a.DType != s.DType:
		return 0, 0, s.refuse("is %v, want %v", a.DType, s.DType)
	case !fits:
		return 0, 0, s.refuse("has the shape %v, want %s with n above 0", a.Shape, s.shape())
	case a.Shape[0] > int64(len(a.Data)) || product(a.Shape) != int64(len(a.Data)/s.DType.Size()) || len(a.Data)%s.DType.Size() != 0:
		return 0, 0, s.refuse("has %d bytes, want %d for each of %d entries", len(a.Data), s.DType.Size()*int(product(a.Shape[1:])), a.Shape[0])
	}
	return int(a.Shape[0]), length, s.check(a.Data)
}

// checkSamples fails unless the samples are entries of the inputs.
func checkSamples(inputs []Spec, samples []Array) error {
	if len(samples) != len(inputs) {
		return fmt.Errorf("there are %d, want one Array for each of %d inputs", len(samples), len(inputs))
	}
	for k, in := range inputs {
		n, _, err := in.entries(samples[k])
		switch {
		case samples[k].Files != nil:
			return fmt.Errorf("input %q has encoded files; give decoded pixels", in.Name)
		case err != nil:
			return err
		case n < 2 || n != int(samples[0].Shape[0]):
			return fmt.Errorf("input %q has %d entries, and input %q %v; give the same number for each, and two or more", in.Name, n, inputs[0].Name, samples[0].Shape)
		}
	}
	return nil
}

// check fails for elements that the function must not see. These are bytes of a bool other than 0
// and 1, which are undefined in C++, and integers out of bounds.
func (s Spec) check(data []byte) error {
	if s.DType == cgotorch.Bool && !bools(data) {
		return s.refuse("is bool and has a byte that is neither 0 nor 1")
	}
	if !s.bounded() {
		return nil
	}
	for size := s.DType.Size(); len(data) > 0; data = data[size:] {
		if v := integer(data, s.DType); v < s.Least || v > s.Most {
			return s.refuse("has the element %d, want %d to %d", v, s.Least, s.Most)
		}
	}
	return nil
}

// bools reports whether each byte is 0 or 1.
func bools(data []byte) bool {
	all := uint64(0)
	for ; len(data) >= 8; data = data[8:] {
		all |= binary.NativeEndian.Uint64(data)
	}
	for _, b := range data {
		all |= uint64(b)
	}
	return all&^0x0101010101010101 == 0
}

// integer returns the first element, of uint8 or a signed integer.
func integer(data []byte, dtype cgotorch.DType) int64 {
	switch dtype {
	case cgotorch.Int64:
		return int64(binary.NativeEndian.Uint64(data))
	case cgotorch.Int32:
		return int64(int32(binary.NativeEndian.Uint32(data)))
	case cgotorch.Int16:
		return int64(int16(binary.NativeEndian.Uint16(data)))
	case cgotorch.Int8:
		return int64(int8(data[0]))
	}
	return int64(data[0])
}

// shape returns the shape with n for the number of entries, such as [n 3 224 224].
func (s Spec) shape() string {
	text := "[n"
	for _, d := range s.Shape {
		text += fmt.Sprint(" ", d)
	}
	return text + "]"
}

func (s Spec) refuse(format string, args ...any) error {
	return fmt.Errorf("serve: input %q %s: %w", s.Name, fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
}
