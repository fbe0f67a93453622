package optim

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Steps of float16]
//
// float16 has no 1e-8, so there Eps is 0, and a gradient of 0 is divided by 0. It does not hold the
// squares of gradients above 255 and below 0.0002 either. So a step of float16 parameters without
// masters computes in float32, if its rule divides. It copies the parameters, the gradients and the
// remembered tensors. The remembered tensors stay float16, as in PyTorch. That needs three rules:
//
//   - A gradient beyond mostGradient counts as mostGradient, so means of squares are float16.
//   - A remembered number beyond the largest float16, as Adagrad's sum, becomes that number.
//   - Where a mean of squares becomes 0, the mean of gradients becomes 0 too. Otherwise the step of
//     a later gradient of 0 would divide it by Eps alone.
//
// bfloat16 has the range of float32 and needs no copies.

// mostGradient is the root of the largest float16.
const mostGradient = 255.9375

// raises reports whether steps of float16 parameters without masters compute in float32.
func raises(r rule) bool {
	switch r.(type) {
	case *sgd, *lion, *muon: // they divide by nothing that can be small
		return false
	}
	return true
}

// raise replaces the tensors of a step by float32 copies.
func (b *batch) raise(x *cgotorch.Exec, r rule) {
	raised := func(from []*cgotorch.Tensor) []*cgotorch.Tensor {
		to := make([]*cgotorch.Tensor, len(from))
		for i, s := range b.parameters {
			to[i] = emptyLike(x, s.tensor, cgotorch.Float32)
		}
		x.ForeachCopyInPlace(to, from)
		return to
	}
	copy(b.params, raised(b.params))
	grads := raised(b.grads)
	if b.gradScale != nil {
		x.ForeachDivTensorInPlace(grads, b.gradScale)
		b.gradScale = nil
	}
	if _, ok := r.(*adamax); !ok { // it makes no squares
		bounded := x.Call("aten::_foreach_clamp_max.Scalar", grads, mostGradient)[0].([]*cgotorch.Tensor)
		x.ForeachClampMinInPlace(bounded, -mostGradient)
		x.ForeachAddInPlace(bounded, grads, 0) // adds NaN if a gradient is infinite
		grads = bounded
	}
	copy(b.grads, grads)
	for k := range r.remembers() {
		b.raised[k] = raised(b.state(k))
	}
}

// lower copies the tensors back.
func (b *batch) lower(x *cgotorch.Exec, r rule) {
	raised, names := b.raised, r.remembers()
	b.raised = [3][]*cgotorch.Tensor{}
	for k := range names {
		x.ForeachClampMaxInPlace(raised[k], largest(cgotorch.Float16))
		x.ForeachCopyInPlace(b.state(k), raised[k])
	}
	for mean, squares := range map[string]string{"exp_avg": "exp_avg_sq", "grad_avg": "square_avg"} {
		k, of := slices.Index(names, mean), slices.Index(names, squares)
		if k < 0 || of < 0 {
			continue
		}
		means := b.state(k)
		for i, t := range b.state(of) {
			x.MaskedFillInPlace(means[i], x.EqScalar(t, 0), 0)
		}
	}
	b.narrow(x)
}
