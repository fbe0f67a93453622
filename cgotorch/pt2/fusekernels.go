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
	addLayerNorm  = opcall.New("streamtorch::add_layer_norm")
	scaleChannels = opcall.New("streamtorch::scale_channels")
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
		sum := f.call(at, "aten.add.Tensor")
		if sum == nil || len(sum.args) > 2 && !isDefault(sum.args[2]) || sum.args[0].slot < 0 || sum.args[1].slot < 0 {
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
	call := opcall.Begin(x, addLayerNorm)
	for i := range a.args {
		call.OptTensor(a.args[i].tensor(f))
	}
	call.Float(a.eps)
	call.RestDefault()
	sum, normed := call.Run2()
	f.values[a.outs[0]], f.values[a.outs[1]] = sum, normed
}
