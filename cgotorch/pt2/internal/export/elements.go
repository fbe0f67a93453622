package export

import (
	"errors"
	"io"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
)

// ErrExpanded is the error for a tensor that repeats its elements very often.
var ErrExpanded = errors.New("a tensor with many more elements than the file has")

// mostExpanded is the most elements of a tensor that repeats its elements.
const mostExpanded = 1 << 20

// Elements returns the elements of a tensor, row-major. It fails with ErrExpanded for a tensor with
// more elements than the file holds, and more than mostExpanded.
func (p *Program) Elements(t *Stored) ([]byte, error) {
	if t.Entry == "" {
		return nil, p.File.Pickled(t)
	}
	size := ElementSize(t.DType)
	section, err := p.File.SectionFor(t.Entry, t.Span*size, t.Name)
	if err != nil {
		return nil, err
	}
	count := int64(1)
	for _, n := range t.Shape {
		count *= n
	}
	if count > max(t.Span, mostExpanded) {
		return nil, ErrExpanded
	}
	storage := make([]byte, t.Span*size)
	if _, err := section.ReadAt(storage, 0); err != nil && len(storage) > 0 {
		return nil, p.File.Bad("the entry %.200s: %w", t.Entry, err)
	}
	return torchzip.RowMajor(storage[min(t.Offset, t.Span)*size:], size, t.Shape, t.Strides), nil
}

// SectionFor returns an entry that holds at least this many bytes of a tensor.
func (a *Archive) SectionFor(entry string, bytes int64, tensor string) (*io.SectionReader, error) {
	section, err := a.Section(entry)
	if err == nil && section.Size() < bytes {
		err = a.Bad("the entry %.200s has %d bytes, and the tensor %.100q needs %d", entry, section.Size(), tensor, bytes)
	}
	return section, err
}

// Pickled returns the error for a tensor that is pickled.
func (a *Archive) Pickled(t *Stored) error {
	return a.Refuse("the tensor %.100q is pickled: it is a tensor subclass or a custom object", t.Name)
}
