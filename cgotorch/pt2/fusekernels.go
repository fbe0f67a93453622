package pt2

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
)

var (
	// The pools have the arguments of LibTorch's.
	pools = map[string]opcall.Operator{
		"aten.max_pool2d.default": opcall.New("streamtorch::max_pool2d"), "aten.avg_pool2d.default": opcall.New("streamtorch::avg_pool2d"),
	}
	batchNormAct  = opcall.New("streamtorch::batch_norm_act")
	addLayerNorm  = opcall.New("streamtorch::add_layer_norm")
	scaleChannels = opcall.New("streamtorch::scale_channels")
	addcmul       = opcall.New("aten::addcmul")
)

// The method `kernels` makes steps call operators of this library. See Note [Fusing a program].
func (f *fuser) kernels() {
	for i := range f.graph.steps {
		if c := f.call(i, "aten.max_pool2d.default", "aten.avg_pool2d.default"); c != nil {
			c.op = pools[f.graph.steps[i].node.Operator]
			f.done.pools++
		}
		if c := f.call(i, "aten.mul.Tensor"); c != nil && len(c.args) == 2 && (f.isFactor(&c.args[0]) || f.isFactor(&c.args[1])) {
			f.graph.steps[i].act = &channelProduct{*c}
			f.done.products++
		}
	}
	f.layerNorms()
	f.scaledSums()
}

// The method `isFactor` reports whether an operand may be the factors of squeeze and excitation.
func (f *fuser) isFactor(o *operand) bool {
	at, ok := f.filled[o.slot]
	return ok && o.slot >= 0 && f.call(at, "aten.sigmoid.default", "aten.sigmoid_.default", "aten.hardsigmoid.default", "aten.hardsigmoid_.default") != nil
}

// channelProduct is a product. If one side is [N, C, 1, 1] and the other [N, C, H, W], it is that
// of images and a factor for each channel.
type channelProduct struct{ operatorCall }

func (c *channelProduct) run(x *cgotorch.Exec, f *frame) {
	images, factors := c.args[0].tensor(f), c.args[1].tensor(f)
	if isPixel(images) {
		images, factors = factors, images
	}
	if !isPixel(factors) || images == nil || images.Dim() != 4 {
		c.operatorCall.run(x, f)
		return
	}
	call := opcall.Begin(x, scaleChannels)
	call.Tensor(images)
	call.Tensor(factors)
	f.values[c.outs[0]] = call.Run1()
}

// isPixel reports whether t is [N, C, 1, 1].
func isPixel(t *cgotorch.Tensor) bool {
	if t == nil || t.Dim() != 4 {
		return false
	}
	shape := t.Shape()
	return shape[2] == 1 && shape[3] == 1
}

// The places of arguments in the schema of aten::layer_norm.
const layerNormShape, layerNormWeight, layerNormBias, layerNormEps = 1, 2, 3, 4

// The method `layerNorms` makes the layer norm of a sum part of the sum's step. Others may read the
// sum too.
func (f *fuser) layerNorms() {
	gone := map[int]bool{}
	for i := range f.graph.steps {
		norm := f.call(i, "aten.layer_norm.default")
		if norm == nil || len(norm.args) <= layerNormShape || norm.args[0].slot < 0 {
			continue
		}
		at, ok := f.filled[norm.args[0].slot]
		shape, isConstant := constantArg[[]int64](norm, layerNormShape)
		if !ok || !isConstant || len(shape) != 1 || f.writesBetween(at, i) {
			continue
		}
		sum, parts := f.sum(at)
		if len(parts) != 2 { // no sum, or one in place
			continue
		}
		a := &addedLayerNorm{args: []operand{sum.args[0], sum.args[1], constantOf(nil), constantOf(nil)}, eps: 1e-5, outs: []int{sum.outs[0], norm.outs[0]}}
		early := true // the norm's weights are there when the sum is computed
		for k, from := range []int{layerNormWeight, layerNormBias} {
			if from >= len(norm.args) || norm.args[from].slot < 0 {
				continue
			}
			a.args[2+k] = norm.args[from]
			filled, ok := f.filled[norm.args[from].slot]
			early = early && (!ok || filled < at)
		}
		if layerNormEps < len(norm.args) && norm.args[layerNormEps].constant != cgotorch.Default {
			eps, ok := constantArg[float64](norm, layerNormEps)
			if a.eps, early = eps, early && ok; !early {
				continue
			}
		}
		if early {
			f.graph.steps[at].act = a
			gone[i] = true
			f.done.layerNorms++
		}
	}
	f.remove(gone)
}

