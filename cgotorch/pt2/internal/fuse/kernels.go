package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

var (
	// The pools have the arguments of LibTorch's.
	pools = map[string]opcall.Operator{
		"aten.max_pool2d.default": opcall.New("streamtorch::max_pool2d"), "aten.avg_pool2d.default": opcall.New("streamtorch::avg_pool2d"),
	}
	addLayerNorm  = opcall.New("streamtorch::add_layer_norm")
	biasLayerNorm = opcall.New("streamtorch::bias_layer_norm")
	scaleChannels = opcall.New("streamtorch::scale_channels")
	addcmul       = opcall.New("aten::addcmul")
)

// kernels makes steps call operators of this library. See Note [Fusing a program].
func (f *fuser) kernels() {
	for i := range f.graph.Steps {
		if c := f.call(i, "aten.max_pool2d.default", "aten.avg_pool2d.default"); c != nil {
			c.Op = pools[f.graph.Steps[i].Node.Operator]
			f.done.pools++
		}
	}
	f.products()
	f.layerNorms()
	f.scaledSums()
	if f.CUDA {
		f.linearActivations()
	}
	f.attentions()
}

// products makes products with factors for channels. A sigmoid of the factors that nobody else
// reads becomes part of the product.
func (f *fuser) products() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		c := f.call(i, "aten.mul.Tensor")
		if c == nil || len(c.Args) != 2 {
			continue
		}
		for k := range c.Args {
			if !f.isFactor(&c.Args[k]) || !c.Args[1-k].IsTensor() {
				continue
			}
			p := &channelProduct{Call: *c, sigmoid: -1}
			at, ok := f.source(c.Args[k], i, gone)
			if s := f.call(at, "aten.sigmoid.default"); ok && s != nil && s.Args[0].IsTensor() {
				p.Args, p.sigmoid = slices.Clone(c.Args), k
				p.Args[k] = s.Args[0]
				gone[at] = true
			}
			f.graph.Steps[i].Act = p
			f.done.products++
			break
		}
	}
	f.remove(gone)
}

// isFactor reports whether an operand may be the factors of squeeze and excitation.
func (f *fuser) isFactor(o *graph.Operand) bool {
	at, ok := f.filled[o.Slot]
	return ok && o.Slot >= 0 && f.call(at, "aten.sigmoid.default", "aten.sigmoid_.default", "aten.hardsigmoid.default", "aten.hardsigmoid_.default") != nil
}

// channelProduct is a product. If one side is [N, C, 1, 1] and the other [N, C, H, W], it is that
// of images and a factor for each channel.
type channelProduct struct {
	graph.Call
	sigmoid int // the sigmoid of this argument is the factor; -1: there is no sigmoid
}

func (c *channelProduct) Run(x *cgotorch.Exec, f *graph.Frame) {
	images, factors, sigmoid := c.Args[0].Tensor(f), c.Args[1].Tensor(f), c.sigmoid == 1
	if isPixel(images) && c.sigmoid != 1 || c.sigmoid == 0 {
		images, factors, sigmoid = factors, images, c.sigmoid == 0
	}
	if !isPixel(factors) || images == nil || images.Dim() != 4 {
		if !sigmoid {
			c.Call.Run(x, f)
			return
		}
		factors = x.Sigmoid(factors)
		f.Values[c.Outs[0]] = x.Mul(images, factors)
		factors.Close()
		return
	}
	call := opcall.Begin(x, scaleChannels)
	call.Tensor(images)
	call.Tensor(factors)
	call.Bool(sigmoid)
	f.Values[c.Outs[0]] = call.Run1()
}

// isPixel reports whether t is [N, C, 1, 1].
func isPixel(t *cgotorch.Tensor) bool {
	if t == nil || t.Dim() != 4 {
		return false
	}
	shape := t.Shape()
	return shape[2] == 1 && shape[3] == 1
}

// scaledSums makes a product part of the sum that alone reads it.
func (f *fuser) scaledSums() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		sum, parts := f.sum(i)
		for _, k := range parts {
			from, ok := f.source(sum.Args[k], i, gone)
			if !ok {
				continue
			}
			if c := f.call(from, "aten.mul.Tensor"); c != nil && c.Args[0].IsTensor() && c.Args[1].IsTensor() {
				s := &scaledSum{args: []graph.Operand{sum.Args[1-k], c.Args[0], c.Args[1]}, shift: graph.ConstantOf(nil), inPlace: len(parts) == 1, outs: sum.Outs}
				f.takeLinearBias(s, from)
				f.graph.Steps[i].Act = s
				gone[from] = true
				f.done.scaledSums++
				break
			}
		}
	}
	f.remove(gone)
}

// scaledSum is args[0] + args[1] * args[2]. With a shift, args[1] is the result of a linear layer
// that may postpone its bias, and nobody else reads the result.
type scaledSum struct {
	args    []graph.Operand
	shift   graph.Operand // the bias, a number for each place of the second dimension of args[1]; it may be absent
	layer   int           // the slot of the layer's result
	inPlace bool          // the sum keeps the product's dtype
	outs    []int
}

func (s *scaledSum) Reads() []*graph.Operand { return append(graph.Pointers(s.args), &s.shift) }
func (s *scaledSum) Fills() []int            { return s.outs }

func (s *scaledSum) Run(x *cgotorch.Exec, f *graph.Frame) {
	other, a, b, shift := s.args[0].Tensor(f), s.args[1].Tensor(f), s.args[2].Tensor(f), s.shift.Tensor(f)
	if shift != nil && f.Postponed[s.layer] {
		if other != nil && b != nil && a.DType().IsFloat() && a.DType() == b.DType() && a.DType() == other.DType() && isOfChannels(b, a) {
			f.Values[s.outs[0]] = affine{in: a, shift: shift, scale: b, addend: other, reuse: true}.compute(x)
			return
		}
		of := a.DType()
		a = x.Tidy(func() *cgotorch.Tensor { return x.To(x.Add(a, x.Reshape(shift, -1, 1, 1)), of) })
		defer a.Close()
	}
	if other == nil || a == nil || b == nil || !a.DType().IsFloat() || a.DType() != b.DType() || a.DType() != other.DType() {
		product := x.Mul(a, b)
		if s.inPlace {
			x.AddInPlace(product, other).Close()
			f.Values[s.outs[0]] = product
			return
		}
		f.Values[s.outs[0]] = x.Add(other, product)
		product.Close()
		return
	}
	if isOfChannels(a, b) {
		a, b = b, a
	}
	if isOfChannels(b, a) {
		f.Values[s.outs[0]] = affine{in: a, scale: b, addend: other}.compute(x)
		return
	}
	call := opcall.Begin(x, addcmul)
	call.Tensor(other)
	call.Tensor(a)
	call.Tensor(b)
	call.RestDefault()
	f.Values[s.outs[0]] = call.Run1()
}
