package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NewAdamax returns an optimizer that changes the parameters of all groups by torch.optim.Adamax's
// rule. The second of Betas is for the largest gradient. An LR of 0 means 0.002. The caller must
// Close the optimizer. NewAdamax fails with [cgotorch.ErrInvalidArgument] if an option or a group
// is not valid.
func NewAdamax(o AdamOptions, groups ...Group) (*Optimizer, error) {
	r, err := o.list("adamax", 0.002, 0.999, 1e-8)
	if err != nil {
		return nil, err
	}
	return newOptimizer(&adamax{r}, o.settings(), groups)
}

type adamax struct{ listAdam }

func (r *adamax) remembers() []string { return []string{"exp_avg", "exp_inf"} }

func (r *adamax) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *adamax) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *adamax) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	grads, means, largest := b.decayed(x), b.state(0), b.state(1)
	x.ForeachLerpInPlace(means, grads, 1-r.beta1)
	x.ForeachMulScalarInPlace(largest, r.beta2)
	magnitudes := make([]*cgotorch.Tensor, len(grads))
	for i, g := range grads {
		magnitudes[i] = x.Abs(g)
	}
	x.ForeachAddScalarInPlace(magnitudes, r.eps)
	x.ForeachMaximumInPlace(largest, magnitudes)
	n.addDivided(means, largest, n.div(n.mul(constant(-1), n.rate), n.correction(r.beta1)))
}
