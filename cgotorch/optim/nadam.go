package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NewNAdam returns an optimizer that changes the parameters of all groups by torch.optim.NAdam's
// rule. An LR of 0 means 0.002. The caller must Close the optimizer. NewNAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewNAdam(o AdamOptions, groups ...Group) (*Optimizer, error) {
	r, err := o.list("nadam", 0.002, 0.999, 1e-8)
	decay := or(o.MomentumDecay, 4e-3)
	if err == nil {
		err = checkNumbers("nadam", positive("MomentumDecay", decay))
	}
	if err != nil {
		return nil, err
	}
	return newOptimizer(&nadam{listAdam: r, momentumDecay: decay, decoupled: o.Decoupled}, o.settings(), groups)
}

type nadam struct {
	listAdam
	momentumDecay float64
	decoupled     bool

	products []float32 // of the first momenta, by number of steps; PyTorch keeps them in float32
}

func (r *nadam) remembers() []string { return []string{"exp_avg", "exp_avg_sq"} }

// momentum returns the momentum of a step, counted from 1.
func (r *nadam) momentum(n *stepNumbers, step quantity) quantity {
	return n.mul(constant(r.beta1), n.rest(n.mul(constant(0.5), n.pow(0.96, n.mul(step, constant(r.momentumDecay))))))
}

// product returns the product of the momenta up to this step.
func (r *nadam) product(n *stepNumbers) quantity {
	if n.step.device == nil {
		return constant(r.hostProduct(int64(n.step.host)))
	}
	length := int64(1) // in float32 the products become 0, and from there on all are equal
	for length < 1<<20 && r.hostProduct(length) > 0 {
		length++
	}
	steps := quantity{device: n.x.Arange(cgotorch.Float64, 1, length+1, nil)}
	products := n.x.CumProd(r.momentum(n, steps).device, 0)
	at := n.x.Clamp(n.x.To(n.step.device, cgotorch.Int64), 1, length)
	return quantity{device: n.x.Take(products, n.x.AddScalar(at, -1))}
}

// hostProduct is product for a step counted by the host.
func (r *nadam) hostProduct(steps int64) float64 {
	if len(r.products) == 0 {
		r.products = []float32{1}
	}
	for i := int64(len(r.products)); i <= steps; i++ {
		momentum := r.momentum(&stepNumbers{}, constant(float64(i))).host
		r.products = append(r.products, r.products[i-1]*float32(momentum))
	}
	return float64(r.products[steps])
}

func (r *nadam) foreach(x *cgotorch.Exec, b *batch) { r.change(x, b, b.onHost(x)) }
func (r *nadam) fused(x *cgotorch.Exec, b *batch)   { listFused(x, b, r) }

func (r *nadam) change(x *cgotorch.Exec, b *batch, n *stepNumbers) {
	grads := n.decoupledOr(r.decoupled)
	means, squares := b.moments(x, grads, r.beta1, r.beta2)
	momentum, next, product := r.momentum(n, n.step), r.momentum(n, n.add(n.step, constant(1))), r.product(n)
	divisors := n.roots(squares, n.sqrt(n.correction(r.beta2)), r.eps)
	down := n.mul(constant(-1), n.rate)
	n.addDivided(grads, divisors, n.div(n.mul(down, n.rest(momentum)), n.rest(product)))
	n.addDivided(means, divisors, n.div(n.mul(down, next), n.rest(n.mul(product, next))))
}
