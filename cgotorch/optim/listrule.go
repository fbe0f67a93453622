package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// listRule is the part that all rules share whose steps consist of operators on lists of tensors.
// LibTorch has no fused kernel for them. Their numbers come from the host, so they cannot be
// captured.
type listRule struct{ title string }

func (r *listRule) name() string                               { return r.title }
func (*listRule) counts() bool                                 { return false }
func (*listRule) canFuse(cgotorch.Device, cgotorch.DType) bool { return false }
func (*listRule) together(step int64, _ bool) int64            { return step }
func (*listRule) fused(x *cgotorch.Exec, b *batch)             { panic("optim: a rule without fused steps") }
func (*listRule) watch() (changed func() string)               { return func() string { return "" } }
func (*listRule) list()                                        {}

// fromHost returns the reason why the steps need numbers from the host. It returns "" if they can
// be captured.
func (o *Optimizer) fromHost() string {
	if o.onLists() {
		return "its steps take their numbers from the host"
	}
	if o.foreach {
		return "a step by Foreach takes its numbers from the host: leave Foreach out"
	}
	return ""
}

// onLists reports whether the rule of the optimizer is a listRule.
func (o *Optimizer) onLists() bool {
	_, list := o.rule.(interface{ list() })
	return list
}

// newListOptimizer returns an optimizer with a rule of this kind. An LR of 0 means the learning
// rate `standard`.
func newListOptimizer(r rule, of settings, standard float64, groups []Group) (*Optimizer, error) {
	if of.lr == 0 {
		of.lr = standard
	}
	of.foreach = true
	return newOptimizer(r, of, groups)
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

// The function `or` returns v, or `standard` if v is 0.
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

// decoupledOr returns the gradients as decayed does. If `decoupled` is set, it multiplies the
// parameters instead, and leaves the gradients.
func (b *batch) decoupledOr(x *cgotorch.Exec, decoupled bool) []*cgotorch.Tensor {
	if !decoupled {
		return b.decayed(x)
	}
	if b.weightDecay != 0 {
		x.ForeachMulScalarInPlace(b.params, 1-b.lr*b.weightDecay)
	}
	return b.grads
}

// The method `moments` moves the mean of gradients and the mean of their squares, which are the
// first two remembered tensors.
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

// The function `roots` returns sqrt(squares)/divisor + eps.
func roots(x *cgotorch.Exec, squares []*cgotorch.Tensor, divisor, eps float64) []*cgotorch.Tensor {
	all := x.ForeachSqrt(squares)
	if divisor != 1 {
		x.ForeachDivScalarInPlace(all, divisor)
	}
	x.ForeachAddScalarInPlace(all, eps)
	return all
}
