package distributed

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// masterName is the name of masters in an optim.State.
const masterName = "master"

// State returns the state of the unsharded optimizer, with whole tensors for each parameter. All
// ranks call it, and it waits for the device. It gathers one bucket after another, so the device
// needs little memory for it. Rank 0 keeps the gathered tensors in host memory, and Load brings
// each of them to the device. On the other ranks the result has no tensors. With one rank State is
// [optim.Optimizer.State].
//
// checkpoint.Save calls State: see [Sharded.Saves].
func (s *Sharded) State(x *cgotorch.Exec) optim.State {
	x = s.use(x, "distributed.Sharded.State")
	own := s.inner.State(x)
	if s.group.world == 1 {
		return own
	}
	state := optim.State{Rule: own.Rule, LR: own.LR, Scale: own.Scale, GroupLRs: own.GroupLRs, Steps: make([]int64, len(s.params))}
	found := map[int]map[string]*cgotorch.Tensor{} // by the index in the parameters of inner
	for _, r := range own.Tensors {
		if found[r.Param] == nil {
			found[r.Param] = map[string]*cgotorch.Tensor{}
		}
		found[r.Param][r.Name] = r.Tensor
	}
	// All ranks learn the steps of all parameters, and which of them have masters.
	numbers := make([]int64, 2*len(s.params))
	for i, k := range s.owned {
		numbers[2*i] = own.Steps[k]
		if found[k][masterName] != nil {
			numbers[2*i+1] = 1
		}
	}
	x.Tidy(func() *cgotorch.Tensor {
		all := cgotorch.FromSlice(x, numbers)
		s.group.AllReduce(x, all, Max)
		numbers = cgotorch.ToSlice[int64](x, all)
		return nil
	})
	tensors := make([][]optim.RememberedTensor, len(s.params))
	for i := range s.params {
		state.Steps[i] = numbers[2*i]
	}
	for _, v := range s.vectors {
		for _, kind := range s.kept[v.params[0]] {
			has := func(i int) bool { return numbers[2*i] > 0 && (kind.Name != masterName || numbers[2*i+1] > 0) }
			if !slices.ContainsFunc(v.params, has) {
				continue
			}
			x.Tidy(func() *cgotorch.Tensor {
				parts := make([]*cgotorch.Tensor, len(v.own))
				for k, p := range v.own {
					parts[k] = found[s.owned[p.param]][kind.Name]
				}
				all := x.SplitWithSizes(s.gathered(x, v, kind.DType, parts), v.sizes, 0)
				for k, i := range v.params {
					if s.Saves() && has(i) {
						t := x.Call1("aten::as_strided", all[k], s.params[i].Shape(), s.params[i].Strides())
						tensors[i] = append(tensors[i], onHost(x, i, kind.Name, t))
					}
				}
				return nil
			})
		}
	}
	state.Tensors = slices.Concat(tensors...)
	return state
}

// gathered returns a vector of all ranks' parts. `own` are those of this rank. A nil part is
// undefined.
func (s *Sharded) gathered(x *cgotorch.Exec, v *vector, dtype cgotorch.DType, own []*cgotorch.Tensor) *cgotorch.Tensor {
	piece := x.Empty(dtype, v.piece)
	places := x.SplitWithSizes(piece, v.mine, 0)
	var to, from []*cgotorch.Tensor
	for k, t := range own {
		if t != nil {
			to, from = append(to, places[k]), append(from, t)
		}
	}
	if len(to) > 0 {
		x.ForeachCopyInPlace(to, from)
	}
	return inMemory(x, s.group.AllGather(x, piece))
}

// onHost copies a tensor of parameter i to host memory.
func onHost(x *cgotorch.Exec, i int, name string, t *cgotorch.Tensor) optim.RememberedTensor {
	data, dtype, shape := cgotorch.ToBytes(x, t), t.DType(), t.Shape()
	load := func(x *cgotorch.Exec) (*cgotorch.Tensor, error) {
		return cgotorch.FromBytes(x, data, dtype, shape), nil
	}
	return optim.RememberedTensor{Param: i, Name: name, DType: dtype, Load: load}
}

// Saves reports whether this rank has the whole result of State, and writes the checkpoint. This is
// rank 0. All ranks call checkpoint.Save, with equal arguments, and the other ones write no file.
func (s *Sharded) Saves() bool { return s.group.rank == 0 }

