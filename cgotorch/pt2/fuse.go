package pt2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
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

// A fuser fuses one graph.
type fuser struct {
	graph  *graph
	cuda   bool        // the program runs on CUDA
	filled map[int]int // by slot: the step that fills it
	read   map[int]int // by slot: how many operands of steps and outputs read it
	done   report
}

// A report counts what a fuser has done.
type report struct {
	dropouts, norms, sums, activations, convolutions int
	normActivations, scaledSums                      int
	pools, layerNorms, products                      int
	means, pixelConvolutions, squeezeExcitations     int
	plainNorms, biases, biasSums, masks              int
	linearBiases                                     int
	constants, windows                               int
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
	for _, more := range []struct {
		count int
		what  string
	}{
		{r.means, "means of channels"}, {r.pixelConvolutions, "convolutions of one pixel as linear layers"},
		{r.squeezeExcitations, "squeezes and excitations"},
		{r.plainNorms, "own kernels for layer norms"}, {r.biases, "biases of convolutions in the layer norms behind them"},
		{r.biasSums, "biases of convolutions added by a kernel of their own"}, {r.linearBiases, "biases of linear layers in the kernel behind them, if there are many rows"}, {r.constants, "steps computed once"}, {r.windows, "attentions in windows"}, {r.masks, "attentions with a mask made dense"},
	} {
		if more.count > 0 {
			text += fmt.Sprintf("; %s: %d", more.what, more.count)
		}
	}
	return text
}

func newFuser(g *graph) *fuser {
	f := &fuser{graph: g}
	f.look()
	return f
}

// look finds out who fills and reads the slots.
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

// remove takes out the steps for which `gone` is true, and frees values anew.
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

// call returns the operator of step i, if the step is a call of one of these operators with one
// result.
func (f *fuser) call(i int, operators ...string) *operatorCall {
	c, ok := f.graph.steps[i].act.(*operatorCall)
	if !ok || !c.single || !slices.Contains(operators, f.graph.steps[i].node.Operator) {
		return nil
	}
	return c
}

// constantArg returns an argument that is a constant.
func constantArg[T any](c *operatorCall, i int) (v T, ok bool) { return constantAt[T](c.args, i) }

// dropouts leaves out dropouts of evaluation. Their readers read what they read.
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
	convolutionWeight, convolutionBias, convolutionStride, convolutionGroups = 1, 2, 3, 6 // padding and dilation follow stride
	normWeight, normBias, normMean, normVar, normEps                         = 1, 2, 3, 4, 7
	normTraining, normArguments                                              = 5, 9
)

var convolutions = []string{"aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"}

// norms finds the batch norms that can go into convolutions.
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

