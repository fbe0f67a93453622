package fuse

import (
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
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
	for i := range f.graph.Steps {
		act := &f.graph.Steps[i].Act
		if c := f.call(i, "aten.adaptive_avg_pool2d.default"); c != nil && len(c.Args) == 2 {
			if size, ok := constantArg[[]int64](c, 1); ok && (slices.Equal(size, []int64{1, 1}) || slices.Equal(size, []int64{1})) {
				pixel[c.Outs[0]] = true
				*act = &channelMean{*c}
				f.done.means++
			}
		}
		if c := f.call(i, "aten.mean.dim"); c != nil && isMeanOfPixels(c) {
			pixel[c.Outs[0]] = true
			*act = &channelMean{*c}
			f.done.means++
		}
		if c := f.call(i, "aten.conv2d.default"); c != nil && c.Args[0].Slot >= 0 && pixel[c.Args[0].Slot] && isPlain(c) {
			pixel[c.Outs[0]] = true
			*act = &pixelConvolution{*c}
			f.done.pixelConvolutions++
		}
		if c, ok := (*act).(*graph.Call); ok && f.activationOf(i) != "" && pixel[c.Args[0].Slot] {
			pixel[c.Outs[0]] = true
		}
	}
}

// isMeanOfPixels reports whether a mean is that over the last two dimensions of images.
func isMeanOfPixels(c *graph.Call) bool {
	if len(c.Args) < 3 || len(c.Args) > 3 && c.Args[3].Constant != cgotorch.Default && (c.Args[3].Slot >= 0 || c.Args[3].Constant != nil) {
		return false // it has a dtype of its own
	}
	dims, ok := constantArg[[]int64](c, 1)
	keep, isConstant := constantArg[bool](c, 2)
	dims = slices.Sorted(slices.Values(dims))
	return ok && isConstant && keep && (slices.Equal(dims, []int64{2, 3}) || slices.Equal(dims, []int64{-2, -1}))
}

// isPlain reports whether a convolution has neither padding nor groups.
func isPlain(c *graph.Call) bool {
	if len(c.Args) <= convolutionWeight || !c.Args[convolutionWeight].IsTensor() {
		return false
	}
	if at := convolutionStride + 1; at < len(c.Args) && !c.Args[at].IsDefault() {
		padding, ok := constantArg[[]int64](c, at)
		if !ok || slices.Max(append(slices.Clone(padding), 0)) != 0 {
			return false
		}
	}
	groups, given := constantArg[int64](c, convolutionGroups)
	return convolutionGroups >= len(c.Args) || given && groups == 1 || isOne(c.Args[convolutionGroups])
}

// channelMean is the mean over the last two dimensions.
type channelMean struct{ graph.Call }

func (c *channelMean) Run(x *cgotorch.Exec, f *graph.Frame) {
	images := c.Args[0].Tensor(f)
	if images == nil || images.Dim() != 4 || !images.DType().IsFloat() {
		c.Call.Run(x, f)
		return
	}
	call := opcall.Begin(x, meansOfChannels)
	call.Tensor(images)
	f.Values[c.Outs[0]] = call.Run1()
}

// pixelConvolution is a convolution of images that are expected to have one pixel.
type pixelConvolution struct{ graph.Call }

func (c *pixelConvolution) Run(x *cgotorch.Exec, f *graph.Frame) {
	in, weight := c.Args[0].Tensor(f), c.Args[convolutionWeight].Tensor(f)
	if !isPixel(in) || !isPixel(weight) || in.Shape()[1] != weight.Shape()[1] {
		c.Call.Run(x, f)
		return
	}
	var bias *cgotorch.Tensor
	if convolutionBias < len(c.Args) {
		bias = c.Args[convolutionBias].Tensor(f)
	}
	f.Values[c.Outs[0]] = x.Tidy(func() *cgotorch.Tensor {
		count, channels, to := in.Shape()[0], in.Shape()[1], weight.Shape()[0]
		out := x.Linear(x.Reshape(in, count, channels), x.Reshape(weight, to, channels), bias)
		return x.Reshape(out, count, to, 1, 1)
	})
}

// biases takes the biases out of convolutions and adds them by a kernel of this library, which is
// faster than LibTorch's sum. Both round twice.
func (f *fuser) biases() {
	for i := range f.graph.Steps {
		c := f.call(i, "aten.conv2d.default")
		if c != nil && len(c.Args) > convolutionBias && c.Args[convolutionBias].IsTensor() {
			plain := *c
			plain.Args = slices.Clone(c.Args)
			plain.Args[convolutionBias] = graph.ConstantOf(nil)
			f.graph.Steps[i].Act = &biasedConvolution{Call: plain, bias: c.Args[convolutionBias]}
			f.done.biasSums++
		}
	}
	f.look()
}

// biasedConvolution is a convolution without a bias, and the sum with a bias.
type biasedConvolution struct {
	graph.Call
	bias graph.Operand
}

func (c *biasedConvolution) Reads() []*graph.Operand { return append(c.Call.Reads(), &c.bias) }

