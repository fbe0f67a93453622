package fuse

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

var fillNumber = opcall.New("aten::fill_.Scalar")

// FillNumbers makes fills with a constant of one number fills with that number. In PyTorch such a
// constant stays on the host, and here it is on the device, where two kernels more would copy it.
func FillNumbers(x *cgotorch.Exec, p *graph.Program) {
	f := newFuser(p.Graph)
	constants, replaced := map[int]*cgotorch.Tensor{}, p.Replaced()
	for i, slot := range f.graph.Inputs {
		if at := p.Inputs[i].Constant; at >= 0 && !f.graph.Written[i] && !replaced[slot] {
			constants[slot] = p.Constants[at].Tensor
		}
	}
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		fill := f.call(i, "aten.fill_.Tensor")
		if fill == nil || len(fill.Args) != 2 || !fill.Args[1].IsTensor() {
			continue
		}
		from, ok := f.source(fill.Args[1], i, gone)
		if !ok {
			continue
		}
		lifted := f.call(from, "aten.lift_fresh_copy.default")
		if lifted == nil || lifted.Args[0].Slot < 0 {
			continue
		}
		t := constants[lifted.Args[0].Slot]
		if t == nil || t.Dim() != 0 || !t.DType().IsFloat() && t.DType() != cgotorch.Int64 {
			continue
		}
		number := graph.ConstantOf(x.Item(t))
		if t.DType() == cgotorch.Int64 {
			number = graph.ConstantOf(cgotorch.ToSlice[int64](x, t)[0])
		}
		fill.Op, fill.Args[1] = fillNumber, number
		gone[from] = true
	}
	f.remove(gone)
}

// drop removes the weights and constants that no step reads any more.
func drop(p *graph.Program) {
	f := newFuser(p.Graph)
	weights, constants := map[int]bool{}, map[int]bool{} // those that are used
	for i, slot := range p.Graph.Inputs {
		if f.read[slot] > 0 {
			weights[p.Inputs[i].Weight], constants[p.Inputs[i].Constant] = true, true
		}
	}
	for _, o := range p.Outputs {
		weights[o.Weight], constants[o.Constant] = true, true
	}
	var weightTo, constantTo map[int]int
	p.Weights, weightTo = only(p.Weights, weights)
	p.Constants, constantTo = only(p.Constants, constants)
	for i := range p.Inputs {
		in := &p.Inputs[i]
		in.Weight, in.Constant = newPlace(weightTo, in.Weight), newPlace(constantTo, in.Constant)
	}
	for i := range p.Outputs {
		o := &p.Outputs[i]
		o.Weight, o.Constant = newPlace(weightTo, o.Weight), newPlace(constantTo, o.Constant)
	}
}

// only returns the tensors whose places in the list are used. It also returns their new places.
func only(list []*graph.Variable, used map[int]bool) (kept []*graph.Variable, to map[int]int) {
	to = map[int]int{}
	for i, t := range list {
		if used[i] {
			to[i] = len(kept)
			kept = append(kept, t)
		}
	}
	return kept, to
}

// newPlace returns the new place of a tensor, or -1 if it is dropped or -1.
func newPlace(to map[int]int, place int) int {
	if at, ok := to[place]; ok {
		return at
	}
	return -1
}
