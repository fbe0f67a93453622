package pt2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/convrelu"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
)

// Note [Fusing a program]
//
// Options.Fuse changes the steps of the graph after they are made. A dropout of evaluation is left
// out. A batch norm of evaluation goes into the weights of the convolution before it. A sum and a
// ReLU behind a convolution become part of its step, which is one operator of cuDNN where cuDNN has
// one. Each change needs that nobody else reads the values between. Weights are folded in float64
// and rounded once. Sub-graphs stay as they are.
//
// On CUDA a batch norm stays if an activation or a sum follows that cuDNN does not put into the
// convolution. Both are then one kernel of this library. If the norm went into the convolution,
// there would be one kernel for the bias, and another one for the activation.
//
// Three kinds of steps then call operators of this library in place of LibTorch's, as the layers of
// package nn do: pools, a sum with the layer norm of it, and the product of images with a factor
// for each channel. These operators choose their kernels when they run. A product and a sum become
// LibTorch's addcmul.

// A fuser fuses one graph.
type fuser struct {
	graph  *graph
	filled map[int]int // by slot: the step that fills it
	read   map[int]int // by slot: how many operands of steps and outputs read it
	done   report
}

// A report counts what a fuser has done.
type report struct {
	dropouts, norms, sums, activations, convolutions int
	normActivations, scaledSums                      int
	pools, layerNorms, products                      int
}

// String tells what was done.
func (r report) String() string {
	text := fmt.Sprintf("%d of %d convolutions took a batch norm in, %d a ReLU, %d a sum; %d dropouts left out", r.norms, r.convolutions, r.activations, r.sums, r.dropouts)
	if r.normActivations > 0 {
		text += fmt.Sprintf("; %d batch norms took an activation or a sum in", r.normActivations)
	}
	if r.scaledSums > 0 {
		text += fmt.Sprintf("; %d sums took a product in", r.scaledSums)
	}
	if r.pools+r.layerNorms+r.products > 0 {
		text += fmt.Sprintf("; own kernels for %d pools, %d layer norms of sums, %d products with channels", r.pools, r.layerNorms, r.products)
	}
	return text
}

func newFuser(g *graph) *fuser {
	f := &fuser{graph: g}
	f.look()
	return f
}

// The method `look` finds out who fills and reads the slots.
func (f *fuser) look() {
	f.filled, f.read = map[int]int{}, map[int]int{}
	for i := range f.graph.steps {
		for _, slot := range f.graph.steps[i].act.fills() {
			f.filled[slot] = i
		}
		for _, slot := range slotsOf(f.graph.steps[i].act.reads()...) {
			f.read[slot]++
		}
	}
	for i := range f.graph.outputs {
		for _, slot := range slotsOf(&f.graph.outputs[i]) {
			f.read[slot]++
		}
	}
}

// The method `remove` takes out the steps for which `gone` is true, and frees values anew.
func (f *fuser) remove(gone map[int]bool) {
	kept := f.graph.steps[:0:0]
	for i, s := range f.graph.steps {
		if !gone[i] {
			kept = append(kept, s)
		}
	}
	f.graph.steps = kept
	f.graph.free()
	f.look()
}

// The method `call` returns the operator of step i, if the step is a call of one of these operators
// with one result.
func (f *fuser) call(i int, operators ...string) *operatorCall {
	c, ok := f.graph.steps[i].act.(*operatorCall)
	if !ok || !c.single || !slices.Contains(operators, f.graph.steps[i].node.Operator) {
		return nil
	}
	return c
}

// constantArg returns an argument that is a constant.
func constantArg[T any](c *operatorCall, i int) (v T, ok bool) { return constantAt[T](c.args, i) }

