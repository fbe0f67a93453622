package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Group is a subset of the parameters with its own settings.
type Group struct {
	Params        []*cgotorch.Tensor // of real floating dtypes; a parameter belongs to one group only
	LR            float64            // 0 means LR of the optimizer's options
	WeightDecay   float64            // 0 means WeightDecay of the optimizer's options
	NoWeightDecay bool               // no weight decay in this group; usual for biases and normalisation
}

// Optimizer changes parameters by one rule. [NewSGD], [NewAdam], [NewAdamW] and the functions for
// other rules make it. [LBFGS] is a type of its own, because it calls the loss itself. The
// parameters stay the caller's. For each parameter the optimizer remembers tensors, on the
// parameter's device. It owns these tensors from the first step on until Close. An Optimizer is
// used by one goroutine at a time.
type Optimizer struct {
	rule       rule
	foreach    bool
	lr         float64
	scale      float64
	groups     []group
	parameters []*parameter // of all groups, in the order of the groups
	closed     bool

	lender   lender              // keeps the tensors of StepParams; may be nil
	only     map[*parameter]bool // the parameters that a StepParams changes; nil means all
	onDevice bool                // a Scaler has done steps of a rule on lists, so the host does not know their counts
	looks    int                 // Steps that have looked for leaves of no optimizer: at most two
	skipped  bool                // the host may have counted steps that the device skipped
	restored int                 // number of Restores
	leaves   *leafWatch          // between the first and the second Step
	reduced  seam.Reductions     // of the gradients that steps have used

	agree func(x *cgotorch.Exec, found *cgotorch.Tensor) // of SetAgree; may be nil
}

// rule is the arithmetic of one optimizer.
type rule interface {
	name() string
	// remembers returns PyTorch's names of the tensors kept for each parameter. These tensors are 0
	// before the first step.
	remembers() []string
	// counts reports whether the method `fused` needs a count of steps on the device for each
	// parameter.
	counts() bool
	canFuse(cgotorch.Device, cgotorch.DType) bool
	// together returns the key of a parameter. One call of `fused` or `foreach` can change all
	// parameters that have equal keys. `step` is the number of steps that the parameter has done.
	together(step int64, fused bool) int64
	// fused and foreach change the parameters of b.
	fused(x *cgotorch.Exec, b *batch)
	foreach(x *cgotorch.Exec, b *batch)
	// watch notes the numbers that a step uses. The function `changed` describes a later change of
	// these numbers. It returns "" if they have not changed.
	watch() (changed func() string)
}

type group struct {
	lr          float64               // 0 means the learning rate of the optimizer
	set         cgotorch.Opt[float64] // the learning rate of SetGroupLR, in place of lr
	weightDecay float64
	buckets     []bucket

	rate    *cgotorch.Tensor // the learning rate that captured steps read; nil without captured steps
	written float64          // the value of rate after all enqueued work
}

// bucket holds the parameters of a group that one operator can change.
type bucket struct {
	device     cgotorch.Device
	dtype      cgotorch.DType // dtype of the parameters
	wide       bool           // the parameters have masters
	raised     bool           // a step computes in float32, though the parameters are float16
	dense      bool           // fused kernels may take the parameters
	parameters []*parameter
	now        batch // the parameters that one call changes; its memory is reused
}

// batch holds parameters of a bucket that one call can change, and their gradients. It is not a
// batch of samples. For parameters with masters, `params` holds the masters, and `grads` holds
// float32 copies of the gradients. For those of Note [Steps of float16] it holds float32 copies.
type batch struct {
	lr, weightDecay float64
	rate            *cgotorch.Tensor // the learning rate of a captured step; nil for other steps, which use lr
	scalerInput
	done          int64 // the key that rule.together returns for all these parameters
	parameters    []*parameter
	params, grads []*cgotorch.Tensor
	lists         [3][]*cgotorch.Tensor
	raised        [3][]*cgotorch.Tensor // float32 copies of remembered tensors of float16; nil if there are none
}

// state returns one remembered tensor of every parameter: the tensor whose name is element k of
// rule.remembers. The returned slice is valid until the next call with the same k.
func (b *batch) state(k int) []*cgotorch.Tensor {
	if b.raised[k] != nil {
		return b.raised[k]
	}
	b.lists[k] = b.lists[k][:0]
	for _, s := range b.parameters {
		b.lists[k] = append(b.lists[k], s.state[k])
	}
	return b.lists[k]
}

func (b *batch) reset() {
	clear(b.params)
	clear(b.grads)
	b.raised = [3][]*cgotorch.Tensor{}
	b.parameters, b.params, b.grads = b.parameters[:0], b.params[:0], b.grads[:0]
}

