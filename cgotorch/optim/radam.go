package optim

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RAdamOptions are the settings of [NewRAdam]. The zero value is PyTorch's default.
type RAdamOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.001
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the mean of their squares. Unset means 0.9 and 0.999.
	Betas       cgotorch.Opt[[2]float64]
	Eps         float64 // added to the root of the mean of squares, above 0; 0 means 1e-8
	WeightDecay float64 // at least 0; 0 means none
	// Decoupled makes WeightDecay a factor of the parameter, as in [NewAdamW], and not a part of the
	// gradient.
	Decoupled bool
	// MasterWeights keeps a float32 copy of each float16 or bfloat16 parameter, as in [SGDOptions].
	MasterWeights bool
}

// NewRAdam returns an optimizer that changes the parameters of all groups by torch.optim.RAdam's
// rule. The caller must Close the optimizer. NewRAdam fails with
// [cgotorch.ErrInvalidArgument] if an option or a group is not valid. A step cannot be captured.
func NewRAdam(o RAdamOptions, groups ...Group) (*Optimizer, error) {
	betas := o.Betas.Or([2]float64{0.9, 0.999})
	r := &radam{listRule{"radam"}, betas[0], betas[1], or(o.Eps, 1e-8), o.Decoupled}
	if err := checkNumbers(r.title, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), positive("Eps", r.eps)); err != nil {
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

func (r *radam) foreach(x *cgotorch.Exec, b *batch) {
	means, squares := b.moments(x, b.decoupledOr(x, r.decoupled), r.beta1, r.beta2)
	step := float64(b.done + 1)
	correction1, correction2 := 1-math.Pow(r.beta1, step), 1-math.Pow(r.beta2, step)
	longest := 2/(1-r.beta2) - 1
	length := longest - 2*step*math.Pow(r.beta2, step)/correction2 // of the average so far
	if length <= 5 {
		x.ForeachAddInPlace(b.params, means, -b.lr/correction1)
		return
	}
	rectified := math.Sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
	x.ForeachAddCDivInPlace(b.params, means, roots(x, squares, 1, r.eps), -b.lr*rectified*math.Sqrt(correction2)/correction1)
}
