package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// SGDOptions are the options of [NewSGD]; the zero value is plain gradient descent with PyTorch's learning rate.
type SGDOptions struct {
	LR             float64        // learning rate, above 0; 0 means 0.001
	Momentum       float64        // factor of the momentum buffer, from 0
	Dampening      float64        // part of the gradient kept out of the momentum buffer, from the second step on
	Nesterov       bool           // look ahead along the momentum; needs Momentum, and Dampening 0
	WeightDecay    float64        // factor of the parameter added to its gradient, from 0
	Implementation Implementation // fused unless another is chosen
}

// NewSGD returns an optimizer of torch.optim.SGD's rule over all groups. The caller must Close it. It fails with
// [cgotorch.ErrInvalidArgument].
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
	return newOptimizer(&sgd{options}, options.Implementation, options.LR, options.WeightDecay, groups)
}

type sgd struct{ SGDOptions }

func (r *sgd) name() string { return "sgd" }

func (r *sgd) remembers() []string {
	if r.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// canFuse is false where LibTorch 2.11's kernel is wrong: on the CPU, in dtypes of 16 bits, for 16 elements and more.
func (r *sgd) canFuse(device cgotorch.Device, dtype cgotorch.DType) bool {
	return device.IsCUDA() || dtype.Size() >= 4
}

func (r *sgd) fused(x *cgotorch.Exec, b *batch) {
	o := cgotorch.FusedSGDOptions{
		WeightDecay: b.weightDecay, Momentum: r.Momentum, Dampening: r.Dampening, Nesterov: r.Nesterov,
	}
	var buffers []*cgotorch.Tensor
	if r.Momentum != 0 {
		if o.FirstStep = b.step == 1; o.FirstStep {
			for i, s := range b.slots {
				s.remember(x, 0, x.EmptyLike(b.grads[i]))
			}
		}
		buffers = b.state(0)
	}
	x.FusedSGDInPlace(b.params, b.grads, buffers, b.lr, o)
}

func (r *sgd) foreach(x *cgotorch.Exec, b *batch) {
	grads, own := b.grads, false
	if b.weightDecay != 0 {
		grads, own = x.ForeachAdd(grads, b.params, b.weightDecay), true
	}
	if r.Momentum != 0 {
		if b.step == 1 {
			for i, s := range b.slots {
				s.remember(x, 0, x.Clone(grads[i]))
			}
		} else {
			x.ForeachMulScalarInPlace(b.state(0), r.Momentum)
			x.ForeachAddInPlace(b.state(0), grads, 1-r.Dampening)
		}
		switch {
		case !r.Nesterov:
			grads = b.state(0)
		case own:
			x.ForeachAddInPlace(grads, b.state(0), r.Momentum)
		default: // PyTorch changes the gradients here; we leave them alone
			grads = x.ForeachAdd(grads, b.state(0), r.Momentum)
		}
	}
	x.ForeachAddInPlace(b.params, grads, -b.lr)
}

// remember keeps t as tensor k of the slot, and closes what a first step that failed has left there.
func (s *slot) remember(x *cgotorch.Exec, k int, t *cgotorch.Tensor) {
	left := s.state[k]
	s.state[k] = x.Keep(t)
	left.Close()
}