// fuse fuses the program's graph. The tensors of weights are read already, and the Do owns them.
func (b *binder) fuse(x *cgotorch.Exec) {
	p := b.program
	f := newFuser(p.graph)
	f.cuda = p.device.IsCUDA()
	b.foldConstants(x, f)
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
	replaced := b.replaced()
	// own returns the weight of an argument, if nobody else reads it, and no run replaces it.
	own := func(c *operatorCall, i int) *storedTensor {
		if i >= len(c.args) || c.args[i].slot < 0 || f.read[c.args[i].slot] != 1 {
			return nil
		}
		if w := bySlot[c.args[i].slot]; w != nil && handles[w.tensor] == 1 && !replaced[c.args[i].slot] {
			return w
		}
		return nil
	}
	if f.cuda {
		f.normActivations(x, own)
	}
	gone := map[int]bool{}
	for _, n := range f.norms() {
		w, ok := n.weights(own)
		// Of a convolution without a batch, dimension 1 is not that of the channels.
		if rank, known := b.rank(f.graph.steps[n.step].node); !ok || known && rank != len(w.weight.tensor.Shape()) {
			continue
		}
		w.fold(x, n.eps)
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
	f.pixels()
	f.squeezeExcitations()
	f.activations()
	f.kernels()
	if f.cuda {
		f.biases()
	}
	p.report = f.done
	b.drop()
}

// rank returns the number of dimensions of a node's only result, if the file has it.
func (b *binder) rank(n *Node) (rank int, known bool) {
	if len(n.results) != 1 || n.results[0].Tensor == nil {
		return 0, false
	}
	t, known := b.text.GraphModule.Graph.Tensors[n.results[0].Tensor.Name]
	return len(t.Sizes), known
}

// foldedWeights are the weights of a convolution and of the batch norm that goes into it. bias,
// scale and shift may be nil.
type foldedWeights struct{ weight, bias, scale, shift, mean, variance *storedTensor }

// weights returns the weights, if nobody else reads them. `own` is the weight of an argument that
// nobody else reads.
func (n *normedConvolution) weights(own func(c *operatorCall, i int) *storedTensor) (w foldedWeights, ok bool) {
	ok = true
	of := func(c *operatorCall, i int) *storedTensor {
		weight := own(c, i)
		given := i < len(c.args) && c.args[i].slot >= 0
		ok = ok && (weight != nil || !given)
		return weight
	}
	w = foldedWeights{
		weight: of(n.convolution, convolutionWeight), bias: of(n.convolution, convolutionBias),
		scale: of(n.norm, normWeight), shift: of(n.norm, normBias), mean: of(n.norm, normMean), variance: of(n.norm, normVar),
	}
	return w, ok && w.weight != nil && w.weight.tensor.DType().IsFloat()
}

// fold writes the batch norm into the weight, and the new bias in place of the running mean.
func (w *foldedWeights) fold(x *cgotorch.Exec, eps float64) {
	dtype := w.weight.tensor.DType()
	double := func(s *storedTensor) *cgotorch.Tensor { return x.To(s.tensor, cgotorch.Float64) }
	factor := x.Tidy(func() *cgotorch.Tensor {
		factor := x.Rsqrt(x.AddScalar(double(w.variance), eps))
		if w.scale != nil {
			factor = x.Mul(factor, double(w.scale))
		}
		return factor
	})
	defer factor.Close()
	shape := make([]int64, w.weight.tensor.Dim())
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = factor.Numel()
	old := []*cgotorch.Tensor{w.weight.tensor, w.mean.tensor}
	w.mean.tensor = x.Tidy(func() *cgotorch.Tensor {
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
	w.weight.tensor = x.Tidy(func() *cgotorch.Tensor {
		return x.To(x.Mul(double(w.weight), x.View(factor, shape...)), dtype)
	})
	for _, t := range old {
		t.Close()
	}
	w.mean.name = strings.TrimSuffix(w.weight.name, "weight") + "bias"
	w.mean.parameter = true
	w.weight.requiresGrad, w.mean.requiresGrad = false, false
}

// activations makes a sum and a ReLU part of the convolution before them.
func (f *fuser) activations() {
	gone := map[int]bool{}
	for i := range f.graph.steps {
		relu := f.call(i, "aten.relu.default", "aten.relu_.default")
		if relu == nil {
			continue
		}
		at, ok := f.source(relu.args[0], i, gone)
		if !ok {
			continue
		}
		if c := f.call(at, "aten.conv2d.default"); c != nil {
			f.graph.steps[i].act = &convolutionReLU{operatorCall: *c, outs: relu.outs}
			gone[at] = true
			f.done.activations++
			continue
		}
		sum, parts := f.sum(at)
		for _, k := range parts { // the convolution may be on either side
			from, ok := f.source(sum.args[k], at, gone)
			if !ok {
				continue
			}
			if c := f.call(from, "aten.conv2d.default"); c != nil {
				other := sum.args[1-k]
				f.graph.steps[i].act = &convolutionReLU{operatorCall: *c, addend: &other, inPlace: len(parts) == 1, outs: relu.outs}
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
func (f *fuser) sum(i int) (sum *operatorCall, parts []int) {
	sum = f.call(i, "aten.add.Tensor", "aten.add_.Tensor")
	if sum == nil || len(sum.args) > 2 && !isOne(sum.args[2]) || !sum.args[0].isTensor() || !sum.args[1].isTensor() {
		return nil, nil
	}
	if f.graph.steps[i].node.Operator == "aten.add_.Tensor" {
		return sum, []int{0}
	}
	return sum, []int{0, 1}
}

// source returns the step that computes an operand of a later step, if it can be moved there:
// nobody else reads the operand, and no step between writes.
func (f *fuser) source(o operand, to int, gone map[int]bool) (from int, ok bool) {
	from, ok = f.filled[o.slot]
	return from, ok && !gone[from] && f.read[o.slot] == 1 && !f.writesBetween(from, to)
}

// writesBetween reports whether a step between two steps, but for some, writes into memory. Then
// the first one cannot be moved to the second, because it may read what is written.
func (f *fuser) writesBetween(from, to int, but ...int) bool {
	for i := from + 1; i < to; i++ {
		if _, written := f.graph.steps[i].memory(); len(written) > 0 && !slices.Contains(but, i) {
			return true
		}
	}
	return false
}

func (o *operand) isTensor() bool { return o.slot >= 0 && !o.number }

// isOne reports whether an argument whose default is 1, such as alpha, is the integer 1.
func isOne(o operand) bool {
	n, isInt := o.constant.(int64)
	return o.isDefault() || o.slot < 0 && isInt && n == 1
}
