package optim

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// State is the state that an optimizer needs, beside its options, to continue as if it had not been
// interrupted.
type State struct {
	Rule  string  `json:"rule"`  // "sgd", "adam" or "adamw"
	LR    float64 `json:"lr"`    // see [Optimizer.SetLR]
	Scale float64 `json:"scale"` // see [Optimizer.SetScale]
	// Steps counts the steps done with each parameter, in the order of Params. Those of SGD include
	// steps that a Scaler skipped.
	Steps   []int64            `json:"steps"`
	Tensors []RememberedTensor `json:"-"`
}

// RememberedTensor is a tensor that an optimizer keeps for a parameter.
type RememberedTensor struct {
	Param int // index in Params
	// Name is PyTorch's: momentum_buffer, exp_avg, exp_avg_sq or max_exp_avg_sq. A master's is
	// "master": see MasterWeights of the options.
	Name   string
	DType  cgotorch.DType
	Tensor *cgotorch.Tensor
}

const masterName = "master"

// State returns the state to save. After a [Scaler]'s steps with Adam or AdamW it waits for the
// device, to read how many were not skipped. Otherwise it does not wait. The optimizer owns the
// tensors, and the next Step changes them.
func (o *Optimizer) State(x *cgotorch.Exec) State {
	o.readCounts(x)
	s := State{Rule: o.rule.name(), LR: o.lr, Scale: o.scale, Steps: make([]int64, len(o.parameters))}
	for i, p := range o.parameters {
		s.Steps[i] = p.step
		if p.step == 0 {
			continue // its tensors stem from a first step that failed, was skipped, or was captured and not run yet
		}
		for k, name := range o.rule.remembers() {
			if t := p.state[k]; t != nil {
				s.Tensors = append(s.Tensors, RememberedTensor{i, name, t.DType(), t})
			}
		}
		if p.mastered {
			s.Tensors = append(s.Tensors, RememberedTensor{i, masterName, p.master.DType(), p.master})
		}
	}
	return s
}

// readCounts sets the host's counts of steps to those of the device, where they can differ.
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
// The learning rate and its scale become those of s. The next Step makes masters that s lacks from
// the parameters. Captured steps can still be launched.
//
// The rule must be the same, with as many parameters in the same order, and with options that make
// it remember the same tensors. Otherwise Restore fails with [cgotorch.ErrInvalidArgument] and
// changes nothing.
func (o *Optimizer) Restore(x *cgotorch.Exec, s State) error {
	found, err := o.match(s)
	if err != nil {
		return fmt.Errorf("optim: %s: %w: %w", o.rule.name(), err, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	o.lr, o.scale, o.skipped = s.LR, s.Scale, false
	o.restored++
	for i, p := range o.parameters {
		master := found[i][len(p.state)]
		if s.Steps[i] > 0 {
			p.allocate(x, false)
		}
		for k, t := range p.state {
			if from := found[i][k]; from != nil {
				x.CopyInPlace(t, from).Close()
			}
		}
		if p.mastered = master != nil; p.mastered {
			x.CopyInPlace(p.master, master).Close()
		}
		p.counted = false
		p.step = s.Steps[i] // now that all its tensors are restored
	}
	return nil
}

// ResetMasters makes the next Step begin from the parameters, and not from the float32 copies of
// MasterWeights. Call it after the program has written the parameters itself. It enqueues nothing.
func (o *Optimizer) ResetMasters() {
	for _, s := range o.parameters {
		s.mastered = false
	}
}

// match finds the tensors of s for each parameter, in the rule's order, and behind those the
// master.
func (o *Optimizer) match(s State) ([][]*cgotorch.Tensor, error) {
	names := o.rule.remembers()
	switch {
	case o.closed:
		return nil, fmt.Errorf("the optimizer: %w", cgotorch.ErrClosed)
	case s.Rule != o.rule.name():
		return nil, fmt.Errorf("the state is one of %q", s.Rule)
	case !legal(s.LR) || !legal(s.Scale):
		return nil, fmt.Errorf("the state has a learning rate of %v, scaled by %v", s.LR, s.Scale)
	case len(s.Steps) != len(o.parameters):
		return nil, fmt.Errorf("the state is of %d parameters, the optimizer has %d", len(s.Steps), len(o.parameters))
	}
	found := make([][]*cgotorch.Tensor, len(o.parameters))
	for i, p := range o.parameters {
		found[i] = make([]*cgotorch.Tensor, len(names)+1)
		if p.tensor.Closed() {
			return nil, fmt.Errorf("parameter %d: %w", i, cgotorch.ErrClosed)
		}
		if s.Steps[i] < 0 {
			return nil, fmt.Errorf("parameter %d has done %d steps", i, s.Steps[i])
		}
	}
	for _, t := range s.Tensors {
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
		case t.Tensor == nil || t.Tensor.Closed():
			return nil, fmt.Errorf("%s of parameter %d: %w", t.Name, t.Param, cgotorch.ErrClosed)
		case found[t.Param][k] != nil:
			return nil, fmt.Errorf("%s of parameter %d is there twice", t.Name, t.Param)
		case !slices.Equal(t.Tensor.Shape(), want.Shape()):
			return nil, fmt.Errorf("%s of parameter %d is %v, the parameter is %v", t.Name, t.Param, t.Tensor, want)
		}
		found[t.Param][k] = t.Tensor
	}
	for i := range found {
		for k, name := range names {
			if t := found[i][k]; (t != nil) != (s.Steps[i] > 0) {
				return nil, fmt.Errorf("parameter %d has done %d steps, and its %s is %v: give the options it was saved with", i, s.Steps[i], name, t)
			}
		}
		if found[i][len(names)] != nil && s.Steps[i] == 0 {
			return nil, fmt.Errorf("parameter %d has done no steps, and its %s is there", i, masterName)
		}
	}
	return found, nil
}
