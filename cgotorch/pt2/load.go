package pt2

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/export"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/fuse"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a file of
// torch.export.save.
var ErrFormat = export.ErrFormat

// ErrUnsupported is wrapped by the errors for a program that is whole, but that this package does
// not run.
var ErrUnsupported = export.ErrUnsupported

// load reads a program and its weights to x's device. It fuses the program, if the options say so,
// for what `on` tells. It does not wait for the device.
func load(x *cgotorch.Exec, source io.ReaderAt, size int64, name string, o Options, on fuse.Options) (*Program, error) {
	if o.DType != 0 && !o.DType.IsFloat() {
		return nil, fmt.Errorf("pt2: Options.DType is %v: use bfloat16 or float16", o.DType)
	}
	if o.DType == cgotorch.Float32 {
		o.DType = 0
	}
	e, err := export.Read(source, size, name, export.Options{Model: o.Model, Float: o.DType})
	if err != nil {
		return nil, err
	}
	p := &Program{exported: e, file: name, device: x.Device(), float: o.DType}
	for _, n := range e.Nodes {
		if n.Waits && p.waits == nil {
			p.waits = n
		}
	}
	y := x.NoGrad().NoAutocast()
	reader := &weightReader{file: e.File, float: o.DType, bases: map[string]*cgotorch.Tensor{}}
	if err := reader.read(y, slices.Concat(e.WeightList, e.ConstList)); err != nil {
		return nil, err
	}
	if on.CUDA {
		fuse.FillNumbers(y, e.Program)
	}
	if o.Fuse {
		p.report = fuse.Program(y, e.Program, on).String()
	}
	if err := p.keep(y); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	slots := e.Graph.Slots
	p.frames.New = func() any { return graph.NewFrame(slots) }
	return p, nil
}

// keep makes the tensors the program's own.
func (p *Program) keep(x *cgotorch.Exec) error {
	// A tensor may be a view of all that was read. Views of such a view would not require a
	// gradient, although the tensor does, and LibTorch looks at that. So each tensor is detached.
	kept := map[*cgotorch.Tensor]*cgotorch.Tensor{}
	own := func(v *graph.Variable) *cgotorch.Tensor {
		if kept[v.Tensor] == nil {
			kept[v.Tensor] = x.Keep(x.Detach(v.Tensor))
		}
		return kept[v.Tensor]
	}
	for _, v := range p.exported.Constants {
		p.constants = append(p.constants, own(v))
	}
	for _, v := range p.exported.Weights {
		named := nn.Named{Name: v.Name, Tensor: own(v), Buffer: !v.Parameter}
		p.Weights = append(p.Weights, named)
		if v.Parameter && v.RequiresGrad && !named.Tensor.RequiresGrad() {
			if err := named.Tensor.SetRequiresGrad(true); err != nil {
				return p.exported.File.Bad("the parameter %.100q: %w", v.Name, err)
			}
		}
	}
	return nil
}
