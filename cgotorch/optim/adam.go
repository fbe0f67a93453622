package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// AdamOptions are the settings of [NewAdam], [NewAdamW], [NewAdamax], [NewLAMB], [NewLion],
// [NewNAdam] and [NewRAdam]. The zero value is PyTorch's default, or that of the paper's authors.
type AdamOptions struct {
	LR float64 // learning rate, above 0; 0 means 0.001, or what the function says
	// Betas are two decays, each in [0, 1). The first is for the mean of gradients, the second for
	// the mean of their squares. Unset means 0.9 and 0.999, or what the function says.
	Betas         cgotorch.Opt[[2]float64]
	Eps           float64 // added to the root of the mean of squares, above 0; 0 means 1e-8; not for Lion
	WeightDecay   float64 // at least 0; 0 means 0.01 for AdamW, and none for the others
	NoWeightDecay bool    // no weight decay; for AdamW, where WeightDecay 0 means 0.01
	AMSGrad       bool    // for Adam and AdamW: divide by the largest mean of squares so far, instead of the latest
	// Decoupled makes WeightDecay a factor of the parameter, as in [NewAdamW], and not a part of
	// the gradient. It is for NAdam and RAdam.
	Decoupled bool
	// MomentumDecay is how fast the first decay of NAdam comes to its full value; above 0; 0 means
	// 0.004.
	MomentumDecay float64
	// MasterWeights keeps a float32 copy, the master, of each float16 or bfloat16 parameter. A step
	// changes the master and then sets the parameter to the rounded master. See
	// [Optimizer.ResetMasters] and, for float16 without masters, [Optimizer.Step].
	MasterWeights bool
	// Foreach is for Adam and AdamW. With Foreach, a step consists of several operators on lists of
	// tensors. This is PyTorch's default: foreach=True on CUDA, and a loop of the same arithmetic on
	// the CPU. Without Foreach, one operator changes all parameters of the same group, device and
	// dtype, as PyTorch's fused=True does. That operator needs no memory except the optimizer's
	// state. The two ways differ only by rounding.
	Foreach bool
}

// NewAdam returns an optimizer that changes the parameters of all groups by torch.optim.Adam's
// rule. Weight decay adds the parameter times WeightDecay to the parameter's gradient. The caller
// must Close the optimizer. NewAdam fails with [cgotorch.ErrInvalidArgument] if an option or a
// group is not valid.
func NewAdam(options AdamOptions, groups ...Group) (*Optimizer, error) {
	return newAdam("adam", false, options, groups)
}

// NewAdamW is [NewAdam] for torch.optim.AdamW's rule. Each step multiplies a parameter by
// (1 - WeightDecay*LR). Weight decay changes neither the gradient nor the means of gradients.
func NewAdamW(options AdamOptions, groups ...Group) (*Optimizer, error) {
	if options.WeightDecay == 0 && !options.NoWeightDecay {
		options.WeightDecay = 0.01
	}
	return newAdam("adamw", true, options, groups)
}

func newAdam(name string, decoupled bool, o AdamOptions, groups []Group) (*Optimizer, error) {
	r := &adam{title: name, decoupled: decoupled, beta1: 0.9, beta2: 0.999, eps: 1e-8, amsgrad: o.AMSGrad}
	if betas, ok := o.Betas.Get(); ok {
		r.beta1, r.beta2 = betas[0], betas[1]
	}
	if o.Eps != 0 {
		r.eps = o.Eps
	}
	if err := o.check(name); err != nil {
		return nil, err
	}
	switch {
	case !legalBeta(r.beta1) || !legalBeta(r.beta2):
		return nil, fmt.Errorf("optim: %s: betas %v and %v: each must be in [0, 1): %w", name, r.beta1, r.beta2, cgotorch.ErrInvalidArgument)
	case !legal(r.eps) || float32(r.eps) == 0:
		return nil, fmt.Errorf("optim: %s: an eps of %v is not a float32 above 0: %w", name, r.eps, cgotorch.ErrInvalidArgument)
	}
	return newOptimizer(r, o.settings(), groups)
}

func (o *AdamOptions) settings() settings {
	return settings{o.Foreach, o.LR, o.WeightDecay, o.MasterWeights}
}