// addedLayerNorm is a sum and the layer norm of it.
type addedLayerNorm struct {
	args []operand // two addends, the weight and the bias
	eps  float64
	outs []int // the sum and the norm
}

func (a *addedLayerNorm) reads() []*operand { return pointers(a.args) }
func (a *addedLayerNorm) fills() []int      { return a.outs }

func (a *addedLayerNorm) run(x *cgotorch.Exec, f *frame) {
	left, right := a.args[0].tensor(f), a.args[1].tensor(f)
	if left.Dim() == 0 { // the operator wants the rows first
		left, right = right, left
	}
	call := opcall.Begin(x, addLayerNorm)
	call.Tensor(left)
	call.OptTensor(right)
	for i := range a.args[2:] {
		call.OptTensor(a.args[2+i].tensor(f))
	}
	call.Float(a.eps)
	call.RestDefault()
	sum, normed := call.Run2()
	f.values[a.outs[0]], f.values[a.outs[1]] = sum, normed
}

// The method `scaledSums` makes a product part of the sum that alone reads it.
func (f *fuser) scaledSums() {
	gone := map[int]bool{}
	for i := range f.graph.steps {
		sum, parts := f.sum(i)
		for _, k := range parts {
			from, ok := f.source(sum.args[k], i, gone)
			if !ok {
				continue
			}
			if c := f.call(from, "aten.mul.Tensor"); c != nil && c.args[0].isTensor() && c.args[1].isTensor() {
				f.graph.steps[i].act = &scaledSum{args: []operand{sum.args[1-k], c.args[0], c.args[1]}, inPlace: len(parts) == 1, outs: sum.outs}
				gone[from] = true
				f.done.scaledSums++
				break
			}
		}
	}
	f.remove(gone)
}

// scaledSum is args[0] + args[1] * args[2].
type scaledSum struct {
	args    []operand
	inPlace bool // the sum keeps the product's dtype
	outs    []int
}

func (s *scaledSum) reads() []*operand { return pointers(s.args) }
func (s *scaledSum) fills() []int      { return s.outs }

func (s *scaledSum) run(x *cgotorch.Exec, f *frame) {
	other, a, b := s.args[0].tensor(f), s.args[1].tensor(f), s.args[2].tensor(f)
	if other == nil || a == nil || b == nil || !a.DType().IsFloat() || a.DType() != b.DType() || a.DType() != other.DType() {
		product := x.Mul(a, b)
		if s.inPlace {
			x.AddInPlace(product, other).Close()
			f.values[s.outs[0]] = product
			return
		}
		f.values[s.outs[0]] = x.Add(other, product)
		product.Close()
		return
	}
	call := opcall.Begin(x, addcmul)
	call.Tensor(other)
	call.Tensor(a)
	call.Tensor(b)
	call.RestDefault()
	f.values[s.outs[0]] = call.Run1()
}

// activationOf returns the name that streamtorch::batch_norm_act has for the activation of step i,
// or "".
func (f *fuser) activationOf(i int) string {
	c, ok := f.graph.steps[i].act.(*operatorCall)
	if !ok || !c.single {
		return ""
	}
	is := func(n int, want float64) bool {
		v, err := toFloat(c.args[n].constant)
		return err == nil && c.args[n].slot < 0 && v == want
	}
	switch f.graph.steps[i].node.Operator {
	case "aten.relu.default", "aten.relu_.default":
		return "relu"
	case "aten.relu6.default", "aten.relu6_.default":
		return "relu6"
	case "aten.hardtanh.default", "aten.hardtanh_.default":
		if len(c.args) == 3 && is(1, 0) && is(2, 6) {
			return "relu6"
		}
	case "aten.silu.default", "aten.silu_.default":
		return "silu"
	case "aten.hardswish.default", "aten.hardswish_.default":
		return "hardswish"
	}
	return ""
}

