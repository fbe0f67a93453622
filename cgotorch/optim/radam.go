package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NewRAdam returns an optimizer that changes the parameters of all groups by torch.optim.RAdam's
// rule. The caller must Close the optimizer. NewRAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewRAdam(o AdamOptions, groups ...Group) (*Optimizer, error) {
	r, err := o.list("radam", 0.001, 0.999, 1e-8)
	if err != nil {
		return nil, err
	}
	return newOptimizer(&radam{r, o.Decoupled}, o.settings(), groups)
}

type radam struct {
	listAdam
	decoupled bool
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