// settings are the options that all rules share.
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
				return fail("group %d: parameter %d is %s", i, k, p)
			}
			if first, twice := seen[p]; twice {
				return fail("group %d: parameter %d (%s) is in group %d already", i, k, p, first)
			}
			// A leaf that requires a gradient may be told so again. The result of an operator may
			// not.
			if p.RequiresGrad() && p.SetRequiresGrad(true) != nil {
				return fail("group %d: parameter %d (%s) is the result of an operator, whose gradient is not kept: give the module's own tensors, as nn.Parameters does", i, k, p)
			}
			seen[p] = i
			if !p.DType().IsFloat() {
				return fail("group %d: parameter %d is %s: only floating dtypes can be optimized", i, k, p)
			}
			s := &parameter{
				index: len(o.parameters), tensor: p, shape: p.Shape(), strides: p.Strides(), wide: of.masters && p.DType().Size() < 4,
				state: make([]*cgotorch.Tensor, len(r.remembers())),
			}
			s.dense = s.wide || of.foreach || inside.Dense(p) // masters are dense
			markKnown(p)
			o.parameters = append(o.parameters, s)
			g.add(s)
		}
		for k := range g.buckets {
			b := &g.buckets[k]
			b.raised = b.dtype == cgotorch.Float16 && !b.wide && raises(r)
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
		if b := &g.buckets[i]; b.device == device && b.dtype == dtype && b.dense == s.dense {
			b.parameters = append(b.parameters, s)
			return
		}
	}
	g.buckets = append(g.buckets, bucket{device: device, dtype: dtype, wide: s.wide, dense: s.dense, parameters: []*parameter{s}})
}

// Params returns the parameters of all groups, in the order of the groups. They stay the
// caller's.
func (o *Optimizer) Params() []*cgotorch.Tensor {
	params := make([]*cgotorch.Tensor, len(o.parameters))
	for i, s := range o.parameters {
		params[i] = s.tensor
	}
	return params
}

// GroupOf returns the number of the group of a parameter. `param` is the parameter's place in
// [Optimizer.Params]. The result is -1 if there is no such parameter.
func (o *Optimizer) GroupOf(param int) int {
	if param < 0 || param >= len(o.parameters) {
		return -1
	}
	s := o.parameters[param]
	return slices.IndexFunc(o.groups, func(g group) bool {
		return slices.ContainsFunc(g.buckets, func(b bucket) bool { return slices.Contains(b.parameters, s) })
	})
}

// Rule returns the lower-case name of the rule, such as "sgd" or "adamw".
func (o *Optimizer) Rule() string { return o.rule.name() }

// Elementwise reports whether a step changes each element by that element's own gradient and state.
// Such a rule can step a part of a parameter as if this part were a parameter. LAMB and Muon
// cannot, because they look at whole tensors.
func (o *Optimizer) Elementwise() bool {
	switch o.rule.(type) {
	case *lamb, *muon:
		return false
	}
	return true
}

// LR returns the learning rate that the next Step uses for group i. This is the learning rate of
// the group times the scale of [Optimizer.SetScale]. A group without a learning rate of its own
// has that of the optimizer.
func (o *Optimizer) LR(i int) float64 {
	if lr, ok := o.groups[i].set.Get(); ok {
		return lr * o.scale
	}
	if lr := o.groups[i].lr; lr != 0 {
		return lr * o.scale
	}
	return o.lr * o.scale
}

// SetLR sets the learning rate of all groups without a learning rate of their own. It does not
// change the scale of [Optimizer.SetScale].
func (o *Optimizer) SetLR(lr float64) { o.lr = lr }

// SetGroupLR sets the learning rate of a group from the next step on, as param_groups[i]["lr"] does
// in PyTorch. 0 stops the group. Groups are counted from 0. The learning rate is part of [State],
// and captured steps use it. SetGroupLR fails with [cgotorch.ErrInvalidArgument] if the group does
// not exist. It fails with the same error if lr is not a finite number of at least 0.
func (o *Optimizer) SetGroupLR(group int, lr float64) error {
	switch {
	case group < 0 || group >= len(o.groups):
		return o.refuse("there is no group %d of %d; groups count from 0", group, len(o.groups))
	case !legal(lr):
		return o.refuse("group %d: a learning rate of %v is not a number from 0 up", group, lr)
	}
	o.groups[group].set = cgotorch.Set(lr)
	return nil
}

// SetScale sets the factor that multiplies every group's learning rate. Without SetScale the
// factor is 1. The usual factor is the result of a [Schedule].
func (o *Optimizer) SetScale(factor float64) { o.scale = factor }

// ZeroGrad removes the gradients of all parameters. The next backward can use their memory.
// ZeroGrad enqueues nothing. In a captured function, call it before the backward. A backward that
// finds gradients adds to them, so each launch would add to the gradients of the launch before
// it.
func (o *Optimizer) ZeroGrad() {
	for _, s := range o.parameters {
		if !s.tensor.Closed() {
			_ = s.tensor.SetGrad(nil) // removing cannot fail
		}
	}
}

// Close frees the tensors that the optimizer remembers. It leaves the parameters and their
// gradients open. A second Close does nothing.
func (o *Optimizer) Close() error {
	if o == nil {
		return nil
	}
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
