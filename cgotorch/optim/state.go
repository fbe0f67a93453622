package optim

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// State holds all that an optimizer needs, except its options, to continue an interrupted
// training with the same results.
type State struct {
	Rule  string  `json:"rule"`  // the lower-case name of the rule, such as "sgd" or "adamw"
	LR    float64 `json:"lr"`    // see [Optimizer.SetLR]
	Scale float64 `json:"scale"` // see [Optimizer.SetScale]
	// GroupLRs has the learning rates of [Optimizer.SetGroupLR], by the numbers of their groups.
	GroupLRs map[int]float64 `json:"group_lrs,omitempty"`
	// Steps has the number of steps done with each parameter, in the order of Params. The numbers
	// of SGD include steps that a Scaler skipped.
	Steps   []int64            `json:"steps"`
	Tensors []RememberedTensor `json:"-"`
}

// RememberedTensor is a tensor that an optimizer keeps for a parameter.
type RememberedTensor struct {
	Param int // index in Params
	// Name is PyTorch's name, such as momentum_buffer or exp_avg. The float32 copy that
	// MasterWeights keeps has the name "master".
	Name   string
	DType  cgotorch.DType
	Tensor *cgotorch.Tensor // nil if Load is set
	// Load makes the tensor on x's device. The caller closes it. State sets Load if the tensor lies
	// elsewhere: see [Optimizer.SetLender]. For Restore it is a way to have one tensor at a time.
	Load func(x *cgotorch.Exec) (*cgotorch.Tensor, error)
}

const masterName = "master"

// State returns the state to save. If a [Scaler] has done steps of a rule other than SGD, State
// waits for the device, because it reads how many steps were not skipped. Otherwise it does not
// wait. The optimizer owns the tensors, and the next Step changes them.
func (o *Optimizer) State(x *cgotorch.Exec) State {
	o.readCounts(x)
	s := State{Rule: o.rule.name(), LR: o.lr, Scale: o.scale, Steps: make([]int64, len(o.parameters))}
	for i := range o.groups {
		if lr, ok := o.groups[i].set.Get(); ok {
			if s.GroupLRs == nil {
				s.GroupLRs = map[int]float64{}
			}
			s.GroupLRs[i] = lr
		}
	}
	for i, p := range o.parameters {
		s.Steps[i] = p.step
		if p.step == 0 {
			continue // its tensors hold no values: the first step failed, was skipped, or was captured and not launched
		}
		if o.lender != nil && !p.owns() {
			for _, of := range o.kept(i) {
				if of.Name != masterName || p.mastered {
					of.Load = func(x *cgotorch.Exec) (t *cgotorch.Tensor, err error) {
						o.lender(x, of, false, func(lent *cgotorch.Tensor) { t = x.Clone(lent) })
						return t, nil
					}
					s.Tensors = append(s.Tensors, of)
				}
			}
			continue
		}
		for k, name := range o.rule.remembers() {
			if t := p.state[k]; t != nil {
				s.Tensors = append(s.Tensors, RememberedTensor{Param: i, Name: name, DType: t.DType(), Tensor: t})
			}
		}
		if p.mastered && p.master != nil {
			s.Tensors = append(s.Tensors, RememberedTensor{Param: i, Name: masterName, DType: p.master.DType(), Tensor: p.master})
		}
	}
	return s
}

// readCounts copies the counts of steps from the device to the host, if they may differ.
func (o *Optimizer) readCounts(x *cgotorch.Exec) {
	if !o.skipped {
		return
	}
	x = x.NoGrad().NoAutocast()
	x.Tidy(func() *cgotorch.Tensor {
		var parameters []*parameter
		var counts []*cgotorch.Tensor
		for _, s := range o.parameters {
			if s.count != nil && s.counted {
				parameters, counts = append(parameters, s), append(counts, s.count)
			}
		}
		if len(counts) > 0 {
			for i, n := range cgotorch.ToSlice[float32](x, x.Stack(counts, 0)) {
				parameters[i].step = int64(n)
			}
		}
		return nil
	})
	o.skipped = false
}

