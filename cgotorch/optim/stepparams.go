package optim

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Remembers lists the tensors that the optimizer keeps for each parameter from the first step on.
// The list has the order of Params. The master of a parameter comes after its other tensors. Each
// tensor has the shape and the strides of its parameter. The field Tensor of each entry is nil.
func (o *Optimizer) Remembers() []RememberedTensor {
	var all []RememberedTensor
	for i := range o.parameters {
		all = append(all, o.kept(i)...)
	}
	return all
}

// kept is Remembers for one parameter.
func (o *Optimizer) kept(i int) []RememberedTensor {
	s := o.parameters[i]
	dtype := s.tensor.DType()
	if s.wide {
		dtype = cgotorch.Float32
	}
	var all []RememberedTensor
	for _, name := range o.rule.remembers() {
		all = append(all, RememberedTensor{Param: i, Name: name, DType: dtype})
	}
	if s.wide {
		all = append(all, RememberedTensor{Param: i, Name: masterName, DType: dtype})
	}
	return all
}

// StepInParts is [Optimizer.Step] that changes the parameters part by part. A part is a list of
// indices in Params, and a parameter is in at most one. Those in no part stay unchanged. After each
// part, StepInParts calls `changed` with the number of the part. `changed` can enqueue work that
// uses the new weights, while the next part changes. StepInParts does not wait.
//
// StepInParts fails as Step does. It fails with [cgotorch.ErrInvalidArgument] for another index,
// and for a parameter in two parts.
func (o *Optimizer) StepInParts(x *cgotorch.Exec, parts [][]int, changed func(part int)) {
	defer func() { o.only = nil }()
	y := o.begin(x, scalerInput{})
	sets, in := make([]map[*parameter]bool, len(parts)), map[*parameter]int{}
	for k, part := range parts {
		sets[k] = map[*parameter]bool{}
		for _, i := range part {
			p := o.parameter(x, i)
			if other, twice := in[p]; twice && other != k {
				o.fail(x, "parameter %d is in the parts %d and %d: %w", i, other, k, cgotorch.ErrInvalidArgument)
			}
			sets[k][p], in[p] = true, k
		}
	}
	for k, set := range sets {
		if o.only = set; len(set) > 0 {
			o.change(y, scalerInput{})
		}
		changed(k)
	}
}

// parameter returns the parameter of an index. It fails if there is none.
func (o *Optimizer) parameter(x *cgotorch.Exec, i int) *parameter {
	if i < 0 || i >= len(o.parameters) {
		o.fail(x, "there is no parameter %d of %d: %w", i, len(o.parameters), cgotorch.ErrInvalidArgument)
	}
	return o.parameters[i]
}

// lender lends one of the tensors that Remembers lists.
type lender func(x *cgotorch.Exec, of RememberedTensor, write bool, use func(t *cgotorch.Tensor))

// SetLender tells State and Restore who keeps the tensors that StepParams is lent. A checkpoint can
// then hold them. The function `lend` lends one of the tensors that [Optimizer.Remembers] lists: it
// calls `use` with the tensor, on x's device. If write is set, `use` writes the tensor, and later
// loans have what was written. nil means that nobody keeps them. SetLender enqueues nothing.
func (o *Optimizer) SetLender(lend func(x *cgotorch.Exec, of RememberedTensor, write bool, use func(t *cgotorch.Tensor))) {
	o.lender = lend
}

// StepParams is [Optimizer.Step] for some of the parameters. For the call, the caller lends the
// tensors that [Optimizer.Remembers] lists. StepParams is for callers that keep these tensors
// somewhere else, not on the device. `params` are indices in Params. The function `lent` returns
// the tensor for an element of the list that Remembers returns. Before the first StepParams of a
// parameter, its tensors may hold any values. Before each later StepParams of this parameter,
// they must hold the values that the previous StepParams left in them.
//
// StepParams fails as Step does. In a capture it fails with [cgotorch.ErrNotCapturable]. If Step
// has made tensors for one of the params, it fails with [cgotorch.ErrInvalidArgument].
//
// State and Restore do not know lent tensors, unless [Optimizer.SetLender] tells them.
func (o *Optimizer) StepParams(x *cgotorch.Exec, params []int, lent func(of RememberedTensor) *cgotorch.Tensor) {
	if x.Capturing() {
		o.fail(x, "a step with lent tensors: %w", cgotorch.ErrNotCapturable)
	}
	o.only = map[*parameter]bool{}
	defer func() { o.only = nil }()
	names := o.rule.remembers()
	for _, i := range params {
		s := o.parameter(x, i)
		if s.owns() {
			o.fail(x, "parameter %d has tensors of the optimizer's own: call either Step or StepParams: %w", i, cgotorch.ErrInvalidArgument)
		}
		o.only[s] = true
		defer func() {
			clear(s.state)
			s.master = nil
		}()
		dtype := s.tensor.DType()
		if s.wide {
			dtype = cgotorch.Float32
			s.master = o.lentTo(x, lent, RememberedTensor{Param: i, Name: masterName, DType: dtype})
		}
		for k, name := range names {
			s.state[k] = o.lentTo(x, lent, RememberedTensor{Param: i, Name: name, DType: dtype})
		}
	}
	o.step(x, scalerInput{})
}

func (o *Optimizer) lentTo(x *cgotorch.Exec, lent func(of RememberedTensor) *cgotorch.Tensor, of RememberedTensor) *cgotorch.Tensor {
	t, s := lent(of), o.parameters[of.Param]
	if t == nil || t.DType() != of.DType || t.Device() != s.tensor.Device() || !slices.Equal(t.Shape(), s.shape) || !s.laidOutLike(t.Strides()) {
		o.fail(x, "%s of parameter %d: %s is lent, want %v like the parameter, %s: %w", of.Name, of.Param, t, of.DType, s.tensor, cgotorch.ErrInvalidArgument)
	}
	return t
}
