package optim

import "github.com/streamtorch/streamtorch/cgotorch"

// NAdamOptions are the settings of [NewNAdam]. The zero value is PyTorch's default.
type NAdamOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.002
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the mean of their squares. Unset means 0.9 and 0.999.
	Betas cgotorch.Opt[[2]float64]
	Eps   float64 // added to the root of the mean of squares, above 0; 0 means 1e-8
	// MomentumDecay is how fast the first decay comes to its full value; above 0; 0 means 0.004.
	MomentumDecay float64
	WeightDecay   float64 // at least 0; 0 means none
	// Decoupled makes WeightDecay a factor of the parameter, as in [NewAdamW], and not a part of
	// the gradient.
	Decoupled bool
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewNAdam returns an optimizer that changes the parameters of all groups by torch.optim.NAdam's
// rule. The caller must Close the optimizer. NewNAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid.
func NewNAdam(o NAdamOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &nadam{listRule: listRule{"nadam"}, beta1: betas[0], beta2: betas[1], eps: or(o.Eps, 1e-8), momentumDecay: or(o.MomentumDecay, 4e-3), decoupled: o.Decoupled}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), least("Eps", r.eps),
		positive("MomentumDecay", r.momentumDecay)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 0.002, groups)
}

type nadam struct {
	listRule
	beta1, beta2, eps, momentumDecay float64
	decoupled                        bool

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
