package optim

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// parameter is a parameter with the tensors remembered of it. The first step makes these tensors,
// and may be captured and not run yet. They hold values once step is above 0, which is after the
// first step has been enqueued.
type parameter struct {
	index          int
	tensor         *cgotorch.Tensor
	shape, strides []int64 // of tensor
	step           int64   // number of steps done; see Optimizer.skipped
	state          []*cgotorch.Tensor

	// count is the number of steps as float32 [], where the rule needs it. The device leaves out steps
	// that it skipped.
	count   *cgotorch.Tensor
	counted bool // count holds that number

	wide     bool             // the parameter is of 16 bits and has a master
	master   *cgotorch.Tensor // float32
	mastered bool             // master holds the values that the parameter holds rounded
}

// empty makes a tensor for the parameter like its remembered tensors, with undefined values.
func (p *parameter) empty(x *cgotorch.Exec) *cgotorch.Tensor {
	if p.wide {
		return emptyLike(x, p.tensor, cgotorch.Float32)
	}
	return x.EmptyLike(p.tensor)
}

func emptyLike(x *cgotorch.Exec, t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	return x.Call("aten::empty_like", t, dtype)[0].(*cgotorch.Tensor)
}

// allocate makes the tensors that are missing.
func (p *parameter) allocate(x *cgotorch.Exec, count bool) {
	x = x.Uncaptured() // prepare writes them before a launch
	for k, t := range p.state {
		if t == nil {
			p.state[k] = x.Keep(p.empty(x))
		}
	}
	if count && p.count == nil {
		p.count = x.Keep(x.Empty(cgotorch.Float32))
	}
	if p.wide && p.master == nil {
		p.master = x.Keep(p.empty(x))
	}
}

// prepare writes the values that the next step of parameters of one bucket reads, where these are
// missing.
func prepare(x *cgotorch.Exec, parameters []*parameter) {
	var fresh, counts, masters, params []*cgotorch.Tensor
	for _, s := range parameters {
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
			masters, params = append(masters, s.master), append(params, s.tensor)
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

func (p *parameter) laidOutLike(strides []int64) bool {
	for i, n := range strides {
		if n != p.strides[i] && p.shape[i] != 1 {
			return false
		}
	}
	return true
}

func (p *parameter) close() error {
	errs := []error{p.count.Close(), p.master.Close()}
	p.count, p.master = nil, nil
	for k, t := range p.state {
		errs = append(errs, t.Close())
		p.state[k] = nil
	}
	return errors.Join(errs...)
}
