package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// LionOptions are the settings of [NewLion]. The zero value is the default of the paper's authors.
type LionOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.0001
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients whose sign is
	// the change. The second is for the mean that the optimizer keeps. Unset means 0.9 and 0.99.
	Betas       cgotorch.Opt[[2]float64]
	WeightDecay float64 // at least 0; each step multiplies a parameter by 1 - WeightDecay*LR
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewLion returns an optimizer that changes each parameter by the sign of a mean of its gradients.
// The caller must Close the optimizer. NewLion fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
//
// Source: Chen et al., 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2.
func NewLion(o LionOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.99})
	r := &lion{listRule{"lion"}, betas[0], betas[1]}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 1e-4, groups)
}

type lion struct {
	listRule
	beta1, beta2 float64
}

func (r *lion) remembers() []string { return []string{"exp_avg"} }

func (r *lion) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *lion) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *lion) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	means := b.state(0)
	signs := make([]*cgotorch.Tensor, len(means))
	for i, m := range means {
		signs[i] = x.Sign(x.Lerp(m, b.grads[i], 1-r.beta1))
	}
	n.decoupledOr(true)
	n.addScaled(signs, true, n.mul(constant(-1), n.rate))
	x.ForeachLerpInPlace(means, b.grads, 1-r.beta2)
}
