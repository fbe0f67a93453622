// Package fuse changes the steps of a program, so that it computes the same with fewer operators.
package fuse

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Note [Fusing a program]
//
// Options.Fuse changes the steps of the graph after they are made. A dropout of evaluation is left
// out. A batch norm of evaluation goes into the weights of the convolution before it. A sum and a
// ReLU behind a convolution become part of its step, which is one operator of cuDNN where cuDNN has
// one. Each change needs that nobody else reads the values between. Weights are folded in float64
// and rounded once. Sub-graphs stay as they are.
//
// Steps that read weights and constants alone are computed once, at the load.
//
// On CUDA a batch norm stays if an activation or a sum follows that cuDNN does not put into the
// convolution. Both are then one kernel of this library. If the norm went into the convolution,
// there would be one kernel for the bias, and another one for the activation.
//
// Some kinds of steps then call operators of this library in place of LibTorch's: pools, means over
// pixels, layer norms with the sum before them, products with a factor for each channel, squeezes
// and excitations, and attentions in windows. These operators choose their kernels when they run. A
// product and a sum become one operator. On CUDA a mask of attention with gaps is made dense,
// because LibTorch's fast kernels read no other, and an input of a linear layer too. An activation
// or a layer scale behind a linear layer adds the layer's bias, if there are many rows.

// Options tell on what a program runs.
type Options struct {
	CUDA     bool
	ManyRows int64 // the rows from which a linear layer postpones its bias
}

// fuser fuses one graph.
type fuser struct {
	graph *graph.Graph
	Options
	filled map[int]int // by slot: the step that fills it
	read   map[int]int // by slot: how many operands of steps and outputs read it
	done   report
}

func newFuser(g *graph.Graph) *fuser {
	f := &fuser{graph: g}
	f.look()
	return f
}

// look finds out who fills and reads the slots.
func (f *fuser) look() {
	f.filled, f.read = map[int]int{}, map[int]int{}
	for i := range f.graph.Steps {
		for _, slot := range f.graph.Steps[i].Act.Fills() {
			f.filled[slot] = i
		}
		for _, slot := range graph.SlotsOf(f.graph.Steps[i].Act.Reads()...) {
			f.read[slot]++
		}
	}
	for i := range f.graph.Outputs {
		for _, slot := range graph.SlotsOf(&f.graph.Outputs[i]) {
			f.read[slot]++
		}
	}
}

// remove takes out the steps for which `gone` is true, and frees values anew.
func (f *fuser) remove(gone map[int]bool) {
	kept := f.graph.Steps[:0:0]
	for i, s := range f.graph.Steps {
		if !gone[i] {
			kept = append(kept, s)
		}
	}
	f.graph.Steps = kept
	f.graph.Free()
	f.look()
}

// call returns the operator of step i, if the step is a call of one of these operators with one
// result.
func (f *fuser) call(i int, operators ...string) *graph.Call {
	c, ok := f.graph.Steps[i].Act.(*graph.Call)
	if !ok || !c.Single || !slices.Contains(operators, f.graph.Steps[i].Node.Operator) {
		return nil
	}
	return c
}

// constantArg returns an argument that is a constant.
func constantArg[T any](c *graph.Call, i int) (v T, ok bool) { return graph.ConstantAt[T](c.Args, i) }

