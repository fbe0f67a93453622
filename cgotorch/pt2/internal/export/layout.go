package export

import (
	"fmt"
	"path"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Layout is the place of a tensor in a storage, in elements.
type Layout struct {
	DType          cgotorch.DType
	Shape, Strides []int64
	Offset         int64
	Span           int64 // the elements from the first one of the storage to the last one of the tensor
	Dense          bool  // the tensor is the whole storage in some order of dimensions
}

// layoutOf reads the layout of a weight. It fails for numbers that cannot be.
func layoutOf(m *tensorMeta) (Layout, error) {
	dtype, ok := dtypes[m.DType]
	if !ok || m.Layout != strided || len(m.Sizes) != len(m.Strides) {
		return Layout{}, fmt.Errorf("its dtype number is %d, its layout number %d, with %d sizes and %d strides", m.DType, m.Layout, len(m.Sizes), len(m.Strides))
	}
	l := Layout{DType: dtype}
	for i := range m.Sizes {
		if m.Sizes[i].Int == nil || m.Strides[i].Int == nil {
			return Layout{}, fmt.Errorf("a size or stride is no number")
		}
		l.Shape = append(l.Shape, *m.Sizes[i].Int)
		l.Strides = append(l.Strides, *m.Strides[i].Int)
	}
	if m.Offset.Int != nil {
		l.Offset = *m.Offset.Int
	}
	last, count, ok := torchzip.Reach(l.Shape, l.Strides, l.Offset)
	if !ok {
		return Layout{}, fmt.Errorf("its shape is %v, its strides %v, its offset %d", l.Shape, l.Strides, l.Offset)
	}
	if count > 0 {
		l.Span = last + 1
	}
	l.Dense = l.Offset == 0 && l.Span == count
	return l, nil
}

// Equal reports whether two tensors have the same place in their storages.
func (l *Layout) Equal(m *Layout) bool {
	return l.DType == m.DType && l.Offset == m.Offset && slices.Equal(l.Shape, m.Shape) && slices.Equal(l.Strides, m.Strides)
}

// Stored is a tensor of the archive, and the storage that it shares with others.
type Stored struct {
	graph.Variable
	Entry string // "" for a pickled one
	Layout
}

// stored reads the table of a folder of the archive, such as data/weights.
func (a *Archive) stored(folder, model string) (map[string]*Stored, error) {
	var table struct {
		Config map[string]payload `json:"config"`
	}
	config := fmt.Sprintf("%s/%s_%s_config.json", folder, model, path.Base(folder))
	if err := a.json(config, &table); err != nil {
		return nil, err
	}
	tensors := map[string]*Stored{}
	for name, p := range table.Config {
		if p.Pickled {
			tensors[name] = &Stored{Variable: graph.Variable{Name: name}} // refused if the program needs it
			continue
		}
		l, err := layoutOf(&p.Meta)
		if err != nil {
			return nil, a.Bad("the tensor %.100q in %s: %w", name, config, err)
		}
		tensors[name] = &Stored{Variable: graph.Variable{Name: name, RequiresGrad: p.Meta.RequiresGrad}, Entry: folder + "/" + p.Path, Layout: l}
	}
	return tensors, nil
}

// ElementSize returns the bytes of one element, also of the dtypes that package cgotorch has no
// names for.
func ElementSize(d cgotorch.DType) int64 {
	if n := d.Size(); n > 0 {
		return int64(n)
	}
	if d == 8 { // complex32
		return 4
	}
	return 1 // the dtypes of 8 bits
}