// Restore makes the optimizer continue from the state of an unsharded optimizer, or from a State of
// any number of ranks. Each rank takes its part of it. Restore makes no collective, so each rank
// has the whole state, as checkpoint.Resume gives it. It does not wait, unless a Load of s does.
//
// Restore fails as [optim.Optimizer.Restore] does.
func (s *Sharded) Restore(x *cgotorch.Exec, state optim.State) error {
	if err := s.match(state); err != nil {
		return fmt.Errorf("distributed: sharded %s: %w: %w", s.rule, err, cgotorch.ErrInvalidArgument)
	}
	if s.group.world == 1 {
		return s.inner.Restore(x, state)
	}
	parts := make([]*part, len(s.inner.Params()))
	for _, v := range s.vectors {
		for _, p := range v.own {
			parts[s.owned[p.param]] = p
		}
	}
	own := optim.State{Rule: state.Rule, LR: state.LR, Scale: state.Scale, GroupLRs: state.GroupLRs, Steps: make([]int64, len(parts))}
	for k, p := range parts {
		if p != nil { // nil is the spare
			own.Steps[k] = state.Steps[p.param]
		}
	}
	for _, r := range state.Tensors {
		k, ok := s.owned[r.Param]
		if !ok {
			continue
		}
		load := func(x *cgotorch.Exec) (*cgotorch.Tensor, error) { return s.cut(x, r, parts[k]) }
		own.Tensors = append(own.Tensors, optim.RememberedTensor{Param: k, Name: r.Name, DType: r.DType, Load: load})
	}
	s.drop()
	return s.inner.Restore(x.NoGrad().NoAutocast(), own)
}

// cut returns this rank's part of a whole tensor.
func (s *Sharded) cut(x *cgotorch.Exec, r optim.RememberedTensor, of *part) (*cgotorch.Tensor, error) {
	like, whole := s.params[of.param], r.Tensor
	if r.Load != nil {
		var err error
		if whole, err = r.Load(x); err != nil {
			return nil, err
		}
		defer whole.Close()
		if !slices.Equal(whole.Shape(), like.Shape()) {
			return nil, fmt.Errorf("it is %s, and %s is %s: %w", whole, s.names[of.param], like, cgotorch.ErrInvalidArgument)
		}
	}
	return x.Tidy(func() *cgotorch.Tensor {
		if !alike(whole.Strides(), s.strides[of.param], like.Shape()) {
			whole = x.CopyInPlace(emptyLike(x, like, whole.DType()), whole)
		}
		return x.Clone(x.Narrow(inMemory(x, whole), 0, int(of.from), int(of.length)))
	}), nil
}

// match fails if the state is not one of the unsharded optimizer. The optimizer of this rank checks
// the rest.
func (s *Sharded) match(state optim.State) error {
	switch {
	case s.closed:
		return fmt.Errorf("the optimizer: %w", cgotorch.ErrClosed)
	case state.Rule != s.rule:
		return fmt.Errorf("the state is one of %q; restore it to an optimizer of that rule", state.Rule)
	case len(state.Steps) != len(s.params):
		return fmt.Errorf("the state is of %d parameters, the optimizer has %d", len(state.Steps), len(s.params))
	}
	has := make([]map[string]bool, len(s.params))
	for i, r := range state.Tensors {
		switch {
		case r.Param < 0 || r.Param >= len(s.params):
			return fmt.Errorf("%s is of parameter %d, and there are %d", r.Name, r.Param, len(s.params))
		case !slices.ContainsFunc(s.kept[r.Param], func(kept optim.RememberedTensor) bool { return kept.Name == r.Name }):
			return fmt.Errorf("%s of %s is not kept with these options: give the options that it was saved with", r.Name, s.names[r.Param])
		case r.Load == nil && (r.Tensor == nil || r.Tensor.Closed()):
			return fmt.Errorf("%s of %s: %w", r.Name, s.names[r.Param], cgotorch.ErrClosed)
		case r.Load == nil && !slices.Equal(r.Tensor.Shape(), s.params[r.Param].Shape()):
			return fmt.Errorf("%s of %s is %s, and the parameter is %s", r.Name, s.names[r.Param], r.Tensor, s.params[r.Param])
		case has[r.Param][r.Name]:
			return fmt.Errorf("%s of %s is there twice, as tensor %d", r.Name, s.names[r.Param], i)
		}
		if has[r.Param] == nil {
			has[r.Param] = map[string]bool{}
		}
		has[r.Param][r.Name] = true
	}
	for i, steps := range state.Steps {
		for _, kept := range s.kept[i] {
			if kept.Name != masterName && has[i][kept.Name] != (steps > 0) || has[i][kept.Name] && steps == 0 {
				return fmt.Errorf("%s has done %d steps, and its %s does not fit that: give the options it was saved with", s.names[i], steps, kept.Name)
			}
		}
	}
	return nil
}