func (c *biasedConvolution) Run(x *cgotorch.Exec, f *graph.Frame) {
	c.Call.Run(x, f)
	out := f.Values[c.Outs[0]].(*cgotorch.Tensor)
	if out.Dim() != 4 { // one image
		f.Values[c.Outs[0]] = x.Tidy(func() *cgotorch.Tensor {
			return x.Squeeze(affine{in: x.Unsqueeze(out, 0), bias: c.bias.Tensor(f), reuse: true}.compute(x), 0)
		})
		out.Close()
		return
	}
	f.Values[c.Outs[0]] = affine{in: out, bias: c.bias.Tensor(f), reuse: true}.compute(x)
	out.Close()
}

// squeezeExcitations makes one step of a squeeze and excitation: the mean of images, two
// convolutions with an activation between, a sigmoid, and the product with the images.
func (f *fuser) squeezeExcitations() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		product := f.call(i, "aten.mul.Tensor")
		if product == nil || len(product.Args) != 2 {
			continue
		}
		for k := range product.Args {
			if e, steps := f.squeezeExcitation(product, k, i, gone); e != nil {
				f.graph.Steps[i].Act = e
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
func (f *fuser) squeezeExcitation(product *graph.Call, k, i int, gone map[int]bool) (*squeezeExcitation, []int) {
	var steps []int
	at := i
	back := func(o graph.Operand) bool { // goes to the step that computes an operand of this step alone
		from, ok := f.source(o, at, gone)
		at = from
		steps = append(steps, from)
		return ok && o.IsTensor()
	}
	if !back(product.Args[k]) {
		return nil, nil
	}
	sigmoid := f.call(at, "aten.sigmoid.default")
	if sigmoid == nil || !back(sigmoid.Args[0]) {
		return nil, nil
	}
	second, ok := f.graph.Steps[at].Act.(*pixelConvolution)
	if !ok || !back(second.Args[0]) {
		return nil, nil
	}
	name := f.activationOf(at)
	activation, ok := f.graph.Steps[at].Act.(*graph.Call)
	if name == "" || !ok || !back(activation.Args[0]) {
		return nil, nil
	}
	first, ok := f.graph.Steps[at].Act.(*pixelConvolution)
	if !ok || !back(first.Args[0]) {
		return nil, nil
	}
	mean, ok := f.graph.Steps[at].Act.(*channelMean)
	if !ok || mean.Args[0].Slot != product.Args[1-k].Slot || !mean.Args[0].IsTensor() || f.writesBetween(at, i, steps...) {
		return nil, nil
	}
	bias := func(c *pixelConvolution) graph.Operand {
		if convolutionBias < len(c.Args) && c.Args[convolutionBias].IsTensor() {
			return c.Args[convolutionBias]
		}
		return graph.ConstantOf(nil)
	}
	args := []graph.Operand{mean.Args[0], first.Args[convolutionWeight], bias(first), second.Args[convolutionWeight], bias(second)}
	return &squeezeExcitation{args: args, activation: name, outs: product.Outs}, steps
}

// squeezeExcitation is args[0] * sigmoid(the factors for its channels).
type squeezeExcitation struct {
	args       []graph.Operand // the images, and weight and bias of two convolutions
	activation string
	outs       []int
}

func (s *squeezeExcitation) Reads() []*graph.Operand { return graph.Pointers(s.args) }
func (s *squeezeExcitation) Fills() []int            { return s.outs }

func (s *squeezeExcitation) Run(x *cgotorch.Exec, f *graph.Frame) {
	call := opcall.Begin(x, squeezeExcite)
	for i := range s.args {
		call.OptTensor(s.args[i].Tensor(f))
	}
	call.Text(s.activation)
	f.Values[s.outs[0]] = call.Run1()
}

// activationOf returns the name that streamtorch::channel_affine has for the activation of step i,
// or "".
func (f *fuser) activationOf(i int) string {
	c, ok := f.graph.Steps[i].Act.(*graph.Call)
	if !ok || !c.Single {
		return ""
	}
	is := func(n int, want float64) bool {
		v, err := expr.ToFloat(c.Args[n].Constant)
		return err == nil && c.Args[n].Slot < 0 && v == want
	}
	switch f.graph.Steps[i].Node.Operator {
	case "aten.relu.default", "aten.relu_.default":
		return "relu"
	case "aten.relu6.default", "aten.relu6_.default":
		return "relu6"
	case "aten.hardtanh.default", "aten.hardtanh_.default":
		if len(c.Args) == 3 && is(1, 0) && is(2, 6) {
			return "relu6"
		}
	case "aten.silu.default", "aten.silu_.default":
		return "silu"
	case "aten.hardswish.default", "aten.hardswish_.default":
		return "hardswish"
	case "aten.gelu.default":
		if len(c.Args) < 2 || c.Args[1].IsDefault() || c.Args[1].Constant == "none" {
			return "gelu"
		}
	}
	return ""
}

// normActivations makes batch norms behind convolutions part of the activation or the sum that
// alone reads them. It leaves those with a ReLU, which goes into the convolution, unless the
// convolution has groups. A batch norm that a convolution reads becomes a kernel of its own. `own`
// is the weight of an argument that nobody else reads.
func (f *fuser) normActivations(x *cgotorch.Exec, own func(c *graph.Call, i int) *graph.Variable) {
	readers := map[int]int{} // by slot: the last step that reads it
	for i := range f.graph.Steps {
		for _, slot := range graph.SlotsOf(f.graph.Steps[i].Act.Reads()...) {
			readers[slot] = i
		}
	}
	gone := map[int]bool{}
	for _, n := range f.norms() {
		out := n.norm.Outs[0]
		i, ok := readers[out]
		if !ok || f.read[out] != 1 || f.graph.Steps[n.step].Node.Operator != "aten.conv2d.default" || f.writesBetween(n.normStep, i) {
			continue
		}
		groups, given := constantArg[int64](n.convolution, convolutionGroups)
		grouped := given && groups != 1
		a := &normActivation{name: f.activationOf(i), addend: graph.ConstantOf(nil), outs: f.graph.Steps[i].Act.Fills()}
		sum, parts := f.sum(i)
		for _, k := range parts {
			if sum.Args[k].Slot != out {
				continue
			}
			behind, read := readers[sum.Outs[0]]
			if isReLU := read && f.read[sum.Outs[0]] == 1 && f.activationOf(behind) == "relu"; !isReLU {
				a.name, a.addend, a.inPlace = "none", sum.Args[1-k], len(parts) == 1
			}
		}
		to := i
		if f.call(i, "aten.conv2d.default") != nil {
			a.name, a.outs, to = "none", n.norm.Outs, n.normStep
		}
		if a.name == "" || a.name == "relu" && !grouped {
			continue
		}
		if scale, shift, ok := f.affine(x, &n, own); ok {
			a.args = []graph.Operand{n.norm.Args[0], scale, shift}
			f.graph.Steps[to].Act = a
			gone[n.normStep] = to != n.normStep
			f.done.normActivations++
		}
	}
	f.remove(gone)
}

// affine computes what a batch norm multiplies by and adds, in float32, and writes both in the
// places of two of its tensors. It returns false and changes nothing if others read them too.
func (f *fuser) affine(x *cgotorch.Exec, n *normedConvolution, own func(c *graph.Call, i int) *graph.Variable) (scale, shift graph.Operand, ok bool) {
	var all [normVar + 1]*graph.Variable
	for i := normWeight; i <= normVar; i++ {
		if n.norm.Args[i].Slot < 0 {
			continue
		}
		if all[i] = own(n.norm, i); all[i] == nil || !all[i].Tensor.DType().IsFloat() || all[i].Tensor.DType() == cgotorch.Float64 {
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
	double := func(i int) *cgotorch.Tensor { return x.To(all[i].Tensor, cgotorch.Float64) }
	factor := x.Rsqrt(x.AddScalar(double(normVar), n.eps))
	if all[normWeight] != nil {
		factor = x.Mul(factor, double(normWeight))
	}
	offset := x.Neg(x.Mul(double(normMean), factor))
	if all[normBias] != nil {
		offset = x.Add(offset, double(normBias))
	}
	prefix := ""
	if at := strings.LastIndexByte(all[scaleAt].Name, '.'); at >= 0 {
		prefix = all[scaleAt].Name[:at+1]
	}
	for _, put := range []struct {
		at   int
		name string
		t    *cgotorch.Tensor
	}{{scaleAt, "weight", factor}, {shiftAt, "bias", offset}} {
		w := all[put.at]
		old := w.Tensor
		w.Tensor, w.Name, w.Parameter, w.RequiresGrad = x.To(put.t, cgotorch.Float32), prefix+put.name, true, false
		old.Close()
	}
	return n.norm.Args[scaleAt], n.norm.Args[shiftAt], true
}

// normActivation is activation(norm + addend), where the norm is a batch norm of evaluation. Nobody
// else reads its input, the result of a convolution.
type normActivation struct {
	args    []graph.Operand // the input, the scale and the shift
	addend  graph.Operand
	inPlace bool   // the sum keeps the norm's dtype
	name    string // of the activation
	outs    []int
}

func (a *normActivation) Reads() []*graph.Operand { return append(graph.Pointers(a.args), &a.addend) }
func (a *normActivation) Fills() []int            { return a.outs }

func (a *normActivation) Run(x *cgotorch.Exec, f *graph.Frame) {
	in := a.args[0].Tensor(f)
	out := affine{in: in, scale: a.args[1].Tensor(f), bias: a.args[2].Tensor(f), addend: a.addend.Tensor(f), activation: a.name, reuse: true}.compute(x)
	if of := in.DType(); a.inPlace && out.DType() != of {
		wide := out
		out = x.To(wide, of)
		wide.Close()
	}
	f.Values[a.outs[0]] = out
}
