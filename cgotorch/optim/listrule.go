package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// listRule is the part that all rules share whose steps consist of operators on lists of tensors.
// LibTorch has no fused kernel for them. See Note [Two forms of a step on lists].
type listRule struct{ title string }

func (r *listRule) name() string                 { return r.title }
func (*listRule) counts() bool                   { return true }
func (*listRule) watch() (changed func() string) { return func() string { return "" } }

// canFuse reports whether the steps of parameters of this dtype have the second form. Numbers of
// the device would be rounded to dtypes of 16 bits.
func (*listRule) canFuse(_ cgotorch.Device, dtype cgotorch.DType) bool { return dtype.Size() >= 4 }

// together returns the key of a parameter. In the second form each parameter has its own count.
func (*listRule) together(step int64, fused bool) int64 {
	if fused {
		return 0
	}
	return step
}

// A listStep is the arithmetic of a rule on lists.
type listStep interface {
	rule
	change(x *cgotorch.Exec, b *batch, n *stepNumbers)
}

// onLists returns the rule of the optimizer as a listStep. It returns nil for SGD, Adam and AdamW.
func (o *Optimizer) onLists() listStep {
	step, _ := o.rule.(listStep)
	return step
}

// listFused does a step of the second form. The step divides the gradients by b.gradScale. If
// b.foundInf is 1, all tensors stay as they were.
func listFused(x *cgotorch.Exec, b *batch, r listStep) {
	if b.gradScale != nil {
		grads := make([]*cgotorch.Tensor, len(b.grads))
		for i, g := range b.grads {
			grads[i] = x.EmptyLike(g)
		}
		x.ForeachCopyInPlace(grads, b.grads)
		x.ForeachDivTensorInPlace(grads, x.To(b.gradScale, grads[0].DType()))
		copy(b.grads, grads)
	}
	if b.foundInf == nil {
		r.change(x, b, b.onDevice(x))
		return
	}
	all := append(b.counts(), b.params...)
	for k := range r.remembers() {
		all = append(all, b.state(k)...)
	}
	saved := make([]*cgotorch.Tensor, len(all))
	for i, t := range all {
		saved[i] = x.EmptyLike(t)
	}
	x.ForeachCopyInPlace(saved, all)
	r.change(x, b, b.onDevice(x))
	skip := x.GtScalar(b.foundInf, 0)
	for i, t := range all {
		saved[i] = x.Where(skip, saved[i], t)
	}
	x.ForeachCopyInPlace(all, saved)
}

// fromHost returns the reason why the steps need numbers from the host. It returns "" if they do
// not.
func (o *Optimizer) fromHost() string {
	if o.foreach {
		return "a step by Foreach takes its numbers from the host: leave Foreach out"
	}
	for i := range o.groups {
		for k := range o.groups[i].buckets {
			if b := &o.groups[i].buckets[k]; !b.dense && o.onLists() == nil {
				s := b.parameters[0]
				return fmt.Sprintf("parameter %d, %s, has gaps in its memory, and its step takes its numbers from the host: give the module a contiguous one", s.index, s.tensor)
			}
		}
	}
	return ""
}

// uncapturable returns the reason why the steps cannot be captured. It returns "" if they can.
func (o *Optimizer) uncapturable() string {
	if o.onLists() == nil {
		return o.fromHost()
	}
	for i := range o.groups {
		for k := range o.groups[i].buckets {
			if b := &o.groups[i].buckets[k]; !o.canFuse(b) {
				return fmt.Sprintf("a step of %v takes its numbers from the host: set MasterWeights", b.dtype)
			}
		}
	}
	return ""
}

// number is an option of a rule, with the values that it may have.
type number struct {
	what  string
	value float64
	legal func(v float64) bool
	want  string
}

func positive(what string, v float64) number {
	return number{what, v, func(v float64) bool { return legal(v) && v > 0 }, "a number above 0"}
}

// least is for numbers that keep a divisor above 0. In float32 they must not be 0.
func least(what string, v float64) number {
	return number{what, v, func(v float64) bool { return legal(v) && float32(v) > 0 }, "a float32 above 0"}
}

func fromZero(what string, v float64) number { return number{what, v, legal, "a number from 0 up"} }

func fraction(what string, v float64) number { return number{what, v, legalBeta, "a number in [0, 1)"} }

func checkNumbers(rule string, numbers ...number) error {
	for _, n := range numbers {
		if !n.legal(n.value) {
			return fmt.Errorf("optim: %s: %s is %v, want %s: %w", rule, n.what, n.value, n.want, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// or returns v, or `standard` if v is 0.
func or(v, standard float64) float64 {
	if v == 0 {
		return standard
	}
	return v
}

// decayed returns the gradients, to which the weight decay has been added.
func (b *batch) decayed(x *cgotorch.Exec) []*cgotorch.Tensor {
	if b.weightDecay == 0 {
		return b.grads
	}
	return x.ForeachAdd(b.grads, b.params, b.weightDecay)
}

// moments moves the mean of gradients and the mean of their squares, which are the first two
// remembered tensors.
func (b *batch) moments(x *cgotorch.Exec, grads []*cgotorch.Tensor, beta1, beta2 float64) (mean, squares []*cgotorch.Tensor) {
	mean, squares = b.state(0), b.state(1)
	x.ForeachLerpInPlace(mean, grads, 1-beta1)
	moveSquares(x, squares, grads, beta2)
	return mean, squares
}

// moveSquares moves means of squares towards the squares of gradients.
func moveSquares(x *cgotorch.Exec, squares, grads []*cgotorch.Tensor, beta float64) {
	x.ForeachMulScalarInPlace(squares, beta)
	x.ForeachAddCMulInPlace(squares, grads, grads, 1-beta)
}
