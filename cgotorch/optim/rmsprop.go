package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// RMSpropOptions are the settings of [NewRMSprop]. The zero value is PyTorch's default.
type RMSpropOptions struct {
	LR          float64               // learning rate, above 0; 0 means 0.01
	Alpha       cgotorch.Opt[float64] // decay of the mean of squares, in [0, 1); unset means 0.99
	Eps         float64               // added to the root of the mean of squares, above 0; 0 means 1e-8
	WeightDecay float64               // at least 0; a parameter times WeightDecay is added to its gradient
	Momentum    float64               // factor of the momentum buffer; at least 0
	Centered    bool                  // divide by an estimate of the variance, and not of the mean of squares
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewRMSprop returns an optimizer that changes the parameters of all groups by
// torch.optim.RMSprop's rule. The caller must Close the optimizer. NewRMSprop fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewRMSprop(o RMSpropOptions, groups ...Group) (*Optimizer, error) {
	r := &rmsprop{listRule: listRule{"rmsprop"}, alpha: o.Alpha.Or(0.99), eps: or(o.Eps, 1e-8), momentum: o.Momentum, centered: o.Centered}
	if err := checkNumbers(r.title, fraction("Alpha", r.alpha), least("Eps", r.eps), fromZero("Momentum", r.momentum)); err != nil {
		return nil, err
	}
	return newOptimizer(r, settings{lr: or(o.LR, 0.01), weightDecay: o.WeightDecay, masters: o.MasterWeights}, groups)
}

type rmsprop struct {
	listRule
	alpha, eps, momentum float64
	centered             bool
}

func (r *rmsprop) remembers() []string {
	names := []string{"square_avg"}
	if r.momentum > 0 {
		names = append(names, "momentum_buffer")
	}
	if r.centered {
		names = append(names, "grad_avg")
	}
	return names
}

func (r *rmsprop) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *rmsprop) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *rmsprop) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	grads, squares := b.decayed(x), b.state(0)
	moveSquares(x, squares, grads, r.alpha)
	if r.centered {
		means := b.state(len(r.remembers()) - 1)
		x.ForeachLerpInPlace(means, grads, 1-r.alpha)
		variances := x.ForeachMul(means, means)
		squares = x.ForeachSub(squares, variances, nil)
		least := 0.0 // rounding may make a variance negative, which has no root
		if b.raised[0] != nil {
			least = 0x1p-24 // the mean of squares is rounded to multiples of this number
		}
		x.ForeachClampMinInPlace(squares, least)
	}
	divisors := n.roots(squares, constant(1), r.eps)
	if r.momentum == 0 {
		n.addDivided(grads, divisors, n.mul(constant(-1), n.rate))
		return
	}
	buffers := b.state(1)
	x.ForeachMulScalarInPlace(buffers, r.momentum)
	x.ForeachAddCDivInPlace(buffers, grads, divisors, nil)
	n.addScaled(buffers, false, n.mul(constant(-1), n.rate))
}