// Restore makes the optimizer continue from s. It copies the tensors, and converts their dtypes.
// It also sets the learning rate and the scale. If s has no master for a parameter, the next Step
// makes the master from the parameter. Captured steps can still be launched, except those of SGD
// with Dampening.
//
// The optimizer must have the rule of s. It must have the same number of parameters, in the same
// order. Its options must make it remember the same tensors. Otherwise Restore fails with
// [cgotorch.ErrInvalidArgument] and changes nothing. It fails with the error of a Load in s, and
// has then restored a part.
func (o *Optimizer) Restore(x *cgotorch.Exec, s State) error {
	found, err := o.match(s)
	if err != nil {
		return fmt.Errorf("optim: %s: %w: %w", o.rule.name(), err, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	o.lr, o.scale, o.skipped = s.LR, s.Scale, false
	o.restored++
	for i := range o.groups {
		o.groups[i].set = cgotorch.Opt[float64]{}
		if lr, ok := s.GroupLRs[i]; ok {
			o.groups[i].set = cgotorch.Set(lr)
		}
	}
	for i, p := range o.parameters {
		master := found[i][len(p.state)]
		lent := o.lender != nil && !p.owns()
		if s.Steps[i] > 0 && !lent {
			p.allocate(x, false)
		}
		for k, from := range found[i] {
			if from == nil {
				continue
			}
			if lent {
				of := o.kept(i)[k]
				err = from.use(x, p, func(t *cgotorch.Tensor) {
					o.lender(x, of, true, func(lent *cgotorch.Tensor) { x.CopyInPlace(lent, t).Close() })
				})
			} else {
				to := p.master
				if k < len(p.state) {
					to = p.state[k]
				}
				err = from.use(x, p, func(t *cgotorch.Tensor) { x.CopyInPlace(to, t).Close() })
			}
			if err != nil {
				return fmt.Errorf("optim: %s: %s of parameter %d: %w", o.rule.name(), from.Name, i, err)
			}
		}
		p.mastered = master != nil
		p.counted = false
		p.step = s.Steps[i] // at the end, because a step above 0 means that all tensors hold values
	}
	return nil
}

// use calls fn with the tensor, which Load makes if need be.
func (r *RememberedTensor) use(x *cgotorch.Exec, of *parameter, fn func(t *cgotorch.Tensor)) error {
	if r.Load == nil {
		fn(r.Tensor)
		return nil
	}
	t, err := r.Load(x)
	if err != nil {
		return err
	}
	defer t.Close()
	if !slices.Equal(t.Shape(), of.shape) {
		return fmt.Errorf("it is %s, the parameter is %s: %w", t, of.tensor, cgotorch.ErrInvalidArgument)
	}
	fn(t)
	return nil
}

func (r *RememberedTensor) text() string {
	switch {
	case r == nil:
		return "nil"
	case r.Load != nil:
		return "there"
	}
	return r.Tensor.String()
}

// ResetMasters makes the next Step begin from the values of the parameters, and not from the
// float32 copies of MasterWeights. Call it after the program has written the parameters itself.
// It enqueues nothing.
func (o *Optimizer) ResetMasters() {
	for _, s := range o.parameters {
		s.mastered = false
	}
}

// match returns the tensors of s for each parameter. They are in the order of rule.remembers, and
// the master comes last. Tensors that s does not have are nil.
func (o *Optimizer) match(s State) ([][]*RememberedTensor, error) {
	names := o.rule.remembers()
	switch {
	case o.closed:
		return nil, fmt.Errorf("the optimizer: %w", cgotorch.ErrClosed)
	case s.Rule != o.rule.name():
		return nil, fmt.Errorf("the state is one of %q; restore it to an optimizer of that rule", s.Rule)
	case !legal(s.LR) || !legal(s.Scale):
		return nil, fmt.Errorf("the state has a learning rate of %v, scaled by %v", s.LR, s.Scale)
	case len(s.Steps) != len(o.parameters):
		return nil, fmt.Errorf("the state is of %d parameters, the optimizer has %d", len(s.Steps), len(o.parameters))
	}
	for i, lr := range s.GroupLRs {
		if i < 0 || i >= len(o.groups) || !legal(lr) {
			return nil, fmt.Errorf("the state has a learning rate of %v for group %d, and there are %d groups", lr, i, len(o.groups))
		}
	}
	found := make([][]*RememberedTensor, len(o.parameters))
	for i, p := range o.parameters {
		found[i] = make([]*RememberedTensor, len(names)+1)
		if p.tensor.Closed() {
			return nil, fmt.Errorf("parameter %d: %w", i, cgotorch.ErrClosed)
		}
		if s.Steps[i] < 0 {
			return nil, fmt.Errorf("parameter %d has done %d steps", i, s.Steps[i])
		}
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		if t.Param < 0 || t.Param >= len(o.parameters) {
			return nil, fmt.Errorf("%s is of parameter %d, and there are %d", t.Name, t.Param, len(o.parameters))
		}
		k := slices.Index(names, t.Name)
		if t.Name == masterName && o.parameters[t.Param].wide {
			k = len(names)
		}
		if k < 0 {
			return nil, fmt.Errorf("%s of parameter %d is not kept with these options: give the options that it was saved with", t.Name, t.Param)
		}
		switch want := o.parameters[t.Param].tensor; {
		case t.Load == nil && (t.Tensor == nil || t.Tensor.Closed()):
			return nil, fmt.Errorf("%s of parameter %d: %w", t.Name, t.Param, cgotorch.ErrClosed)
		case found[t.Param][k] != nil:
			return nil, fmt.Errorf("%s of parameter %d is there twice", t.Name, t.Param)
		case t.Load == nil && !slices.Equal(t.Tensor.Shape(), want.Shape()):
			return nil, fmt.Errorf("%s of parameter %d is %s, the parameter is %s", t.Name, t.Param, t.Tensor, want)
		}
		found[t.Param][k] = t
	}
	for i := range found {
		for k, name := range names {
			if t := found[i][k]; (t != nil) != (s.Steps[i] > 0) {
				return nil, fmt.Errorf("parameter %d has done %d steps, and its %s is %s: give the options it was saved with", i, s.Steps[i], name, t.text())
			}
		}
		if found[i][len(names)] != nil && s.Steps[i] == 0 {
			return nil, fmt.Errorf("parameter %d has done no steps, and its %s is there", i, masterName)
		}
	}
	return found, nil
}
