package fuse

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

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

func (a *addedLayerNorm) Fills() []int { return a.outs }

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
