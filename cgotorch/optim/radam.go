package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// RAdamOptions are the settings of [NewRAdam]. The zero value is PyTorch's default.
type RAdamOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.001
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the mean of their squares. Unset means 0.9 and 0.999.
	Betas       cgotorch.Opt[[2]float64]
	Eps         float64 // added to the root of the mean of squares, above 0; 0 means 1e-8
	WeightDecay float64 // at least 0; 0 means none
	// Decoupled makes WeightDecay a factor of the parameter, as in [NewAdamW], and not a part of
	// the gradient.
	Decoupled bool
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewRAdam returns an optimizer that changes the parameters of all groups by torch.optim.RAdam's
// rule. The caller must Close the optimizer. NewRAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewRAdam(o RAdamOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &radam{listRule{"radam"}, betas[0], betas[1], or(o.Eps, 1e-8), o.Decoupled}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), least("Eps", r.eps)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 0.001, groups)
}

type radam struct {
	listRule
	beta1, beta2, eps float64
	decoupled         bool
}

func (r *radam) remembers() []string { return []string{"exp_avg", "exp_avg_sq"} }

func (r *radam) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *radam) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *radam) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	means, squares := b.moments(x, n.decoupledOr(r.decoupled), r.beta1, r.beta2)
	longest := 2/(1-r.beta2) - 1
	// Of the average so far.
	length := n.add(constant(longest), n.div(n.mul(n.mul(constant(-2), n.step), n.pow(r.beta2, n.step)), n.correction(r.beta2)))
	plain := n.div(n.mul(constant(-1), n.rate), n.correction(r.beta1))
	const least = 5
	if length.device == nil && length.host <= least {
		n.addScaled(means, false, plain)
		return
	}
	squared := n.div(n.mul(n.mul(n.add(length, constant(-4)), n.add(length, constant(-2))), constant(longest)), n.mul(constant((longest-4)*(longest-2)), length))
	rectified := n.mul(n.mul(plain, n.sqrt(squared)), n.sqrt(n.correction(r.beta2)))
	if length.device != nil {
		rectified, plain = n.split(length, least, rectified, plain)
		n.addScaled(means, false, plain)
	}
	n.addDivided(means, n.roots(squares, constant(1), r.eps), rectified)
}
