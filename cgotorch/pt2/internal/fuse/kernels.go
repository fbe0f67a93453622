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

// The places of arguments in the schema of aten::layer_norm.
const layerNormShape, layerNormWeight, layerNormBias, layerNormEps = 1, 2, 3, 4

// layerNorms makes layer norms over one dimension calls of this library's kernels. The layer norm
// of a sum becomes part of the sum's step. Others may read the sum too.
func (f *fuser) layerNorms() {
	gone := map[int]bool{}
	for i := range f.graph.Steps {
		norm := f.call(i, "aten.layer_norm.default")
		if norm == nil || len(norm.Args) <= layerNormShape || norm.Args[0].Slot < 0 {
			continue
		}
		shape, isConstant := constantArg[[]int64](norm, layerNormShape)
		if !isConstant || len(shape) != 1 {
			continue
		}
		a := &addedLayerNorm{args: []graph.Operand{norm.Args[0], graph.ConstantOf(nil), graph.ConstantOf(nil), graph.ConstantOf(nil)}, eps: 1e-5, outs: norm.Outs}
		for k, from := range []int{layerNormWeight, layerNormBias} {
			if from < len(norm.Args) && norm.Args[from].Slot >= 0 {
				a.args[2+k] = norm.Args[from]
			}
		}
		if layerNormEps < len(norm.Args) && !norm.Args[layerNormEps].IsDefault() {
			eps, ok := constantArg[float64](norm, layerNormEps)
			if a.eps = eps; !ok {
				continue
			}
		}
		switch at, sum := f.addedBefore(a, i); {
		case sum != nil:
			a.args[0], a.args[1], a.outs = sum.Args[0], sum.Args[1], []int{sum.Outs[0], norm.Outs[0]}
			f.graph.Steps[at].Act = a
			gone[i] = true
			f.done.layerNorms++
		case f.CUDA && f.takesBias(a, i):
			f.graph.Steps[i].Act = &biasedLayerNorm{*a}
			f.done.biases++
		default:
			f.graph.Steps[i].Act = a
			f.done.plainNorms++
		}
	}
	f.remove(gone)
}

// addedBefore returns the sum whose layer norm step i is, if the norm can be computed in the step
// of the sum: its weights are there already.
func (f *fuser) addedBefore(a *addedLayerNorm, i int) (at int, sum *graph.Call) {
	at, ok := f.filled[a.args[0].Slot]
	if !ok || f.writesBetween(at, i) {
		return 0, nil
	}
	for _, w := range a.args[2:] {
		if filled, ok := f.filled[w.Slot]; ok && w.Slot >= 0 && filled >= at {
			return 0, nil
		}
	}
	sum, parts := f.sum(at)
	if len(parts) != 2 { // no sum, or one in place
		return 0, nil
	}
	return at, sum
}

// takesBias takes the bias out of the convolution whose result, with channels behind, step i alone
// normalises. The bias becomes the second argument of the norm.
func (f *fuser) takesBias(a *addedLayerNorm, i int) bool {
	at, ok := f.source(a.args[0], i, nil)
	if !ok {
		return false
	}
	order := f.call(at, "aten.permute.default")
	if order == nil || len(order.Args) != 2 {
		return false
	}
	from, ok := f.source(order.Args[0], at, nil)
	dims, isConstant := constantArg[[]int64](order, 1)
	if !ok || !isConstant || !slices.Equal(dims, []int64{0, 2, 3, 1}) {
		return false
	}
	c := f.call(from, "aten.conv2d.default")
	if c == nil || len(c.Args) <= convolutionBias || !c.Args[convolutionBias].IsTensor() {
		return false
	}
	a.args[1], c.Args[convolutionBias] = c.Args[convolutionBias], graph.ConstantOf(nil)
	return true
}

// addedLayerNorm is a sum and the layer norm of it, or a layer norm.
type addedLayerNorm struct {
	args []graph.Operand // two addends, of which the second may be absent, the weight and the bias
	eps  float64
	outs []int // the sum, if there are two addends, and the norm
}

func (a *addedLayerNorm) Reads() []*graph.Operand { return graph.Pointers(a.args) }
func (a *addedLayerNorm) Fills() []int            { return a.outs }

func (a *addedLayerNorm) Run(x *cgotorch.Exec, f *graph.Frame) {
	left, right := a.args[0].Tensor(f), a.args[1].Tensor(f)
	if right != nil && (left.Dim() == 0 || isDense(right) && !isDense(left)) { // the operator wants the rows first
		left, right = right, left
	}
	call := opcall.Begin(x, addLayerNorm)
	call.Tensor(left)
	call.OptTensor(right)
	a.pass(call, f)
	call.RestDefault()
	sum, normed := call.Run2()
	if right == nil {
		sum.Close()
		f.Values[a.outs[0]] = normed
		return
	}
	f.Values[a.outs[0]], f.Values[a.outs[1]] = sum, normed
}

// pass passes weight, bias and eps.
func (a *addedLayerNorm) pass(call opcall.Call, f *graph.Frame) {
	for i := range a.args[2:] {
		call.OptTensor(a.args[2+i].Tensor(f))
	}
	call.Float(a.eps)
}

// isDense reports whether the elements of t follow each other in memory.
func isDense(t *cgotorch.Tensor) bool {
	want := int64(1)
	shape, strides := t.Shape(), t.Strides()
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != want {
			return false
		}
		want *= shape[i]
	}
	return true
}

// biasedLayerNorm is the layer norm of args[0] + args[1], where args[1] is one row.
type biasedLayerNorm struct{ addedLayerNorm }

func (a *biasedLayerNorm) Run(x *cgotorch.Exec, f *graph.Frame) {
	call := opcall.Begin(x, biasLayerNorm)
	call.Tensor(a.args[0].Tensor(f))
	call.Tensor(a.args[1].Tensor(f))
	a.pass(call, f)
	f.Values[a.outs[0]] = call.Run1()
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

// Note [Biases of linear layers]
//
// With many rows LibTorch's product is faster without a bias, and a kernel behind the layer adds it
// at no cost. With few rows the product with a bias is the faster one. Measured on an H100 with
// ConvNeXt and BERT in bfloat16: 784 rows were few, and 6,272 many.

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
