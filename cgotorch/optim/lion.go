package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NewLion returns an optimizer that changes each parameter by the sign of a mean of its gradients.
// The first of Betas is for the mean whose sign is the change, the second for the mean that the
// optimizer keeps. Unset means 0.9 and 0.99, and an LR of 0 means 0.0001. Weight decay is as in
// [NewAdamW]. The caller must Close the optimizer. NewLion fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
//
// Source: Chen et al., 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2.
func NewLion(o AdamOptions, groups ...Group) (*Optimizer, error) {
	r, err := o.list("lion", 1e-4, 0.99, 1e-8)
	if err != nil {
		return nil, err
	}
	return newOptimizer(&lion{r}, o.settings(), groups)
}

type lion struct{ listAdam }

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