// The method `normActivations` makes batch norms behind convolutions part of the activation or the
// sum that alone reads them. It leaves those with a ReLU, which goes into the convolution, unless
// the convolution has groups. `own` is the weight of an argument that nobody else reads.
func (f *fuser) normActivations(x *cgotorch.Exec, own func(c *operatorCall, i int) *storedTensor) {
	readers := map[int]int{} // by slot: the last step that reads it
	for i := range f.graph.steps {
		for _, slot := range slotsOf(f.graph.steps[i].act.reads()...) {
			readers[slot] = i
		}
	}
	gone := map[int]bool{}
	for _, n := range f.norms() {
		out := n.norm.outs[0]
		i, ok := readers[out]
		if !ok || f.read[out] != 1 || f.graph.steps[n.step].node.Operator != "aten.conv2d.default" || f.writesBetween(n.normStep, i) {
			continue
		}
		groups, given := constantArg[int64](n.convolution, convolutionGroups)
		grouped := given && groups != 1
		a := &normActivation{eps: n.eps, name: f.activationOf(i), addend: constantOf(nil), outs: f.graph.steps[i].act.fills()}
		sum, parts := f.sum(i)
		for _, k := range parts {
			if sum.args[k].slot != out {
				continue
			}
			behind, read := readers[sum.outs[0]]
			if isReLU := read && f.read[sum.outs[0]] == 1 && f.activationOf(behind) == "relu"; !isReLU {
				a.name, a.addend, a.inPlace = "none", sum.args[1-k], len(parts) == 1
			}
		}
		if a.name == "" || a.name == "relu" && !grouped {
			continue
		}
		if f.parameters(x, n.norm, own) {
			a.args = append([]operand{n.norm.args[0]}, n.norm.args[normWeight:normVar+1]...)
			f.graph.steps[i].act = a
			gone[n.normStep] = true
			f.done.normActivations++
		}
	}
	f.remove(gone)
}

// The method `parameters` makes the tensors of a batch norm float32, as the kernels want them. It
// returns false and changes nothing if others read them too.
func (f *fuser) parameters(x *cgotorch.Exec, norm *operatorCall, own func(c *operatorCall, i int) *storedTensor) bool {
	var all []*storedTensor
	for i := normWeight; i <= normVar; i++ {
		if norm.args[i].slot < 0 {
			continue
		}
		w := own(norm, i)
		if w == nil || !w.tensor.DType().IsFloat() {
			return false
		}
		all = append(all, w)
	}
	for _, w := range all {
		w.requiresGrad = false
		if old := w.tensor; old.DType() != cgotorch.Float32 {
			w.tensor = x.To(old, cgotorch.Float32)
			old.Close()
		}
	}
	return true
}

// normActivation is activation(norm + addend), where the norm is a batch norm of evaluation.
type normActivation struct {
	args    []operand // the input, and the norm's weight, bias, mean and variance
	addend  operand
	inPlace bool // the sum keeps the norm's dtype
	eps     float64
	name    string // of the activation
	outs    []int
}

func (a *normActivation) reads() []*operand { return append(pointers(a.args), &a.addend) }
func (a *normActivation) fills() []int      { return a.outs }

func (a *normActivation) run(x *cgotorch.Exec, f *frame) {
	const momentum = 0.1 // evaluation does not read it
	call := opcall.Begin(x, batchNormAct)
	call.Tensor(a.args[0].tensor(f))
	call.OptTensor(a.addend.tensor(f))
	for i := range a.args[1:] {
		call.OptTensor(a.args[1+i].tensor(f))
	}
	call.Bool(false)
	call.Float(momentum)
	call.Float(a.eps)
	call.Text(a.name)
	call.RestDefault()
	out := call.Run1()
	if of := a.args[0].tensor(f).DType(); a.inPlace && out.DType() != of {
		wide := out
		out = x.To(wide, of)
		wide.Close()
	}
	f.values[a.outs[0]] = out
}
