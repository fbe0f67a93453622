package pt2

import (
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
)

var (
	affineOfChannels = opcall.New("streamtorch::channel_affine")
	meansOfChannels  = opcall.New("streamtorch::channel_means")
	squeezeExcite    = opcall.New("streamtorch::squeeze_excite")
)

// affine is activation((in + shift) * scale + bias + addend). Shift, scale and bias have a number
// for each channel. All but `in` may be nil.
type affine struct {
	in, shift, scale, bias, addend *cgotorch.Tensor
	activation                     string // "": none
	last                           bool   // the channels are the last dimension, not the second one
	reuse                          bool   // nobody else reads `in`, so the result may take its memory
}

func (a affine) compute(x *cgotorch.Exec) *cgotorch.Tensor {
	if a.activation == "" {
		a.activation = "none"
	}
	call := opcall.Begin(x, affineOfChannels)
	call.Tensor(a.in)
	for _, t := range []*cgotorch.Tensor{a.shift, a.scale, a.bias, a.addend} {
		call.OptTensor(t)
	}
	call.Text(a.activation)
	call.Bool(a.last)
	call.Bool(a.reuse)
	return call.Run1()
}

// isOfChannels reports whether t has a number for each channel of images [N, C, H, W]: its shape is
// [C, 1, 1] or [1, C, 1, 1].
func isOfChannels(t, images *cgotorch.Tensor) bool {
	if images.Dim() != 4 || t.Dim() < 3 || t.Dim() > 4 {
		return false
	}
	shape := t.Shape()
	if len(shape) == 4 {
		if shape[0] != 1 {
			return false
		}
		shape = shape[1:]
	}
	return slices.Equal(shape, []int64{images.Shape()[1], 1, 1})
}

// pixels finds means over images, and the convolutions of such means. A mean has one pixel, so its
// convolution is a linear layer, whose operator adds the bias at once.
func (f *fuser) pixels() {
	pixel := map[int]bool{} // by slot
	for i := range f.graph.steps {
		act := &f.graph.steps[i].act
		if c := f.call(i, "aten.adaptive_avg_pool2d.default"); c != nil && len(c.args) == 2 {
			if size, ok := constantArg[[]int64](c, 1); ok && (slices.Equal(size, []int64{1, 1}) || slices.Equal(size, []int64{1})) {
				pixel[c.outs[0]] = true
				*act = &channelMean{*c}
				f.done.means++
			}
		}
		if c := f.call(i, "aten.mean.dim"); c != nil && isMeanOfPixels(c) {
			pixel[c.outs[0]] = true
			*act = &channelMean{*c}
			f.done.means++
		}
		if c := f.call(i, "aten.conv2d.default"); c != nil && c.args[0].slot >= 0 && pixel[c.args[0].slot] && isPlain(c) {
			pixel[c.outs[0]] = true
			*act = &pixelConvolution{*c}
			f.done.pixelConvolutions++
		}
		if c, ok := (*act).(*operatorCall); ok && f.activationOf(i) != "" && pixel[c.args[0].slot] {
			pixel[c.outs[0]] = true
		}
	}
}

// isMeanOfPixels reports whether a mean is that over the last two dimensions of images.
func isMeanOfPixels(c *operatorCall) bool {
	if len(c.args) < 3 || len(c.args) > 3 && c.args[3].constant != cgotorch.Default && (c.args[3].slot >= 0 || c.args[3].constant != nil) {
		return false // it has a dtype of its own
	}
	dims, ok := constantArg[[]int64](c, 1)
	keep, isConstant := constantArg[bool](c, 2)
	dims = slices.Sorted(slices.Values(dims))
	return ok && isConstant && keep && (slices.Equal(dims, []int64{2, 3}) || slices.Equal(dims, []int64{-2, -1}))
}

// isPlain reports whether a convolution has neither padding nor groups.
func isPlain(c *operatorCall) bool {
	if len(c.args) <= convolutionWeight || !c.args[convolutionWeight].isTensor() {
		return false
	}
	if at := convolutionStride + 1; at < len(c.args) && !c.args[at].isDefault() {
		padding, ok := constantArg[[]int64](c, at)
		if !ok || slices.Max(append(slices.Clone(padding), 0)) != 0 {
			return false
		}
	}
	groups, given := constantArg[int64](c, convolutionGroups)
	return convolutionGroups >= len(c.args) || given && groups == 1 || isOne(c.args[convolutionGroups])
}

// channelMean is the mean over the last two dimensions.
type channelMean struct{ operatorCall }

func (c *channelMean) run(x *cgotorch.Exec, f *frame) {
	images := c.args[0].tensor(f)
	if images == nil || images.Dim() != 4 || !images.DType().IsFloat() {
		c.operatorCall.run(x, f)
		return
	}
	call := opcall.Begin(x, meansOfChannels)
	call.Tensor(images)
	f.values[c.outs[0]] = call.Run1()
}

