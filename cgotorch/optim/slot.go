package optim

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slot is what is remembered of one parameter. Its tensors are made by the first step, which may be captured and not run yet: they hold
// something from when step is above 0 on, which is after that first step has been enqueued.
type slot struct {
	index          int
	param          *cgotorch.Tensor
	shape, strides []int64 // the parameter's
	step           int64   // number of steps done; see Optimizer.skipped
	state          []*cgotorch.Tensor

	count   *cgotorch.Tensor // of steps, float32 [], where the rule needs it; the device does not count those that it skipped
	counted bool             // count holds that number

	wide     bool             // the parameter is of 16 bits and has a master
	master   *cgotorch.Tensor // float32
	mastered bool             // master holds what the parameter is a rounded copy of
}

// empty makes a tensor like those that are kept for the parameter, whose values are undefined.
func (s *slot) empty(x *cgotorch.Exec) *cgotorch.Tensor {
	if s.wide {
		return emptyLike(x, s.param, cgotorch.Float32)
	}
	return x.EmptyLike(s.param)
}

func emptyLike(x *cgotorch.Exec, t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	return x.Call("aten::empty_like", t, dtype)[0].(*cgotorch.Tensor)
}

// allocate makes those tensors that are not there yet.
func (s *slot) allocate(x *cgotorch.Exec, count bool) {
	x = x.Uncaptured() // prepare writes them before a launch
	for k, t := range s.state {
		if t == nil {
			s.state[k] = x.Keep(s.empty(x))
		}
	}
	if count && s.count == nil {
		s.count = x.Keep(x.Empty(cgotorch.Float32))
	}
	if s.wide && s.master == nil {
		s.master = x.Keep(s.empty(x))
	}
}

// prepare writes what the next step of slots of one bucket finds in their tensors, where that is not there yet.
func prepare(x *cgotorch.Exec, slots []*slot) {
	var fresh, counts, masters, params []*cgotorch.Tensor
	for _, s := range slots {
		first := s.step == 0
		if first {
			fresh = append(fresh, s.state...)
		}
		if s.count != nil && (first || !s.counted) {
			if first {
				counts = append(counts, s.count)
			} else {
				x.FillInPlace(s.count, float64(s.step)).Close()
			}
			s.counted = true
		}
		if s.wide && (first || !s.mastered) {
			masters, params = append(masters, s.master), append(params, s.param)
			s.mastered = true
		}
	}
	for _, zeros := range [][]*cgotorch.Tensor{fresh, counts} {
		if len(zeros) > 0 {
			x.ForeachZeroInPlace(zeros)
		}
	}
	if len(masters) > 0 {
		x.ForeachCopyInPlace(masters, params)
	}
}

func (s *slot) laidOutLike(strides []int64) bool {
	for i, n := range strides {
		if n != s.strides[i] && s.shape[i] != 1 {
			return false
		}
	}
	return true
}

func (s *slot) close() error {
	errs := []error{s.count.Close(), s.master.Close()}
	s.count, s.master = nil, nil
	for k, t := range s.state {
		errs = append(errs, t.Close())
		s.state[k] = nil
	}
	return errors.Join(errs...)
}
