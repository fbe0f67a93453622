package safetensors

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// Tensor is a tensor that [Write] writes.
type Tensor struct {
	Name  string
	DType string  // "F32", "BF16", "I64", "BOOL", …
	Shape []int64 // empty for a scalar
	Data  []byte  // elements, row-major, each with its low byte first

	// If Read is not nil, Write gets the elements from Read and does not use Data. Write calls Read
	// only when it writes this tensor, so the tensors need not be in memory at the same time. Write
	// uses the result before it calls the Read of the next tensor.
	Read func() ([]byte, error)
}

// Write writes a file. Tensors with wider elements come first, for alignment. Tensors with
// equally wide elements keep their order. Write checks the tensors before it writes anything. It
// fails if a name is used twice, a dtype is unknown, or the length of Data does not fit the
// shape.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	ordered, header, err := layout(tensors, metadata)
	if err == nil {
		err = write(w, ordered, header)
	}
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

// layout checks the tensors, puts them in the order of the file, and makes the header.
func layout(tensors []Tensor, metadata map[string]string) ([]Tensor, []byte, error) {
	ordered := slices.Clone(tensors)
	slices.SortStableFunc(ordered, func(a, b Tensor) int { return int(bitsOf[b.DType]) - int(bitsOf[a.DType]) })
	infos := make([]Info, len(ordered))
	seen := make(map[string]bool, len(ordered))
	var end int64
	for i, t := range ordered {
		size, err := byteSize(t.DType, t.Shape)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("tensor %s: %w", t.Name, err)
		case t.Name == metadataKey || !utf8.ValidString(t.Name):
			return nil, nil, fmt.Errorf("no tensor can have the name %q", t.Name)
		case seen[t.Name]:
			return nil, nil, fmt.Errorf("tensor %s is there twice", t.Name)
		case t.Read == nil && int64(len(t.Data)) != size:
			return nil, nil, t.wrongSize(t.Data, size)
		}
		seen[t.Name] = true
		infos[i] = Info{t.Name, t.DType, t.Shape, size, end}
		if end += size; end < 0 {
			return nil, nil, fmt.Errorf("tensor %s: no file is that large", t.Name)
		}
	}
	header, err := encodeHeader(infos, metadata)
	return ordered, header, err
}

func (t *Tensor) wrongSize(data []byte, want int64) error {
	return fmt.Errorf("tensor %s: %s of shape %v has %d bytes, and %d are given", t.Name, t.DType, t.Shape, want, len(data))
}

func write(w io.Writer, tensors []Tensor, header []byte) error {
	b := bufio.NewWriterSize(w, 1<<20)
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(len(header)))
	b.Write(prefix[:]) // b keeps the first error; Flush returns it
	b.Write(header)
	for i := range tensors {
		t := &tensors[i]
		data := t.Data
		if t.Read != nil {
			var err error
			if data, err = t.Read(); err != nil {
				return fmt.Errorf("tensor %s: %w", t.Name, err)
			}
			if want, _ := byteSize(t.DType, t.Shape); int64(len(data)) != want {
				return t.wrongSize(data, want)
			}
		}
		if _, err := b.Write(data); err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	return b.Flush()
}
