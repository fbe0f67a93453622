package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// SGDOptions are the settings of [NewSGD]. The zero value is plain gradient descent with PyTorch's
// learning rate.
type SGDOptions struct {
	LR          float64 // learning rate, above 0; 0 means 0.001
	Momentum    float64 // factor of the momentum buffer; at least 0
	Dampening   float64 // fraction of the gradient kept out of the momentum buffer, from the second step on
	Nesterov    bool    // Nesterov momentum; needs Momentum above 0 and Dampening 0
	WeightDecay float64 // at least 0; a parameter times WeightDecay is added to its gradient
	// MasterWeights keeps a float32 copy, the master, of each float16 or bfloat16 parameter. A step
	// changes the master and then sets the parameter to the rounded master. See
	// [Optimizer.ResetMasters].
	MasterWeights bool
	// With Foreach, a step consists of several operators on lists of tensors. This is PyTorch's
	// default: foreach=True on CUDA, and a loop of the same arithmetic on the CPU. Without Foreach,
	// one operator changes all parameters of the same group, device and dtype, as PyTorch's
	// fused=True does. That operator needs no memory except the optimizer's state. The two ways
	// differ only by rounding. On the CPU, float16 and bfloat16 parameters without MasterWeights
	// always step as with Foreach, because LibTorch's fused kernel is wrong for them.
	Foreach bool
}

// NewSGD returns an optimizer that changes the parameters of all groups by torch.optim.SGD's
// rule. The caller must Close the optimizer. NewSGD fails with [cgotorch.ErrInvalidArgument] if
// an option or a group is not valid.
func NewSGD(options SGDOptions, groups ...Group) (*Optimizer, error) {
	switch {
	case !legal(options.Momentum):
		return nil, fmt.Errorf("optim: sgd: a momentum of %v is not a number from 0 up: %w", options.Momentum, cgotorch.ErrInvalidArgument)
	case !(options.Dampening-options.Dampening == 0):
		return nil, fmt.Errorf("optim: sgd: a dampening of %v is not a number: %w", options.Dampening, cgotorch.ErrInvalidArgument)
	case options.Nesterov && (options.Momentum == 0 || options.Dampening != 0):
		return nil, fmt.Errorf("optim: sgd: Nesterov needs Momentum above 0 and Dampening 0, not %v and %v: %w",
			options.Momentum, options.Dampening, cgotorch.ErrInvalidArgument)
	}
	return newOptimizer(&sgd{options}, settings{options.Foreach, options.LR, options.WeightDecay, options.MasterWeights}, groups)
}

type sgd struct{ SGDOptions }

func (r *sgd) name() string { return "sgd" }

func (r *sgd) remembers() []string {
	if r.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// canFuse returns false for dtypes of 16 bits on the CPU. LibTorch 2.11's fused kernel is wrong
// there for 16 elements and more.
func (r *sgd) canFuse(device cgotorch.Device, dtype cgotorch.DType) bool {
	return device.IsCUDA() || dtype.Size() >= 4
}

func (r *sgd) counts() bool { return false }

// together returns the key of a parameter. One call changes only parameters with equal keys. With
// Momentum, a first step may differ from later steps: then the key is 0 for a first step, and 1 for
// a later step. Without Dampening a fused first step does not differ, because it begins from a
// momentum of 0. Then the key is always 0, and the host does not have to know whether the device
// has skipped a first step.
func (r *sgd) together(step int64, fused bool) int64 {
	if r.Momentum == 0 || fused && r.Dampening == 0 {
		return 0
	}
	return min(step, 1)
}

func (r *sgd) watch() func() string {
	used := r.Momentum
	return func() string {
		if r.Momentum != used {
			return fmt.Sprintf("the momentum has changed from %v to %v", used, r.Momentum)
		}
		return ""
	}
}

func (r *sgd) fused(x *cgotorch.Exec, b *batch) {
	first := false
	var buffers []*cgotorch.Tensor
	if r.Momentum != 0 {
		first = r.Dampening != 0 && b.done == 0
		buffers = b.state(0)
	}
	if first && x.Capturing() {
		x.Fail("optim.Step", fmt.Errorf("sgd: with Dampening the first step differs from later ones: do one before the capture: %w", cgotorch.ErrNotCapturable))
	}
	x.Call("streamtorch::fused_sgd_", b.params, b.grads, buffers, b.rate, b.lr, b.weightDecay, r.Momentum, r.Dampening, r.Nesterov, first, b.gradScale, b.foundInf)
}

func (r *sgd) foreach(x *cgotorch.Exec, b *batch) {
	grads, own := b.grads, false
	if b.weightDecay != 0 {
		grads, own = x.ForeachAdd(grads, b.params, b.weightDecay), true
	}
	if r.Momentum != 0 {
		if b.done == 0 {
			x.ForeachCopyInPlace(b.state(0), grads)
		} else {
			x.ForeachMulScalarInPlace(b.state(0), r.Momentum)
			x.ForeachAddInPlace(b.state(0), grads, 1-r.Dampening)
		}
		switch {
		case !r.Nesterov:
			grads = b.state(0)
		case own:
			x.ForeachAddInPlace(grads, b.state(0), r.Momentum)
		default: // PyTorch writes into the gradients here; this code leaves them unchanged
			grads = x.ForeachAdd(grads, b.state(0), r.Momentum)
		}
	}
	x.ForeachAddInPlace(b.params, grads, -b.lr)
}
