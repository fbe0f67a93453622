package optim

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RememberedSpec describes a tensor that an optimizer needs for a parameter from the first step on.
// Its shape and strides are the parameter's.
type RememberedSpec struct {
	Param int    // index in Params
	Name  string // as in [RememberedTensor]
	DType cgotorch.DType
}

// Remembers lists the tensors that steps need for each parameter, in the order of Params. A master
// comes last.
func (o *Optimizer) Remembers() []RememberedSpec {
	var all []RememberedSpec
	for i, s := range o.parameters {
		dtype := s.tensor.DType()
		if s.wide {
			dtype = cgotorch.Float32
		}
		for _, name := range o.rule.remembers() {
			all = append(all, RememberedSpec{i, name, dtype})
		}
		if s.wide {
			all = append(all, RememberedSpec{i, masterName, dtype})
		}
	}
	return all
}

// StepPart is [Optimizer.Step] for some of the parameters, with tensors that the caller lends for
// the call. It is for callers that keep these tensors elsewhere than on the device. params are
// indices in Params. lent returns the tensor for each entry of [Optimizer.Remembers]. It holds the
// values that the last StepPart left, and any values before the first.
//
// It fails as Step does, and with [cgotorch.ErrNotCapturable] in a capture. It fails with
// [cgotorch.ErrInvalidArgument] for a parameter for which Step has made tensors.
//
// State and Restore do not know lent tensors, and so no checkpoint does.
func (o *Optimizer) StepPart(x *cgotorch.Exec, params []int, lent func(of RememberedSpec) *cgotorch.Tensor) {
	if x.Capturing() {
		o.fail(x, "a step with lent tensors: %w", cgotorch.ErrNotCapturable)
	}
	o.only = map[*parameter]bool{}
	defer func() { o.only = nil }()
	names := o.rule.remembers()
	for _, i := range params {
		if i < 0 || i >= len(o.parameters) {
			o.fail(x, "there is no parameter %d of %d: %w", i, len(o.parameters), cgotorch.ErrInvalidArgument)
		}
		s := o.parameters[i]
		if s.master != nil || len(s.state) > 0 && s.state[0] != nil {
			o.fail(x, "parameter %d has tensors of the optimizer's own: call either Step or StepPart: %w", i, cgotorch.ErrInvalidArgument)
		}
		o.only[s] = true
		defer func() {
			clear(s.state)
			s.master = nil
		}()
		dtype := s.tensor.DType()
		if s.wide {
			dtype = cgotorch.Float32
			s.master = o.lentTo(x, lent, RememberedSpec{i, masterName, dtype})
		}
		for k, name := range names {
			s.state[k] = o.lentTo(x, lent, RememberedSpec{i, name, dtype})
		}
	}
	o.step(x, scalerInput{})
}

func (o *Optimizer) lentTo(x *cgotorch.Exec, lent func(of RememberedSpec) *cgotorch.Tensor, of RememberedSpec) *cgotorch.Tensor {
	t, s := lent(of), o.parameters[of.Param]
	if t == nil || t.DType() != of.DType || t.Device() != s.tensor.Device() || !slices.Equal(t.Shape(), s.shape) || !s.laidOutLike(t.Strides()) {
		o.fail(x, "%s of parameter %d: %v is lent, want %v like the parameter, %v: %w", of.Name, of.Param, t, of.DType, s.tensor, cgotorch.ErrInvalidArgument)
	}
	return t
}