// check fails if an option is set that the rule `name` does not have, or if two contradict each
// other.
func (o *AdamOptions) check(name string) error {
	for _, option := range []struct {
		name  string
		set   bool
		rules []string // those that have the option
	}{
		{"AMSGrad", o.AMSGrad, []string{"adam", "adamw"}},
		{"Foreach", o.Foreach, []string{"adam", "adamw"}},
		{"Decoupled", o.Decoupled, []string{"nadam", "radam"}},
		{"MomentumDecay", o.MomentumDecay != 0, []string{"nadam"}},
		{"Eps", o.Eps != 0, []string{"adam", "adamw", "adamax", "lamb", "nadam", "radam"}},
	} {
		if option.set && !slices.Contains(option.rules, name) {
			return fmt.Errorf("optim: %s: the option %s is set, which this rule does not have: leave it out: %w", name, option.name, cgotorch.ErrInvalidArgument)
		}
	}
	if o.NoWeightDecay && o.WeightDecay != 0 {
		return fmt.Errorf("optim: %s: both a weight decay of %v and NoWeightDecay: leave one out: %w", name, o.WeightDecay, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// A listAdam is the part that rules on lists share which have Adam's options.
type listAdam struct {
	listRule
	beta1, beta2, eps float64
}

// list returns the shared part of a rule on lists, with the rule's own defaults.
func (o *AdamOptions) list(name string, lr, beta2, eps float64) (listAdam, error) {
	o.LR = or(o.LR, lr)
	betas := o.Betas.Or([2]float64{0.9, beta2})
	r := listAdam{listRule{name}, betas[0], betas[1], or(o.Eps, eps)}
	if err := o.check(name); err != nil {
		return r, err
	}
	return r, checkNumbers(name, fraction("the first of Betas", r.beta1), fraction("the second of Betas", r.beta2), least("Eps", r.eps))
}

type adam struct {
	title             string
	decoupled         bool
	beta1, beta2, eps float64
	amsgrad           bool
}

func legalBeta(v float64) bool { return v >= 0 && v < 1 }

func (r *adam) name() string { return r.title }

func (r *adam) remembers() []string {
	if r.amsgrad {
		return []string{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
	}
	return []string{"exp_avg", "exp_avg_sq"}
}

func (r *adam) canFuse(cgotorch.Device, cgotorch.DType) bool { return true }

func (r *adam) counts() bool { return true }

// together returns the key of a parameter. One call changes only parameters with equal keys. A
// fused call reads each parameter's own count of steps on the device, so each key is 0. A call of
// `foreach` takes one count of steps from the host, for all parameters of the call. So without
// `fused` the key is that count.
func (r *adam) together(step int64, fused bool) int64 {
	if fused {
		return 0
	}
	return step
}

func (r *adam) watch() func() string {
	used1, used2 := r.beta1, r.beta2
	return func() string {
		if r.beta1 != used1 || r.beta2 != used2 {
			return fmt.Sprintf("the betas have changed from %v and %v to %v and %v", used1, used2, r.beta1, r.beta2)
		}
		return ""
	}
}

func (r *adam) fused(x *cgotorch.Exec, b *batch) {
	steps := make([]*cgotorch.Tensor, len(b.parameters))
	for i, s := range b.parameters {
		steps[i] = s.count
	}
	x.ForeachAddScalarInPlace(steps, 1)
	var largest []*cgotorch.Tensor
	if r.amsgrad {
		largest = b.state(2)
	}
	x.Call("streamtorch::fused_adam_", b.params, b.grads, b.state(0), b.state(1), largest, steps, b.rate, b.lr, r.beta1, r.beta2, b.weightDecay, r.eps,
		r.decoupled, r.amsgrad, b.gradScale, b.foundInf)
	if b.foundInf != nil { // foundInf is 1 if the device skipped the step
		skipped := make([]*cgotorch.Tensor, len(steps))
		for i := range skipped {
			skipped[i] = b.foundInf
		}
		x.ForeachSubInPlace(steps, skipped, nil)
	}
}

func (r *adam) foreach(x *cgotorch.Exec, b *batch) {
	grads, own := b.grads, false
	switch {
	case b.weightDecay == 0:
	case r.decoupled:
		x.ForeachMulScalarInPlace(b.params, 1-b.lr*b.weightDecay)
	default:
		grads, own = x.ForeachAdd(grads, b.params, b.weightDecay), true
	}
	x.ForeachLerpInPlace(b.state(0), grads, 1-r.beta1)
	x.ForeachMulScalarInPlace(b.state(1), r.beta2)
	x.ForeachAddCMulInPlace(b.state(1), grads, grads, 1-r.beta2)
	if own {
		for _, t := range grads {
			t.Close()
		}
	}
	squares := b.state(1)
	if r.amsgrad {
		x.ForeachMaximumInPlace(b.state(2), squares)
		squares = b.state(2)
	}
	step := float64(b.done + 1)
	correction1 := 1 - math.Pow(r.beta1, step)
	correction2 := 1 - math.Pow(r.beta2, step)
	roots := x.ForeachSqrt(squares)
	x.ForeachDivScalarInPlace(roots, math.Sqrt(correction2))
	x.ForeachAddScalarInPlace(roots, r.eps)
	x.ForeachAddCDivInPlace(b.params, b.state(0), roots, -b.lr/correction1)
}
