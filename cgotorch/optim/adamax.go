package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// AdamaxOptions are the settings of [NewAdamax]. The zero value is PyTorch's default.
type AdamaxOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.002
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the largest gradient. Unset means 0.9 and 0.999.
	Betas       cgotorch.Opt[[2]float64]
	Eps         float64 // added to magnitudes of gradients, above 0; 0 means 1e-8
	WeightDecay float64 // at least 0; 0 means none
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewAdamax returns an optimizer that changes the parameters of all groups by torch.optim.Adamax's
// rule. The caller must Close the optimizer. NewAdamax fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewAdamax(o AdamaxOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &adamax{listRule{"adamax"}, betas[0], betas[1], or(o.Eps, 1e-8)}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), least("Eps", r.eps)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 0.002, groups)
}

type adamax struct {
	listRule
	beta1, beta2, eps float64
}

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