// The method `dropouts` leaves out dropouts of evaluation. Their readers read what they read.
func (f *fuser) dropouts() {
	gone, to := map[int]bool{}, map[int]int{}
	for i := range f.graph.steps {
		c := f.call(i, "aten.dropout.default", "aten.dropout_.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
		if c == nil || len(c.args) != 3 || c.args[0].slot < 0 {
			continue
		}
		if on, ok := constantArg[bool](c, 2); ok && !on && !f.isOutput(c.outs[0]) {
			gone[i] = true
			to[c.outs[0]] = c.args[0].slot
			f.done.dropouts++
		}
	}
	for i := range f.graph.steps {
		replaceSlots(to, f.graph.steps[i].act.reads()...)
	}
	f.remove(gone)
}

func (f *fuser) isOutput(slot int) bool {
	for i := range f.graph.outputs {
		if slices.Contains(slotsOf(&f.graph.outputs[i]), slot) {
			return true
		}
	}
	return false
}

func replaceSlots(to map[int]int, operands ...*operand) {
	for _, o := range operands {
		for next, ok := to[o.slot]; ok && o.slot >= 0; next, ok = to[o.slot] { // one dropout behind another
			o.slot = next
		}
		for i := range o.list {
			replaceSlots(to, &o.list[i])
		}
	}
}

// A normedConvolution is a convolution whose result only a batch norm of evaluation reads.
type normedConvolution struct {
	step, normStep int
	convolution    *operatorCall
	norm           *operatorCall
	eps            float64
}

// The places of arguments in the schemas of aten::conv2d and aten::batch_norm.
const (
	convolutionWeight, convolutionBias               = 1, 2
	normWeight, normBias, normMean, normVar, normEps = 1, 2, 3, 4, 7
	normTraining, normArguments                      = 5, 9
)

var convolutions = []string{"aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"}

// The method `norms` finds the batch norms that can go into convolutions.
func (f *fuser) norms() (found []normedConvolution) {
	for i := range f.graph.steps {
		norm := f.call(i, "aten.batch_norm.default")
		if norm == nil || len(norm.args) < normArguments-1 || norm.args[0].slot < 0 || f.read[norm.args[0].slot] != 1 {
			continue
		}
		at, ok := f.filled[norm.args[0].slot]
		training, isConstant := constantArg[bool](norm, normTraining)
		eps, hasEps := constantArg[float64](norm, normEps)
		if !ok || !isConstant || training || !hasEps || norm.args[normMean].slot < 0 || norm.args[normVar].slot < 0 {
			continue
		}
		if c := f.call(at, convolutions...); c != nil && len(c.args) >= convolutionWeight+1 {
			found = append(found, normedConvolution{at, i, c, norm, eps})
		}
	}
	return found
}

// The method `fuse` fuses the program's graph. The tensors of weights are read already, and the Do
// owns them.
func (b *binder) fuse(x *cgotorch.Exec) {
	p := b.program
	f := newFuser(p.graph)
	f.dropouts()
	for i := range p.graph.steps {
		if f.call(i, convolutions...) != nil {
			f.done.convolutions++
		}
	}
	bySlot := map[int]*storedTensor{}
	for i, slot := range p.graph.inputs {
		if w := p.inputs[i].weight; w >= 0 {
			bySlot[slot] = b.weightList[w]
		}
	}
	handles := map[*cgotorch.Tensor]int{} // how many weights are this tensor
	for _, w := range b.weightList {
		handles[w.tensor]++
	}
	// own returns the weight of an argument, if nobody else reads it.
	own := func(c *operatorCall, i int) *storedTensor {
		if i >= len(c.args) || c.args[i].slot < 0 || f.read[c.args[i].slot] != 1 {
			return nil
		}
		if w := bySlot[c.args[i].slot]; w != nil && handles[w.tensor] == 1 {
			return w
		}
		return nil
	}
	if p.device.IsCUDA() {
		f.normActivations(x, own)
	}
	gone := map[int]bool{}
	for _, n := range f.norms() {
		weight, mean, variance := own(n.convolution, convolutionWeight), own(n.norm, normMean), own(n.norm, normVar)
		if weight == nil || mean == nil || variance == nil || !weight.tensor.DType().IsFloat() {
			continue
		}
		scale, shift, bias := own(n.norm, normWeight), own(n.norm, normBias), own(n.convolution, convolutionBias)
		if scale == nil && n.norm.args[normWeight].slot >= 0 || shift == nil && n.norm.args[normBias].slot >= 0 ||
			len(n.convolution.args) > convolutionBias && n.convolution.args[convolutionBias].slot >= 0 && bias == nil {
			continue
		}
		f.fold(x, n, weight, mean, variance, scale, shift, bias)
		// The running mean's place becomes that of the bias.
		for len(n.convolution.args) <= convolutionBias {
			n.convolution.args = append(n.convolution.args, constantOf(cgotorch.Default))
		}
		n.convolution.args[convolutionBias] = n.norm.args[normMean]
		n.convolution.outs = n.norm.outs
		gone[n.normStep] = true
		f.done.norms++
	}
	f.remove(gone)
	f.activations()
	f.kernels()
	p.report = f.done
	b.drop()
}

// The method `fold` writes the batch norm into the weight, and the new bias in place of the running
// mean.
func (f *fuser) fold(x *cgotorch.Exec, n normedConvolution, weight, mean, variance, scale, shift, bias *storedTensor) {
	dtype := weight.tensor.DType()
	double := func(w *storedTensor) *cgotorch.Tensor { return x.To(w.tensor, cgotorch.Float64) }
	factor := x.Tidy(func() *cgotorch.Tensor {
		factor := x.Rsqrt(x.AddScalar(double(variance), n.eps))
		if scale != nil {
			factor = x.Mul(factor, double(scale))
		}
		return factor
	})
	defer factor.Close()
	shape := make([]int64, weight.tensor.Dim())
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = factor.Numel()
	old := []*cgotorch.Tensor{weight.tensor, mean.tensor}
	mean.tensor = x.Tidy(func() *cgotorch.Tensor {
		offset := x.Neg(double(mean))
		if bias != nil {
			offset = x.Add(offset, double(bias))
		}
		offset = x.Mul(offset, factor)
		if shift != nil {
			offset = x.Add(offset, double(shift))
		}
		return x.To(offset, dtype)
	})
	weight.tensor = x.Tidy(func() *cgotorch.Tensor {
		return x.To(x.Mul(double(weight), x.View(factor, shape...)), dtype)
	})
	for _, t := range old {
		t.Close()
	}
	mean.name = strings.TrimSuffix(weight.name, "weight") + "bias"
	mean.parameter = true
	weight.requiresGrad, mean.requiresGrad = false, false
}

// The method `activations` makes a sum and a ReLU part of the convolution before them.
func (f *fuser) activations() {
	gone := map[int]bool{}
	for i := range f.graph.steps {
		relu := f.call(i, "aten.relu.default", "aten.relu_.default")
		if relu == nil || relu.args[0].slot < 0 || f.read[relu.args[0].slot] != 1 {
			continue
		}
		at, ok := f.filled[relu.args[0].slot]
		if !ok || gone[at] || f.writesBetween(at, i) {
			continue
		}
		if c := f.call(at, "aten.conv2d.default"); c != nil {
			f.graph.steps[i].act = &convolutionReLU{operatorCall: *c, outs: relu.outs}
			gone[at] = true
			f.done.activations++
			continue
		}
		sum := f.call(at, "aten.add.Tensor", "aten.add_.Tensor")
		if sum == nil || len(sum.args) > 2 && !isDefault(sum.args[2]) || sum.args[0].slot < 0 || sum.args[1].slot < 0 {
			continue
		}
		for k := range 2 { // the convolution may be on either side
			from, ok := f.filled[sum.args[k].slot]
			if !ok || gone[from] || f.read[sum.args[k].slot] != 1 || f.writesBetween(from, at) || k == 1 && f.graph.steps[at].node.Operator == "aten.add_.Tensor" {
				continue
			}
			if c := f.call(from, "aten.conv2d.default"); c != nil {
				other := sum.args[1-k]
				f.graph.steps[i].act = &convolutionReLU{operatorCall: *c, addend: &other, outs: relu.outs}
				gone[at], gone[from] = true, true
				f.done.sums++
				f.done.activations++
				break
			}
		}
	}
	f.remove(gone)
}

// The method `writesBetween` reports whether a step between two steps writes into memory. Then the
// first one cannot be moved to the second, because it may read what is written.
func (f *fuser) writesBetween(from, to int) bool {
	return slices.ContainsFunc(f.graph.steps[from+1:to], func(s step) bool {
		_, written := s.memory()
		return len(written) > 0
	})
}

func isDefault(o operand) bool {
	n, isInt := o.constant.(int64)
	return o.slot < 0 && (o.constant == cgotorch.Default || isInt && n == 1)
}

// convolutionReLU is max(0, convolution + addend).
type convolutionReLU struct {
	operatorCall
	addend *operand // nil means 0
	outs   []int
}

func (c *convolutionReLU) reads() []*operand {
	all := c.operatorCall.reads()
	if c.addend != nil {
		all = append(all, c.addend)
	}
	return all
}
func (c *convolutionReLU) fills() []int { return c.outs }

func (c *convolutionReLU) run(x *cgotorch.Exec, f *frame) {
	var z *cgotorch.Tensor
	if c.addend != nil {
		z = c.addend.tensor(f)
	}
	if out := c.atOnce(x, f, z); out != nil {
		f.values[c.outs[0]] = out
		return
	}
	call := opcall.Begin(x, c.op)
	c.pass(call, f)
	out := call.Run1()
	if z != nil {
		sum := x.Add(out, z)
		out.Close()
		out = sum
	}
	f.values[c.outs[0]] = out
	x.ReLUInPlace(out).Close()
}

// atOnce does all of the work with one operator of cuDNN. If that operator does not fit, atOnce
// returns nil.
func (c *convolutionReLU) atOnce(x *cgotorch.Exec, f *frame, z *cgotorch.Tensor) *cgotorch.Tensor {
	in, weight := c.args[0].tensor(f), c.args[convolutionWeight].tensor(f)
	if groups, ok := constantArg[int64](&c.operatorCall, 6); ok && groups != 1 || x.GradEnabled() || in == nil || weight == nil || !convrelu.Fits(x, in, weight) {
		return nil
	}
	sizes := [3][]int64{{1, 1}, {0, 0}, {1, 1}} // stride, padding, dilation
	for i := range sizes {
		if at := 3 + i; at < len(c.args) && c.args[at].constant != cgotorch.Default {
			given, ok := c.args[at].constant.([]int64)
			if !ok || len(given) != 2 {
				return nil
			}
			sizes[i] = given
		}
	}
	if slices.Min(sizes[0]) < 1 {
		return nil // the convolution says why
	}
	var bias *cgotorch.Tensor
	if convolutionBias < len(c.args) {
		bias = c.args[convolutionBias].tensor(f)
	}
	return convrelu.Forward(x, in, weight, bias, z, sizes[0], sizes[1], sizes[2])
}

// The method `drop` removes the weights that no step reads any more.
func (b *binder) drop() {
	p := b.program
	f := newFuser(p.graph)
	used := map[*storedTensor]bool{}
	for i, slot := range p.graph.inputs {
		if w := p.inputs[i].weight; w >= 0 && f.read[slot] > 0 {
			used[b.weightList[w]] = true
		}
	}
	for _, o := range p.outputs {
		if o.weight >= 0 {
			used[b.weightList[o.weight]] = true
		}
	}
	place := map[int]int{}
	kept := b.weightList[:0:0]
	for i, w := range b.weightList {
		if used[w] {
			place[i] = len(kept)
			kept = append(kept, w)
		}
	}
	for i := range p.inputs {
		if w := p.inputs[i].weight; w >= 0 {
			to, ok := place[w]
			if p.inputs[i].weight = to; !ok {
				p.inputs[i] = programInput{-1, -1, -1}
			}
		}
	}
	for i := range p.outputs {
		if w := p.outputs[i].weight; w >= 0 {
			p.outputs[i].weight = place[w]
		}
	}
	b.weightList = kept
}