// dropouts leaves out dropouts of evaluation. Their readers read what they read.
func (f *fuser) dropouts() {
	gone, to := map[int]bool{}, map[int]int{}
	for i := range f.graph.Steps {
		c := f.call(i, "aten.dropout.default", "aten.dropout_.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
		if c == nil || len(c.Args) != 3 || c.Args[0].Slot < 0 {
			continue
		}
		if on, ok := constantArg[bool](c, 2); ok && !on && !f.isOutput(c.Outs[0]) {
			gone[i] = true
			to[c.Outs[0]] = c.Args[0].Slot
			f.done.dropouts++
		}
	}
	for i := range f.graph.Steps {
		replaceSlots(to, f.graph.Steps[i].Act.Reads()...)
	}
	f.remove(gone)
}

func (f *fuser) isOutput(slot int) bool {
	for i := range f.graph.Outputs {
		if slices.Contains(graph.SlotsOf(&f.graph.Outputs[i]), slot) {
			return true
		}
	}
	return false
}

func replaceSlots(to map[int]int, operands ...*graph.Operand) {
	for _, o := range operands {
		for next, ok := to[o.Slot]; ok && o.Slot >= 0; next, ok = to[o.Slot] { // one dropout behind another
			o.Slot = next
		}
		for i := range o.List {
			replaceSlots(to, &o.List[i])
		}
	}
}

// normedConvolution is a convolution whose result only a batch norm of evaluation reads.
type normedConvolution struct {
	step, normStep int
	convolution    *graph.Call
	norm           *graph.Call
	eps            float64
}

// The places of arguments in the schemas of aten::conv2d and aten::batch_norm.
const (
	convolutionWeight, convolutionBias, convolutionStride, convolutionGroups = 1, 2, 3, 6 // padding and dilation follow stride
	normWeight, normBias, normMean, normVar, normEps                         = 1, 2, 3, 4, 7
	normTraining, normArguments                                              = 5, 9
)

var convolutions = []string{"aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"}

// norms finds the batch norms that can go into convolutions.
func (f *fuser) norms() (found []normedConvolution) {
	for i := range f.graph.Steps {
		norm := f.call(i, "aten.batch_norm.default")
		if norm == nil || len(norm.Args) < normArguments-1 || norm.Args[0].Slot < 0 || f.read[norm.Args[0].Slot] != 1 {
			continue
		}
		at, ok := f.filled[norm.Args[0].Slot]
		training, isConstant := constantArg[bool](norm, normTraining)
		eps, hasEps := constantArg[float64](norm, normEps)
		if !ok || !isConstant || training || !hasEps || norm.Args[normMean].Slot < 0 || norm.Args[normVar].Slot < 0 {
			continue
		}
		if c := f.call(at, convolutions...); c != nil && len(c.Args) >= convolutionWeight+1 {
			found = append(found, normedConvolution{at, i, c, norm, eps})
		}
	}
	return found
}

// Program fuses the program's graph for a device. The tensors of weights are read already, and the
// Do owns them. It tells what was done.
func Program(x *cgotorch.Exec, p *graph.Program, o Options) fmt.Stringer {
	f := newFuser(p.Graph)
	f.Options = o
	foldConstants(x, p, f)
	f.dropouts()
	for i := range p.Graph.Steps {
		if f.call(i, convolutions...) != nil {
			f.done.convolutions++
		}
	}
	own := f.ownWeights(p)
	if f.CUDA {
		f.normActivations(x, own)
	}
	f.foldNorms(x, own)
	f.pixels()
	f.squeezeExcitations()
	f.activations()
	f.kernels()
	if f.CUDA {
		f.biases()
	}
	drop(p)
	return f.done
}

// ownWeights returns a function that returns the weight of an argument, if nobody else reads it,
// and no run replaces it.
func (f *fuser) ownWeights(p *graph.Program) func(c *graph.Call, i int) *graph.Variable {
	bySlot := map[int]*graph.Variable{}
	for i, slot := range p.Graph.Inputs {
		bySlot[slot] = p.Variable(p.Inputs[i].Weight, -1)
	}
	handles := map[*cgotorch.Tensor]int{} // how many weights are this tensor
	for _, w := range p.Weights {
		handles[w.Tensor]++
	}
	replaced := p.Replaced()
	return func(c *graph.Call, i int) *graph.Variable {
		if i >= len(c.Args) || c.Args[i].Slot < 0 || f.read[c.Args[i].Slot] != 1 {
			return nil
		}
		if w := bySlot[c.Args[i].Slot]; w != nil && handles[w.Tensor] == 1 && !replaced[c.Args[i].Slot] {
			return w
		}
		return nil
	}
}

// foldNorms puts batch norms into the weights of the convolutions before them.
func (f *fuser) foldNorms(x *cgotorch.Exec, own func(c *graph.Call, i int) *graph.Variable) {
	gone := map[int]bool{}
	for _, n := range f.norms() {
		w, ok := n.weights(own)
		if !ok {
			continue
		}
		// Of a convolution without a batch, dimension 1 is not that of the channels.
		result, isTensor := f.graph.Steps[n.step].Node.Tensor()
		if isTensor && result.Known && len(result.Sizes) != len(w.weight.Tensor.Shape()) {
			continue
		}
		w.fold(x, n.eps)
		*n.convolution.Arg(convolutionBias) = n.norm.Args[normMean] // the running mean's place becomes that of the bias
		n.convolution.Outs = n.norm.Outs
		gone[n.normStep] = true
		f.done.norms++
	}
	f.remove(gone)
}

// foldedWeights are the weights of a convolution and of the batch norm that goes into it. bias,
// scale and shift may be nil.
type foldedWeights struct{ weight, bias, scale, shift, mean, variance *graph.Variable }

// weights returns the weights, if nobody else reads them. `own` is the weight of an argument that
// nobody else reads.
func (n *normedConvolution) weights(own func(c *graph.Call, i int) *graph.Variable) (w foldedWeights, ok bool) {
	ok = true
	of := func(c *graph.Call, i int) *graph.Variable {
		weight := own(c, i)
		given := i < len(c.Args) && c.Args[i].Slot >= 0
		ok = ok && (weight != nil || !given)
		return weight
	}
	w = foldedWeights{
		weight: of(n.convolution, convolutionWeight), bias: of(n.convolution, convolutionBias),
		scale: of(n.norm, normWeight), shift: of(n.norm, normBias), mean: of(n.norm, normMean), variance: of(n.norm, normVar),
	}
	return w, ok && w.weight != nil && w.weight.Tensor.DType().IsFloat()
}

// fold writes the batch norm into the weight, and the new bias in place of the running mean.
func (w *foldedWeights) fold(x *cgotorch.Exec, eps float64) {
	dtype := w.weight.Tensor.DType()
	double := func(s *graph.Variable) *cgotorch.Tensor { return x.To(s.Tensor, cgotorch.Float64) }
	factor := x.Tidy(func() *cgotorch.Tensor {
		factor := x.Rsqrt(x.AddScalar(double(w.variance), eps))
		if w.scale != nil {
			factor = x.Mul(factor, double(w.scale))
		}
		return factor
	})
	defer factor.Close()
	shape := make([]int64, w.weight.Tensor.Dim())
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = factor.Numel()
	old := []*cgotorch.Tensor{w.weight.Tensor, w.mean.Tensor}
	w.mean.Tensor = x.Tidy(func() *cgotorch.Tensor {
		offset := x.Neg(double(w.mean))
		if w.bias != nil {
			offset = x.Add(offset, double(w.bias))
		}
		offset = x.Mul(offset, factor)
		if w.shift != nil {
			offset = x.Add(offset, double(w.shift))
		}
		return x.To(offset, dtype)
	})
	w.weight.Tensor = x.Tidy(func() *cgotorch.Tensor {
		return x.To(x.Mul(double(w.weight), x.View(factor, shape...)), dtype)
	})
	for _, t := range old {
		t.Close()
	}
	w.mean.Name = strings.TrimSuffix(w.weight.Name, "weight") + "bias"
	w.mean.Parameter = true
	w.weight.RequiresGrad, w.mean.RequiresGrad = false, false
}

// activations makes a sum and a ReLU part of the convolution before them.
func (f *fuser) activations() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		relu := f.call(i, "aten.relu.default", "aten.relu_.default")
		if relu == nil {
			continue
		}
		at, ok := f.source(relu.Args[0], i, gone)
		if !ok {
			continue
		}
		if c := f.call(at, "aten.conv2d.default"); c != nil {
			f.graph.Steps[i].Act = &convolutionReLU{Call: *c, outs: relu.Outs}
			gone[at] = true
			f.done.activations++
			continue
		}
		sum, parts := f.sum(at)
		for _, k := range parts { // the convolution may be on either side
			from, ok := f.source(sum.Args[k], at, gone)
			if !ok {
				continue
			}
			if c := f.call(from, "aten.conv2d.default"); c != nil {
				other := sum.Args[1-k]
				f.graph.Steps[i].Act = &convolutionReLU{Call: *c, addend: &other, inPlace: len(parts) == 1, outs: relu.Outs}
				gone[at], gone[from] = true, true
				f.done.sums++
				f.done.activations++
				break
			}
		}
	}
	f.remove(gone)
}

