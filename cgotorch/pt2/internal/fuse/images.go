package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
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
	c := &chain{fuser: f, gone: gone, at: i}
	if !c.step(product.Args[k]) {
		return nil, nil
	}
	sigmoid := f.call(c.at, "aten.sigmoid.default")
	if sigmoid == nil || !c.step(sigmoid.Args[0]) {
		return nil, nil
	}
	second, ok := f.graph.Steps[c.at].Act.(*pixelConvolution)
	if !ok || !c.step(second.Args[0]) {
		return nil, nil
	}
	name := f.activationOf(c.at)
	activation, ok := f.graph.Steps[c.at].Act.(*graph.Call)
	if name == "" || !ok || !c.step(activation.Args[0]) {
		return nil, nil
	}
	first, ok := f.graph.Steps[c.at].Act.(*pixelConvolution)
	if !ok || !c.step(first.Args[0]) {
		return nil, nil
	}
	mean, ok := f.graph.Steps[c.at].Act.(*channelMean)
	if !ok || mean.Args[0].Slot != product.Args[1-k].Slot || !mean.Args[0].IsTensor() || f.writesBetween(c.at, i, c.steps...) {
		return nil, nil
	}
	bias := func(p *pixelConvolution) graph.Operand {
		if convolutionBias < len(p.Args) && p.Args[convolutionBias].IsTensor() {
			return p.Args[convolutionBias]
		}
		return graph.ConstantOf(nil)
	}
	args := []graph.Operand{mean.Args[0], first.Args[convolutionWeight], bias(first), second.Args[convolutionWeight], bias(second)}
	return &squeezeExcitation{args: args, activation: name, outs: product.Outs}, c.steps
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
