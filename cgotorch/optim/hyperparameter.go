package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Settings are the numbers of an optimizer that a program changes while it trains. The comments of
// [Optimizer]'s methods describe them.
//
// SetLR and SetScale set the learning rate, which is part of [State]. Weight decay, momentum and
// betas are options and not part of State. A program that continues from a checkpoint must set
// these options again. Each change of one of them makes captured steps out of date.
type Settings interface {
	LR(group int) float64
	SetLR(lr float64)
	SetGroupLR(group int, lr float64) error
	SetScale(factor float64)
	SetWeightDecay(group int, weightDecay float64) error
	SetMomentum(momentum float64) error
	SetBetas(beta1, beta2 float64) error
	ResetMasters()
}

// SetWeightDecay sets the weight decay of a group from the next step on. Groups are counted from
// 0. SetWeightDecay fails with [cgotorch.ErrInvalidArgument] if the group does not exist. It
// fails with the same error if weightDecay is not a finite number of at least 0.
func (o *Optimizer) SetWeightDecay(group int, weightDecay float64) error {
	switch {
	case group < 0 || group >= len(o.groups):
		return o.refuse("there is no group %d of %d; groups count from 0", group, len(o.groups))
	case !legal(weightDecay):
		return o.refuse("a weight decay of %v is not a number from 0 up", weightDecay)
	}
	o.groups[group].weightDecay = weightDecay
	return nil
}

// SetMomentum sets the momentum from the next step on. It fails with
// [cgotorch.ErrInvalidArgument] if the rule is not SGD, or if the optimizer was made without
// momentum. It fails with the same error if momentum is not a finite number above 0.
func (o *Optimizer) SetMomentum(momentum float64) error {
	r, ok := o.rule.(*sgd)
	switch {
	case o.onLists() != nil:
		return o.refuse("only SGD, Adam and AdamW can get other options")
	case !ok:
		return o.refuse("it has no momentum: use SetBetas")
	case r.Momentum == 0:
		return o.refuse("it was made without momentum and keeps no buffers")
	case !legal(momentum) || momentum == 0:
		return o.refuse("a momentum of %v is not a number above 0", momentum)
	}
	r.Momentum = momentum
	return nil
}

// SetBetas sets the two decays of Adam and AdamW from the next step on. beta1 is the decay of the
// mean of gradients, beta2 that of the mean of their squares. SetBetas fails with
// [cgotorch.ErrInvalidArgument] if the optimizer is neither Adam nor AdamW. It fails with the
// same error unless both decays are in [0, 1).
func (o *Optimizer) SetBetas(beta1, beta2 float64) error {
	r, ok := o.rule.(*adam)
	switch {
	case o.onLists() != nil:
		return o.refuse("only SGD, Adam and AdamW can get other options")
	case !ok:
		return o.refuse("it has no betas: use SetMomentum")
	case !legalBeta(beta1) || !legalBeta(beta2):
		return o.refuse("betas %v and %v: each must be in [0, 1)", beta1, beta2)
	}
	r.beta1, r.beta2 = beta1, beta2
	return nil
}

func (o *Optimizer) refuse(format string, args ...any) error {
	return fmt.Errorf("optim: %s: %s: %w", o.rule.name(), fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
}
