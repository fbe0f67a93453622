package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// AdadeltaOptions are the settings of [NewAdadelta]. The zero value is PyTorch's default.
type AdadeltaOptions struct {
	LR          float64               // factor of each change, above 0; 0 means 1
	Rho         cgotorch.Opt[float64] // decay of the two means of squares, in [0, 1); unset means 0.9
	Eps         float64               // added to the means of squares before their roots, above 0; 0 means 1e-6
	WeightDecay float64               // at least 0; a parameter times WeightDecay is added to its gradient
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewAdadelta returns an optimizer that changes the parameters of all groups by
// torch.optim.Adadelta's rule. The caller must Close the optimizer. NewAdadelta fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewAdadelta(o AdadeltaOptions, groups ...Group) (*Optimizer, error) {
	r := &adadelta{listRule{"adadelta"}, o.Rho.Or(0.9), or(o.Eps, 1e-6)}
	if err := checkNumbers(r.title, fraction("Rho", r.rho), least("Eps", r.eps)); err != nil {
		return nil, err
	}
	return newOptimizer(r, settings{lr: or(o.LR, 1), weightDecay: o.WeightDecay, masters: o.MasterWeights}, groups)
}

type adadelta struct {
	listRule
	rho, eps float64
}

func (r *adadelta) remembers() []string { return []string{"square_avg", "acc_delta"} }

func (r *adadelta) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *adadelta) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *adadelta) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	grads, squares, moved := b.decayed(x), b.state(0), b.state(1)
	moveSquares(x, squares, grads, r.rho)
	divisors := x.ForeachAddScalar(squares, r.eps)
	x.ForeachSqrtInPlace(divisors)
	deltas := x.ForeachAddScalar(moved, r.eps)
	x.ForeachSqrtInPlace(deltas)
	x.ForeachDivInPlace(deltas, divisors)
	x.ForeachMulInPlace(deltas, grads)
	moveSquares(x, moved, deltas, r.rho)
	n.addScaled(deltas, true, n.mul(constant(-1), n.rate))
}