// pixelConvolution is a convolution of images that are expected to have one pixel.
type pixelConvolution struct{ operatorCall }

func (c *pixelConvolution) run(x *cgotorch.Exec, f *frame) {
	in, weight := c.args[0].tensor(f), c.args[convolutionWeight].tensor(f)
	if !isPixel(in) || !isPixel(weight) || in.Shape()[1] != weight.Shape()[1] {
		c.operatorCall.run(x, f)
		return
	}
	var bias *cgotorch.Tensor
	if convolutionBias < len(c.args) {
		bias = c.args[convolutionBias].tensor(f)
	}
	f.values[c.outs[0]] = x.Tidy(func() *cgotorch.Tensor {
		count, channels, to := in.Shape()[0], in.Shape()[1], weight.Shape()[0]
		out := x.Linear(x.Reshape(in, count, channels), x.Reshape(weight, to, channels), bias)
		return x.Reshape(out, count, to, 1, 1)
	})
}

// biases takes the biases out of convolutions and adds them by a kernel of this library, which is
// faster than LibTorch's sum. Both round twice.
func (f *fuser) biases() {
	for i := range f.graph.steps {
		c := f.call(i, "aten.conv2d.default")
		if c != nil && len(c.args) > convolutionBias && c.args[convolutionBias].isTensor() {
			plain := *c
			plain.args = slices.Clone(c.args)
			plain.args[convolutionBias] = constantOf(nil)
			f.graph.steps[i].act = &biasedConvolution{operatorCall: plain, bias: c.args[convolutionBias]}
			f.done.biasSums++
		}
	}
	f.look()
}

// biasedConvolution is a convolution without a bias, and the sum with a bias.
type biasedConvolution struct {
	operatorCall
	bias operand
}

func (c *biasedConvolution) reads() []*operand { return append(c.operatorCall.reads(), &c.bias) }

func (c *biasedConvolution) run(x *cgotorch.Exec, f *frame) {
	c.operatorCall.run(x, f)
	out := f.values[c.outs[0]].(*cgotorch.Tensor)
	if out.Dim() != 4 { // one image
		f.values[c.outs[0]] = x.Tidy(func() *cgotorch.Tensor {
			return x.Squeeze(affine{in: x.Unsqueeze(out, 0), bias: c.bias.tensor(f), reuse: true}.compute(x), 0)
		})
		out.Close()
		return
	}
	f.values[c.outs[0]] = affine{in: out, bias: c.bias.tensor(f), reuse: true}.compute(x)
	out.Close()
}

// squeezeExcitations makes one step of a squeeze and excitation: the mean of images, two
// convolutions with an activation between, a sigmoid, and the product with the images.
func (f *fuser) squeezeExcitations() {
	gone := map[int]bool{}
	for i := range f.graph.steps {
		product := f.call(i, "aten.mul.Tensor")
		if product == nil || len(product.args) != 2 {
			continue
		}
		for k := range product.args {
			if e, steps := f.squeezeExcitation(product, k, i, gone); e != nil {
				f.graph.steps[i].act = e
				for _, at := range steps {
					gone[at] = true
				}
				f.done.squeezeExcitations++
				break
			}
		}
	}
	f.remove(gone)
}

// squeezeExcitation returns the action for step i, a product, if argument k has the factors. It
// also returns the steps whose work the action does.
func (f *fuser) squeezeExcitation(product *operatorCall, k, i int, gone map[int]bool) (*squeezeExcitation, []int) {
	var steps []int
	at := i
	back := func(o operand) bool { // goes to the step that computes an operand of this step alone
		from, ok := f.source(o, at, gone)
		at = from
		steps = append(steps, from)
		return ok && o.isTensor()
	}
	if !back(product.args[k]) {
		return nil, nil
	}
	sigmoid := f.call(at, "aten.sigmoid.default")
	if sigmoid == nil || !back(sigmoid.args[0]) {
		return nil, nil
	}
	second, ok := f.graph.steps[at].act.(*pixelConvolution)
	if !ok || !back(second.args[0]) {
		return nil, nil
	}
	name := f.activationOf(at)
	activation, ok := f.graph.steps[at].act.(*operatorCall)
	if name == "" || !ok || !back(activation.args[0]) {
		return nil, nil
	}
	first, ok := f.graph.steps[at].act.(*pixelConvolution)
	if !ok || !back(first.args[0]) {
		return nil, nil
	}
	mean, ok := f.graph.steps[at].act.(*channelMean)
	if !ok || mean.args[0].slot != product.args[1-k].slot || !mean.args[0].isTensor() || f.writesBetween(at, i, steps...) {
		return nil, nil
	}
	bias := func(c *pixelConvolution) operand {
		if convolutionBias < len(c.args) && c.args[convolutionBias].isTensor() {
			return c.args[convolutionBias]
		}
		return constantOf(nil)
	}
	args := []operand{mean.args[0], first.args[convolutionWeight], bias(first), second.args[convolutionWeight], bias(second)}
	return &squeezeExcitation{args: args, activation: name, outs: product.outs}, steps
}

