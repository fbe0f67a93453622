package optim

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Group is a subset of the parameters with its own settings.
type Group struct {
	Params        []*cgotorch.Tensor // of real floating dtypes, in no other group
	LR            float64            // 0 means LR of the optimizer's options
	WeightDecay   float64            // 0 means WeightDecay of the optimizer's options
	NoWeightDecay bool               // no weight decay, whatever the options say; usual for biases and normalisation
}

// Optimizer changes parameters by one rule. [NewSGD], [NewAdam] and [NewAdamW] make it. The
// parameters stay the caller's. The optimizer owns the tensors that it remembers of them, on their
// devices, from the first step on until Close. It is used by one goroutine at a time.
type Optimizer struct {
	rule       rule
	foreach    bool
	lr         float64
	scale      float64
	groups     []group
	parameters []*parameter // of all groups, in order
	closed     bool

	only     map[*parameter]bool // the parameters that a StepParams changes; nil for all
	skipped  bool                // the device may have skipped steps that the host has counted
	restored int                 // number of Restores
}

// rule is the arithmetic of one optimizer.
type rule interface {
	name() string
	// remembers names the tensors kept for each parameter, as PyTorch does. They are 0 before the first
	// step.
	remembers() []string
	// counts reports whether fused needs a count of steps on the device for each parameter.
	counts() bool
	canFuse(cgotorch.Device, cgotorch.DType) bool
	// together returns a key. Parameters with equal keys can be changed by one call of fused or
	// foreach. step is a parameter's number of steps so far.
	together(step int64, fused bool) int64
	// fused and foreach change the parameters of b.
	fused(x *cgotorch.Exec, b *batch)
	foreach(x *cgotorch.Exec, b *batch)
	// watch notes the numbers that a step uses. Its result describes a later change of these, or
	// returns "".
	watch() (changed func() string)
}

type group struct {
	lr          float64 // 0 means the optimizer's
	weightDecay float64
	buckets     []bucket

	rate    *cgotorch.Tensor // the learning rate that captured steps read, nil if there are none
	written float64          // value of rate once the enqueued work is done
}

// bucket holds the parameters of a group that one operator can change.
type bucket struct {
	device     cgotorch.Device
	dtype      cgotorch.DType // of the parameters
	wide       bool           // they have masters
	parameters []*parameter
	now        batch // scratch
}

// batch holds parameters of a bucket that can be changed together, and their gradients. Where there
// are masters, params are the masters, and grads are float32 copies of the gradients.
type batch struct {
	lr, weightDecay float64
	rate            *cgotorch.Tensor // nil where the rate is lr
	scalerInput
	done          int64 // rule.together of its parameters
	parameters    []*parameter
	params, grads []*cgotorch.Tensor
	lists         [3][]*cgotorch.Tensor
}

// state returns tensor k of every parameter. The slice is valid until the next call with that k.
func (b *batch) state(k int) []*cgotorch.Tensor {
	b.lists[k] = b.lists[k][:0]
	for _, s := range b.parameters {
		b.lists[k] = append(b.lists[k], s.state[k])
	}
	return b.lists[k]
}

func (b *batch) reset() {
	clear(b.params)
	clear(b.grads)
	b.parameters, b.params, b.grads = b.parameters[:0], b.params[:0], b.grads[:0]
}

// settings are the options that all rules have.
type settings struct {
	foreach         bool
	lr, weightDecay float64
	masters         bool
}

