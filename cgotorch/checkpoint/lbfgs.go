package checkpoint

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// LBFGSInfo holds all fields of the state of an [optim.LBFGS] except its tensors.
type LBFGSInfo struct {
	Params []string `json:"params"` // names of the parameters in the model, in the order of the vectors
	optim.LBFGSState
}

// lbfgs appends the tensors of c.LBFGS.
func (c *Checkpoint) lbfgs(x *cgotorch.Exec, tensors []safetensors.Tensor, names map[*cgotorch.Tensor]string) (*LBFGSInfo, []safetensors.Tensor, error) {
	info := &LBFGSInfo{LBFGSState: c.LBFGS.State()}
	var err error
	if info.Params, err = paramNames("the LBFGS", c.LBFGS.Params(), names); err != nil {
		return nil, nil, err
	}
	for name, v := range vectors(&info.LBFGSState) {
		if *v == nil {
			continue // before the first step
		}
		t, err := entry(x, name, *v)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %s: %w", name, err)
		}
		tensors = append(tensors, t)
	}
	return info, tensors, nil
}

// vectors yields the names and places of a state's tensors. Y and S must have their lengths.
func vectors(s *optim.LBFGSState) func(yield func(name string, v **cgotorch.Tensor) bool) {
	return func(yield func(name string, v **cgotorch.Tensor) bool) {
		if !yield(ofLBFGS+"direction", &s.Direction) || !yield(ofLBFGS+"gradient", &s.Gradient) {
			return
		}
		for i := range s.Y {
			if !yield(fmt.Sprintf("%sy/%d", ofLBFGS, i), &s.Y[i]) || !yield(fmt.Sprintf("%ss/%d", ofLBFGS, i), &s.S[i]) {
				return
			}
		}
	}
}

// restoreLBFGS fails if the file's LBFGS had other parameters, or the same in another order. The
// options are the program's.
func (f *file) restoreLBFGS(x *cgotorch.Exec, model any, opt *optim.LBFGS) error {
	saved := f.info.LBFGS
	names, err := paramNames("the LBFGS", opt.Params(), tensorNames(model))
	if err != nil {
		return f.fail("%w", err)
	}
	if !slices.Equal(names, saved.Params) {
		i := 0
		for i < min(len(names), len(saved.Params)) && names[i] == saved.Params[i] {
			i++
		}
		return f.fail("its LBFGS had %d parameters and this one has %d, and they differ from number %d on: give the same in the same order: %w", len(saved.Params), len(names), i, cgotorch.ErrInvalidArgument)
	}
	s := saved.LBFGSState
	s.Y, s.S = make([]*cgotorch.Tensor, len(s.Ro)), make([]*cgotorch.Tensor, len(s.Ro))
	var made []*cgotorch.Tensor
	defer func() {
		for _, t := range made {
			t.Close()
		}
	}()
	for name, v := range vectors(&s) {
		if s.Iterations == 0 {
			break
		}
		if *v, err = f.tensor(x, name); err != nil {
			return err
		}
		made = append(made, *v)
	}
	if err := opt.Restore(x, s); err != nil {
		return f.fail("%w", err)
	}
	return nil
}
