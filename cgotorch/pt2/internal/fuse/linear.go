package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Note [Biases of linear layers]
//
// With many rows LibTorch's product is faster without a bias, and a kernel behind the layer adds it
// at no cost. With few rows the product with a bias is the faster one. Measured on an H100 with
// ConvNeXt and BERT in bfloat16: 784 rows were few, and 6,272 many.

// takeLinearBias makes the bias of a linear layer the shift of a scaledSum, if step `product`,
// which becomes part of the sum, alone reads the layer's result, with channels in front.
func (f *fuser) takeLinearBias(s *scaledSum, product int) {
	if !f.CUDA {
		return
	}
	for k := 1; k <= 2; k++ {
		at, ok := f.source(s.args[k], product, nil)
		order := f.call(at, "aten.permute.default")
		if !ok || order == nil || len(order.Args) != 2 {
			continue
		}
		dims, isConstant := constantArg[[]int64](order, 1)
		from, ok := f.source(order.Args[0], at, nil)
		if !ok || !isConstant || !slices.Equal(dims, []int64{0, 3, 1, 2}) {
			continue
		}
		if bias := f.postponeBias(from); bias.IsTensor() {
			s.shift, s.layer = bias, order.Args[0].Slot
			s.args[1], s.args[2] = s.args[k], s.args[3-k]
			return
		}
	}
}

// ManyRows is the usual number of [Options].ManyRows.
const ManyRows = 6144

// postponeBias lets step `from`, if it is a linear layer, postpone its bias. It returns the bias.
// The step that reads the layer's result must add the bias if the frame says that the layer has
// postponed it.
func (f *fuser) postponeBias(from int) graph.Operand {
	c := f.call(from, "aten.linear.default")
	if c == nil || len(c.Args) <= linearBias || !c.Args[linearBias].IsTensor() {
		return graph.ConstantOf(nil)
	}
	f.graph.Steps[from].Act = &linearLayer{Call: *c, mayPostpone: true, manyRows: f.ManyRows}
	f.done.linearBiases++
	return c.Args[linearBias]
}

const linearWeight, linearBias = 1, 2 // places in the schema of aten::linear

// linearLayer is a linear layer. An input of three dimensions with gaps is copied first. With many
// rows a layer that may postpone its bias leaves the bias to the step that reads the result.
type linearLayer struct {
	graph.Call
	mayPostpone bool
	manyRows    int64 // the least number of rows for that
}

// postpones reports whether the layer now leaves its bias to its reader.
func (l *linearLayer) postpones(in *cgotorch.Tensor, f *graph.Frame) bool {
	weight, bias := l.Args[linearWeight].Tensor(f), l.Args[linearBias].Tensor(f)
	if in == nil || weight == nil || bias == nil || in.Dim() < 2 || weight.Dim() != 2 || bias.Dim() != 1 || bias.Numel() != weight.Shape()[0] {
		return false
	}
	features := weight.Shape()[1]
	return features > 0 && in.Numel()/features >= l.manyRows && in.DType() == weight.DType() && in.DType() == bias.DType()
}

func (l *linearLayer) Run(x *cgotorch.Exec, f *graph.Frame) {
	in := l.Args[0].Tensor(f)
	if in != nil && in.Dim() == 3 && !isDense(in) {
		slot, dense := l.Args[0].Slot, x.Contiguous(in, cgotorch.Contiguous)
		f.Values[slot] = dense
		defer func() {
			f.Values[slot] = in
			dense.Close()
		}()
		in = dense
	}
	if !l.mayPostpone {
		l.Call.Run(x, f)
		return
	}
	if f.Postponed == nil {
		f.Postponed = map[int]bool{}
	}
	postponed := l.postpones(in, f)
	f.Postponed[l.Outs[0]] = postponed
	if postponed {
		f.Values[l.Outs[0]] = x.Linear(in, l.Args[linearWeight].Tensor(f), nil)
		return
	}
	l.Call.Run(x, f)
}

// linearActivations makes one kernel of a linear layer's bias and of the activation that alone
// reads the layer's result.
func (f *fuser) linearActivations() {
	for i := range f.graph.Steps {
		name := f.activationOf(i)
		if name == "" {
			continue
		}
		c := f.graph.Steps[i].Act.(*graph.Call)
		from, ok := f.source(c.Args[0], i, nil)
		if !ok {
			continue
		}
		if bias := f.postponeBias(from); bias.IsTensor() {
			f.graph.Steps[i].Act = &linearActivation{Call: *c, bias: bias, name: name}
		}
	}
	f.remove(nil) // the biases live longer
}

// linearActivation is an activation of a linear layer that may postpone its bias. Nobody else reads
// the layer's result.
type linearActivation struct {
	graph.Call
	bias graph.Operand
	name string // of the activation
}

func (l *linearActivation) Reads() []*graph.Operand { return append(l.Call.Reads(), &l.bias) }

func (l *linearActivation) Run(x *cgotorch.Exec, f *graph.Frame) {
	if !f.Postponed[l.Args[0].Slot] {
		l.Call.Run(x, f)
		return
	}
	f.Values[l.Outs[0]] = affine{in: l.Args[0].Tensor(f), bias: l.bias.Tensor(f), activation: l.name, last: true, reuse: true}.compute(x)
}
