package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NewLAMB returns an optimizer for large batches. It divides Adam's change of a parameter, with its
// weight decay, by the norm of the change. Then it multiplies by the norm of the parameter. An Eps
// of 0 means 1e-6. The caller must Close the optimizer. NewLAMB fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
//
// Source: You et al., 2020, Large Batch Optimization for Deep Learning, algorithm 2.
func NewLAMB(o AdamOptions, groups ...Group) (*Optimizer, error) {
	r, err := o.list("lamb", 0.001, 0.999, 1e-6)
	if err != nil {
		return nil, err
	}
	return newOptimizer(&lamb{r}, o.settings(), groups)
}

type lamb struct{ listAdam }

func (r *lamb) remembers() []string { return []string{"exp_avg", "exp_avg_sq"} }

func (r *lamb) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *lamb) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *lamb) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	means, squares := b.moments(x, b.grads, r.beta1, r.beta2)
	divisors := n.roots(squares, n.sqrt(n.correction(r.beta2)), r.eps)
	changes := x.ForeachDiv(means, divisors)
	n.divide(changes, n.correction(r.beta1))
	if b.weightDecay != 0 {
		x.ForeachAddInPlace(changes, b.params, b.weightDecay)
	}
	norms, lengths := x.Stack(x.ForeachNorm(b.params, 2), 0), x.Stack(x.ForeachNorm(changes, 2), 0)
	both := x.LogicalAnd(x.GtScalar(norms, 0), x.GtScalar(lengths, 0))
	ratios := x.Unbind(x.Where(both, x.Div(norms, lengths), x.OnesLike(norms)), 0)
	x.ForeachMulInPlace(changes, ratios)
	n.addScaled(changes, true, n.mul(constant(-1), n.rate))
}
