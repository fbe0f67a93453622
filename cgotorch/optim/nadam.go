package optim

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

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
	// Decoupled makes WeightDecay a factor of the parameter, as in [NewAdamW], and not a part of the
	// gradient.
	Decoupled bool
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewNAdam returns an optimizer that changes the parameters of all groups by torch.optim.NAdam's
// rule. The caller must Close the optimizer. NewNAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid. A step cannot be captured.
func NewNAdam(o NAdamOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &nadam{listRule: listRule{"nadam"}, beta1: betas[0], beta2: betas[1], eps: or(o.Eps, 1e-8), momentumDecay: or(o.MomentumDecay, 4e-3), decoupled: o.Decoupled}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), positive("Eps", r.eps),
		positive("MomentumDecay", r.momentumDecay)); err != nil {
		return nil, err
	}
	return newListOptimizer(r, settings{lr: o.LR, weightDecay: o.WeightDecay, masters: o.MasterWeights}, 0.002, groups)
}

type nadam struct {
	listRule
	beta1, beta2, eps, momentumDecay float64
	decoupled                        bool

	// The product of the first momenta, by number of steps. PyTorch keeps it in float32.
	products []float32
}

func (r *nadam) remembers() []string { return []string{"exp_avg", "exp_avg_sq"} }

// The method `momentum` returns the momentum of a step, counted from 1.
func (r *nadam) momentum(step int64) float64 {
	return r.beta1 * (1 - 0.5*math.Pow(0.96, float64(step)*r.momentumDecay))
}

// The method `product` returns the product of the momenta of the first steps.
func (r *nadam) product(steps int64) float64 {
	if len(r.products) == 0 {
		r.products = []float32{1}
	}
	for n := int64(len(r.products)); n <= steps; n++ {
		r.products = append(r.products, r.products[n-1]*float32(r.momentum(n)))
	}
	return float64(r.products[steps])
}

func (r *nadam) foreach(x *cgotorch.Exec, b *batch) {
	grads := b.decoupledOr(x, r.decoupled)
	means, squares := b.moments(x, grads, r.beta1, r.beta2)
	step := b.done + 1
	momentum, next, product := r.momentum(step), r.momentum(step+1), r.product(step)
	divisors := roots(x, squares, math.Sqrt(1-math.Pow(r.beta2, float64(step))), r.eps)
	x.ForeachAddCDivInPlace(b.params, grads, divisors, -b.lr*(1-momentum)/(1-product))
	x.ForeachAddCDivInPlace(b.params, means, divisors, -b.lr*next/(1-product*next))
}