// squeezeExcitation is args[0] * sigmoid(the factors for its channels).
type squeezeExcitation struct {
	args       []operand // the images, and weight and bias of two convolutions
	activation string
	outs       []int
}

func (s *squeezeExcitation) reads() []*operand { return pointers(s.args) }
func (s *squeezeExcitation) fills() []int      { return s.outs }

func (s *squeezeExcitation) run(x *cgotorch.Exec, f *frame) {
	call := opcall.Begin(x, squeezeExcite)
	for i := range s.args {
		call.OptTensor(s.args[i].tensor(f))
	}
	call.Text(s.activation)
	f.values[s.outs[0]] = call.Run1()
}

// activationOf returns the name that streamtorch::channel_affine has for the activation of step i,
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
	case "aten.gelu.default":
		if len(c.args) < 2 || c.args[1].isDefault() || c.args[1].constant == "none" {
			return "gelu"
		}
	}
	return ""
}

// normActivations makes batch norms behind convolutions part of the activation or the sum that
// alone reads them. It leaves those with a ReLU, which goes into the convolution, unless the
// convolution has groups. A batch norm that a convolution reads becomes a kernel of its own. `own`
// is the weight of an argument that nobody else reads.
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
		a := &normActivation{name: f.activationOf(i), addend: constantOf(nil), outs: f.graph.steps[i].act.fills()}
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
		to := i
		if f.call(i, "aten.conv2d.default") != nil {
			a.name, a.outs, to = "none", n.norm.outs, n.normStep
		}
		if a.name == "" || a.name == "relu" && !grouped {
			continue
		}
		if scale, shift, ok := f.affine(x, &n, own); ok {
			a.args = []operand{n.norm.args[0], scale, shift}
			f.graph.steps[to].act = a
			gone[n.normStep] = to != n.normStep
			f.done.normActivations++
		}
	}
	f.remove(gone)
}

// affine computes what a batch norm multiplies by and adds, in float32, and writes both in the
// places of two of its tensors. It returns false and changes nothing if others read them too.
func (f *fuser) affine(x *cgotorch.Exec, n *normedConvolution, own func(c *operatorCall, i int) *storedTensor) (scale, shift operand, ok bool) {
	var all [normVar + 1]*storedTensor
	for i := normWeight; i <= normVar; i++ {
		if n.norm.args[i].slot < 0 {
			continue
		}
		if all[i] = own(n.norm, i); all[i] == nil || !all[i].tensor.DType().IsFloat() || all[i].tensor.DType() == cgotorch.Float64 {
			return scale, shift, false
		}
	}
	place := func(i, other int) int {
		if all[i] == nil {
			return other
		}
		return i
	}
	scaleAt, shiftAt := place(normWeight, normVar), place(normBias, normMean)
	double := func(i int) *cgotorch.Tensor { return x.To(all[i].tensor, cgotorch.Float64) }
	factor := x.Rsqrt(x.AddScalar(double(normVar), n.eps))
	if all[normWeight] != nil {
		factor = x.Mul(factor, double(normWeight))
	}
	offset := x.Neg(x.Mul(double(normMean), factor))
	if all[normBias] != nil {
		offset = x.Add(offset, double(normBias))
	}
	prefix := ""
	if at := strings.LastIndexByte(all[scaleAt].name, '.'); at >= 0 {
		prefix = all[scaleAt].name[:at+1]
	}
	for _, put := range []struct {
		at   int
		name string
		t    *cgotorch.Tensor
	}{{scaleAt, "weight", factor}, {shiftAt, "bias", offset}} {
		w := all[put.at]
		old := w.tensor
		w.tensor, w.name, w.parameter, w.requiresGrad = x.To(put.t, cgotorch.Float32), prefix+put.name, true, false
		old.Close()
	}
	return n.norm.args[scaleAt], n.norm.args[shiftAt], true
}

// normActivation is activation(norm + addend), where the norm is a batch norm of evaluation. Nobody
// else reads its input, the result of a convolution.
type normActivation struct {
	args    []operand // the input, the scale and the shift
	addend  operand
	inPlace bool   // the sum keeps the norm's dtype
	name    string // of the activation
	outs    []int
}

func (a *normActivation) reads() []*operand { return append(pointers(a.args), &a.addend) }
func (a *normActivation) fills() []int      { return a.outs }

func (a *normActivation) run(x *cgotorch.Exec, f *frame) {
	in := a.args[0].tensor(f)
	out := affine{in: in, scale: a.args[1].tensor(f), bias: a.args[2].tensor(f), addend: a.addend.tensor(f), activation: a.name, reuse: true}.compute(x)
	if of := in.DType(); a.inPlace && out.DType() != of {
		wide := out
		out = x.To(wide, of)
		wide.Close()
	}
	f.values[a.outs[0]] = out
}
