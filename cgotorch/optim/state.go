package optim

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// State is what an optimizer needs beside its options to go on as if it had not been interrupted.
type State struct {
	Rule    string             `json:"rule"`  // "sgd", "adam" or "adamw"
	LR      float64            `json:"lr"`    // see [Optimizer.SetLR]
	Scale   float64            `json:"scale"` // see [Optimizer.SetScale]
	Steps   []int64            `json:"steps"` // number of steps done with each parameter, in the order of Params; of SGD also those that a Scaler skipped
	Tensors []RememberedTensor `json:"-"`
}

// RememberedTensor is one tensor that an optimizer keeps for a parameter.
type RememberedTensor struct {
	Param  int    // index in Params
	Name   string // PyTorch's: momentum_buffer, exp_avg, exp_avg_sq or max_exp_avg_sq; or master, see MasterWeights of the options
	Tensor *cgotorch.Tensor
}

const masterName = "master"

// State waits for the device if it may have skipped steps of Adam or AdamW for a [Scaler], to read how many were done, and returns what
// there is to save. The tensors are borrowed: the next Step changes them.
func (o *Optimizer) State(x *cgotorch.Exec) State {
	o.readCounts(x)
	s := State{Rule: o.rule.name(), LR: o.lr, Scale: o.scale, Steps: make([]int64, len(o.slots))}
	for i, slot := range o.slots {
		s.Steps[i] = slot.step
		if slot.step == 0 {
			continue // what there is was left by a first step that failed, was skipped, or was captured and not run yet
		}
		for k, name := range o.rule.remembers() {
			if t := slot.state[k]; t != nil {
				s.Tensors = append(s.Tensors, RememberedTensor{i, name, t})
			}
		}
		if slot.mastered {
			s.Tensors = append(s.Tensors, RememberedTensor{i, masterName, slot.master})
		}
	}
	return s
}

// readCounts makes the slots' counts of steps those of the device, where they can differ.
func (o *Optimizer) readCounts(x *cgotorch.Exec) {
	if !o.skipped {
		return
	}
	x = x.NoGrad().NoAutocast()
	x.Tidy(func() *cgotorch.Tensor {
		var slots []*slot
		var counts []*cgotorch.Tensor
		for _, s := range o.slots {
			if s.count != nil && s.counted {
				slots, counts = append(slots, s), append(counts, s.count)
			}
		}
		if len(counts) > 0 {
			for i, n := range cgotorch.ToSlice[float32](x, x.Stack(counts, 0)) {
				slots[i].step = int64(n)
			}
		}
		return nil
	})
	o.skipped = false
}

// Restore makes the optimizer go on from s, whose tensors are copied; their dtypes are converted. The optimizer must be of
// the same rule, with as many parameters in the same order, and options that make it remember the same; otherwise Restore
// fails with [cgotorch.ErrInvalidArgument] and changes nothing. The learning rate and its scale become those of s. Masters that s does not
// have are made of the parameters by the next Step. Graphs that steps were captured in can be launched still.
func (o *Optimizer) Restore(x *cgotorch.Exec, s State) error {
	found, err := o.match(s)
	if err != nil {
		return fmt.Errorf("optim: %s: %w: %w", o.rule.name(), err, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	o.lr, o.scale, o.skipped = s.LR, s.Scale, false
	o.restored++
	for i, slot := range o.slots {
		master := found[i][len(slot.state)]
		if s.Steps[i] > 0 {
			slot.allocate(x, false)
		}
		for k, t := range slot.state {
			if from := found[i][k]; from != nil {
				x.CopyInPlace(t, from).Close()
			}
		}
		if slot.mastered = master != nil; slot.mastered {
			x.CopyInPlace(slot.master, master).Close()
		}
		slot.counted = false
		slot.step = s.Steps[i] // now that all that goes with it is there
	}
	return nil
}

// ResetMasters makes the next Step begin from the parameters and not from the float32 copies that MasterWeights keeps of them: for when
// the program has written the parameters itself. It enqueues nothing.
func (o *Optimizer) ResetMasters() {
	for _, s := range o.slots {
		s.mastered = false
	}
}

// match finds the tensors of s for each slot, in the order that the rule remembers them, and behind those the master.
func (o *Optimizer) match(s State) ([][]*cgotorch.Tensor, error) {
	names := o.rule.remembers()
	switch {
	case o.closed:
		return nil, fmt.Errorf("the optimizer: %w", cgotorch.ErrClosed)
	case s.Rule != o.rule.name():
		return nil, fmt.Errorf("the state is one of %q", s.Rule)
	case !legal(s.LR) || !legal(s.Scale):
		return nil, fmt.Errorf("the state has a learning rate of %v, scaled by %v", s.LR, s.Scale)
	case len(s.Steps) != len(o.slots):
		return nil, fmt.Errorf("the state is of %d parameters, the optimizer has %d", len(s.Steps), len(o.slots))
	}
	found := make([][]*cgotorch.Tensor, len(o.slots))
	for i, slot := range o.slots {
		found[i] = make([]*cgotorch.Tensor, len(names)+1)
		if slot.param.Closed() {
			return nil, fmt.Errorf("parameter %d: %w", i, cgotorch.ErrClosed)
		}
		if s.Steps[i] < 0 {
			return nil, fmt.Errorf("parameter %d has done %d steps", i, s.Steps[i])
		}
	}
	for _, t := range s.Tensors {
		if t.Param < 0 || t.Param >= len(o.slots) {
			return nil, fmt.Errorf("%s is of parameter %d, and there are %d", t.Name, t.Param, len(o.slots))
		}
		k := slices.Index(names, t.Name)
		if t.Name == masterName && o.slots[t.Param].wide {
			k = len(names)
		}
		if k < 0 {
			return nil, fmt.Errorf("%s of parameter %d is nothing that it keeps with these options: give those it was saved with", t.Name, t.Param)
		}
		switch want := o.slots[t.Param].param; {
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
