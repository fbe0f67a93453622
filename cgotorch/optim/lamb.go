package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// LAMBOptions are the settings of [NewLAMB]. The zero value is the default of
// the paper's authors.
type LAMBOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.001
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the mean of their squares. Unset means 0.9 and 0.999.
	Betas       cgotorch.Opt[[2]float64]
	Eps         float64 // added to the root of the mean of squares, above 0; 0 means 1e-6
	WeightDecay float64 // at least 0; 0 means none
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewLAMB returns an optimizer for large batches. It divides Adam's change of a parameter, with its
// weight decay, by the norm of the change. Then it multiplies by the norm of the parameter.
// The caller must Close the optimizer. NewLAMB fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
//
// Source: You et al., 2020, Large Batch Optimization for Deep Learning, algorithm 2.
func NewLAMB(o LAMBOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &lamb{listRule{"lamb"}, betas[0], betas[1], or(o.Eps, 1e-6)}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), least("Eps", r.eps)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 0.001, groups)
}

type lamb struct {
	listRule
	beta1, beta2, eps float64
}

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
