package optim

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Two forms of a step on lists]
//
// The rules on lists write their arithmetic once. A step has two forms:
//
//   - With numbers of the host, a quantity is a float64. The steps that are neither captured nor
//     scaled have this form, as PyTorch's steps have without capturable=True.
//   - With numbers of the device, a quantity is a tensor of float64. It has an element for each
//     parameter, or one for all. Captured steps and those of a Scaler have this form.
//
// The two forms differ only by rounding.

// quantity is a number that a step uses, such as a learning rate or a correction.
type quantity struct {
	host   float64
	device *cgotorch.Tensor // float64 of shape [] or [parameters]; nil for a number of the host
}

// stepNumbers are the numbers of one step of a rule on lists.
type stepNumbers struct {
	x    *cgotorch.Exec
	b    *batch
	rate quantity // the learning rate
	step quantity // the number of the step, from 1
}

func constant(v float64) quantity { return quantity{host: v} }

// onHost returns the numbers of a step of the first form.
func (b *batch) onHost(x *cgotorch.Exec) *stepNumbers {
	return &stepNumbers{x, b, constant(b.lr), constant(float64(b.done + 1))}
}

// onDevice counts the step on the device, and returns the numbers of a step of the second form.
func (b *batch) onDevice(x *cgotorch.Exec) *stepNumbers {
	counts := b.counts()
	x.ForeachAddScalarInPlace(counts, 1)
	n := &stepNumbers{x: x, b: b, step: quantity{device: x.To(x.Stack(counts, 0), cgotorch.Float64)}}
	if b.rate != nil {
		n.rate.device = x.To(b.rate, cgotorch.Float64)
	} else {
		n.rate.device = x.Full(cgotorch.Float64, b.lr)
	}
	return n
}

func (b *batch) counts() []*cgotorch.Tensor {
	counts := make([]*cgotorch.Tensor, len(b.parameters))
	for i, s := range b.parameters {
		counts[i] = s.count
	}
	return counts
}

func (n *stepNumbers) add(a, b quantity) quantity {
	switch {
	case a.device == nil && b.device == nil:
		return constant(a.host + b.host)
	case a.device == nil:
		return quantity{device: n.x.AddScalar(b.device, a.host)}
	case b.device == nil:
		return quantity{device: n.x.AddScalar(a.device, b.host)}
	}
	return quantity{device: n.x.Add(a.device, b.device)}
}

func (n *stepNumbers) mul(a, b quantity) quantity {
	switch {
	case a.device == nil && b.device == nil:
		return constant(a.host * b.host)
	case a.device == nil:
		return quantity{device: n.x.MulScalar(b.device, a.host)}
	case b.device == nil:
		return quantity{device: n.x.MulScalar(a.device, b.host)}
	}
	return quantity{device: n.x.Mul(a.device, b.device)}
}

func (n *stepNumbers) div(a, b quantity) quantity {
	if b.device == nil {
		if a.device == nil {
			return constant(a.host / b.host)
		}
		return quantity{device: n.x.MulScalar(a.device, 1/b.host)}
	}
	if a.device == nil {
		return quantity{device: n.x.MulScalar(n.x.Reciprocal(b.device), a.host)}
	}
	return quantity{device: n.x.Div(a.device, b.device)}
}

// rest returns 1 - a.
func (n *stepNumbers) rest(a quantity) quantity { return n.add(constant(1), n.mul(constant(-1), a)) }

func (n *stepNumbers) sqrt(a quantity) quantity {
	if a.device == nil {
		return constant(math.Sqrt(a.host))
	}
	return quantity{device: n.x.Sqrt(a.device)}
}

// pow returns base to the power of a.
func (n *stepNumbers) pow(base float64, a quantity) quantity {
	if a.device == nil {
		return constant(math.Pow(base, a.host))
	}
	return quantity{device: n.x.Call1("aten::pow.Scalar", base, a.device)}
}

// correction returns 1 - beta^step.
func (n *stepNumbers) correction(beta float64) quantity { return n.rest(n.pow(beta, n.step)) }

// split returns a where v is above the limit, and b elsewhere, each with 0 in the other places. It
// is for the second form.
func (n *stepNumbers) split(v quantity, limit float64, a, b quantity) (above, below quantity) {
	is, zeros := n.x.GtScalar(v.device, limit), n.x.ZerosLike(v.device)
	return quantity{device: n.x.Where(is, a.device, zeros)}, quantity{device: n.x.Where(is, zeros, b.device)}
}

// scale multiplies tensors by a, in place. The list has a tensor for each parameter.
func (n *stepNumbers) scale(tensors []*cgotorch.Tensor, a quantity) {
	switch {
	case a.device == nil:
		n.x.ForeachMulScalarInPlace(tensors, a.host)
	case a.device.Dim() == 0:
		n.x.ForeachMulTensorInPlace(tensors, n.x.To(a.device, tensors[0].DType()))
	default:
		n.x.ForeachMulInPlace(tensors, n.each(a, tensors[0].DType()))
	}
}

// divide divides tensors by a, in place.
func (n *stepNumbers) divide(tensors []*cgotorch.Tensor, a quantity) {
	switch {
	case a.device != nil:
		n.x.ForeachDivInPlace(tensors, n.each(a, tensors[0].DType()))
	case a.host != 1:
		n.x.ForeachDivScalarInPlace(tensors, a.host)
	}
}

// each returns a number for each parameter.
func (n *stepNumbers) each(a quantity, dtype cgotorch.DType) []*cgotorch.Tensor {
	return n.x.Unbind(n.x.To(a.device, dtype), 0)
}

// addScaled adds a*changes to the parameters. In the second form it may write into changes, if they
// are the step's own.
func (n *stepNumbers) addScaled(changes []*cgotorch.Tensor, own bool, a quantity) {
	if a.device == nil {
		n.x.ForeachAddInPlace(n.b.params, changes, a.host)
		return
	}
	if !own {
		copies := make([]*cgotorch.Tensor, len(changes))
		for i, c := range changes {
			copies[i] = n.x.EmptyLike(c)
		}
		n.x.ForeachCopyInPlace(copies, changes)
		changes = copies
	}
	n.scale(changes, a)
	n.x.ForeachAddInPlace(n.b.params, changes, 1)
}

// addDivided adds a*changes/divisors to the parameters.
func (n *stepNumbers) addDivided(changes, divisors []*cgotorch.Tensor, a quantity) {
	if a.device == nil {
		n.x.ForeachAddCDivInPlace(n.b.params, changes, divisors, a.host)
		return
	}
	n.addScaled(n.x.ForeachDiv(changes, divisors), true, a)
}

// decoupledOr returns the gradients as decayed does. If `decoupled` is set, it multiplies the
// parameters instead, and leaves the gradients.
func (n *stepNumbers) decoupledOr(decoupled bool) []*cgotorch.Tensor {
	if !decoupled {
		return n.b.decayed(n.x)
	}
	if n.b.weightDecay != 0 {
		n.scale(n.b.params, n.rest(n.mul(n.rate, constant(n.b.weightDecay))))
	}
	return n.b.grads
}

// roots returns sqrt(squares)/divisor + eps.
func (n *stepNumbers) roots(squares []*cgotorch.Tensor, divisor quantity, eps float64) []*cgotorch.Tensor {
	all := n.x.ForeachSqrt(squares)
	n.divide(all, divisor)
	n.x.ForeachAddScalarInPlace(all, eps)
	return all
}