func newOptimizer(r rule, of settings, groups []Group) (*Optimizer, error) {
	lr, weightDecay := of.lr, of.weightDecay
	fail := func(format string, args ...any) (*Optimizer, error) {
		return nil, fmt.Errorf("optim: %s: %s: %w", r.name(), fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
	}
	if lr == 0 {
		lr = 1e-3
	}
	if !legal(lr) {
		return fail("a learning rate of %v is not a number from 0 up", lr)
	}
	if !legal(weightDecay) {
		return fail("a weight decay of %v is not a number from 0 up", weightDecay)
	}
	o := &Optimizer{rule: r, foreach: of.foreach, lr: lr, scale: 1}
	seen := map[*cgotorch.Tensor]int{}
	for i, in := range groups {
		g := group{lr: in.LR, weightDecay: in.WeightDecay}
		switch {
		case !legal(in.LR):
			return fail("group %d: a learning rate of %v is not a number from 0 up", i, in.LR)
		case !legal(in.WeightDecay):
			return fail("group %d: a weight decay of %v is not a number from 0 up", i, in.WeightDecay)
		case in.NoWeightDecay && in.WeightDecay != 0:
			return fail("group %d has both a weight decay of %v and NoWeightDecay: leave one out", i, in.WeightDecay)
		case in.NoWeightDecay:
			g.weightDecay = 0
		case in.WeightDecay == 0:
			g.weightDecay = weightDecay
		}
		for k, p := range in.Params {
			if p == nil || p.Closed() {
				return fail("group %d: parameter %d is %v", i, k, p)
			}
			if first, twice := seen[p]; twice {
				return fail("group %d: parameter %d (%v) is in group %d already", i, k, p, first)
			}
			seen[p] = i
			if !p.DType().IsFloat() {
				return fail("group %d: parameter %d is %v: only floating dtypes can be optimized", i, k, p)
			}
			s := &parameter{
				index: len(o.parameters), tensor: p, shape: p.Shape(), strides: p.Strides(), wide: of.masters && p.DType().Size() < 4,
				state: make([]*cgotorch.Tensor, len(r.remembers())),
			}
			o.parameters = append(o.parameters, s)
			g.add(s)
		}
		o.groups = append(o.groups, g)
	}
	if len(o.parameters) == 0 {
		return fail("there are no parameters: give at least one Group with Params")
	}
	return o, nil
}

func legal(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

func (g *group) add(s *parameter) {
	device, dtype := s.tensor.Device(), s.tensor.DType()
	for i := range g.buckets {
		if b := &g.buckets[i]; b.device == device && b.dtype == dtype {
			b.parameters = append(b.parameters, s)
			return
		}
	}
	g.buckets = append(g.buckets, bucket{device: device, dtype: dtype, wide: s.wide, parameters: []*parameter{s}})
}

// Params returns the parameters of all groups, in order. They stay the caller's.
func (o *Optimizer) Params() []*cgotorch.Tensor {
	params := make([]*cgotorch.Tensor, len(o.parameters))
	for i, s := range o.parameters {
		params[i] = s.tensor
	}
	return params
}

// LR returns the learning rate that the next Step uses for group i: the group's or the optimizer's,
// times the scale.
func (o *Optimizer) LR(i int) float64 {
	if lr := o.groups[i].lr; lr != 0 {
		return lr * o.scale
	}
	return o.lr * o.scale
}

// SetLR sets the learning rate of the groups that have none of their own. The scale stays.
func (o *Optimizer) SetLR(lr float64) { o.lr = lr }

// SetScale sets the factor of every group's learning rate, which begins as 1. It is the value of a
// [Schedule].
func (o *Optimizer) SetScale(factor float64) { o.scale = factor }

// ZeroGrad removes the gradients of all parameters. It enqueues nothing, and the next backward can
// use the memory. In a captured function, call it before the backward. A backward that finds
// gradients adds to them, and so would each launch.
func (o *Optimizer) ZeroGrad() {
	for _, s := range o.parameters {
		if !s.tensor.Closed() {
			_ = s.tensor.SetGrad(nil) // removing cannot fail
		}
	}
}

// Close frees the tensors that the optimizer remembers. The parameters and their gradients stay. A
// second Close does nothing.
func (o *Optimizer) Close() error {
	o.closed = true
	var errs []error
	for _, s := range o.parameters {
		errs = append(errs, s.close())
	}
	for i := range o.groups {
		g := &o.groups[i]
		errs = append(errs, g.rate.Close())
		g.rate = nil
	}
	return errors.Join(errs...)
}