// sum returns step i if it is the sum of two tensors, without a factor. It also returns the places
// of those that may be computed in the step of the sum. In a sum in place this is the first one
// alone. Otherwise the sum must stay in the memory of the first one, where others may read it.
func (f *fuser) sum(i int) (sum *graph.Call, parts []int) {
	sum = f.call(i, "aten.add.Tensor", "aten.add_.Tensor")
	if sum == nil || len(sum.Args) > 2 && !isOne(sum.Args[2]) || !sum.Args[0].IsTensor() || !sum.Args[1].IsTensor() {
		return nil, nil
	}
	if f.graph.Steps[i].Node.Operator == "aten.add_.Tensor" {
		return sum, []int{0}
	}
	return sum, []int{0, 1}
}

// source returns the step that computes an operand of a later step, if it can be moved there:
// nobody else reads the operand, and no step between writes.
func (f *fuser) source(o graph.Operand, to int, gone map[int]bool) (from int, ok bool) {
	from, ok = f.filled[o.Slot]
	return from, ok && !gone[from] && f.read[o.Slot] == 1 && !f.writesBetween(from, to)
}

// writesBetween reports whether a step between two steps, but for some, writes into memory. Then
// the first one cannot be moved to the second, because it may read what is written.
func (f *fuser) writesBetween(from, to int, but ...int) bool {
	for i := from + 1; i < to; i++ {
		if _, written := f.graph.Steps[i].Memory(); len(written) > 0 && !slices.Contains(but, i) {
			return true
		}
	}
	return false
}

// isOne reports whether an argument whose default is 1, such as alpha, is the integer 1.
func isOne(o graph.Operand) bool {
	n, isInt := o.Constant.(int64)
	return o.IsDefault() || o.Slot < 0 && isInt && n == 1
}
