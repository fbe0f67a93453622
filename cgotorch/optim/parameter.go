package optim

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// parameter is a parameter of the program, with the tensors that the optimizer remembers for it.
// The first step makes these tensors. If that step is captured, they hold no values until the
// first launch. They hold values when step is above 0.
type parameter struct {
	index          int
	tensor         *cgotorch.Tensor
	shape, strides []int64 // shape and strides of tensor
	step           int64   // number of steps done; can be too high, see Optimizer.skipped
	state          []*cgotorch.Tensor
	initial        float64 // the value of state before the first step

	// count is the number of steps, a float32 tensor of shape []. It is nil if the rule needs no
	// count. It does not include steps that the device skipped.
	count   *cgotorch.Tensor
	counted bool // count is up to date on the device

	wide     bool             // the parameter has a dtype of 16 bits and a master
	master   *cgotorch.Tensor // float32
	mastered bool             // master has the values from which the next step begins
	dense    bool             // fused kernels may take the parameter, because nothing they read or write has gaps
}

// empty makes a tensor with the layout of p's remembered tensors. Its values are undefined.
func (p *parameter) empty(x *cgotorch.Exec) *cgotorch.Tensor {
	if p.wide {
		return emptyLike(x, p.tensor, cgotorch.Float32)
	}
	return x.EmptyLike(p.tensor)
}

func emptyLike(x *cgotorch.Exec, t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	return x.Call1("aten::empty_like", t, dtype)
}

// allocate makes those tensors of p that do not exist yet.
func (p *parameter) allocate(x *cgotorch.Exec, count bool) {
	x = inside.Core.Uncaptured(x) // the tensors outlive the graph, and prepare writes them before a launch
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

// prepare gives tensors the values that the next step reads. Before a parameter's first step, it
// sets the remembered tensors and the count to 0. Before a later step, it writes the count of steps
// into `count`, if `count` is out of date. Before a first step, or if the master is out of date, it
// copies the parameter into the master. All parameters are of one bucket.
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
	if v := parameters[0].initial; v != 0 && len(fresh) > 0 {
		x.ForeachAddScalarInPlace(fresh, v)
	}
	if len(masters) > 0 {
		x.ForeachCopyInPlace(masters, params)
	}
}

// owns reports whether the optimizer has made the tensors of p.
func (p *parameter) owns() bool {
	return p.master != nil || len(p.state) > 0 && p.state[0] != nil
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
