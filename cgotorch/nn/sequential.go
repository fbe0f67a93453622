package nn

import (
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Sequential runs modules one after another. It closes each intermediate once the next module has
// read it, and passes over nil modules.
type Sequential struct {
	Modules []Child
	// Recompute is the number of segments that keep only their input for backward. Backward computes
	// the rest again, by [cgotorch.Exec.Recompute]. That saves memory and costs the time of one more
	// forward. Segments have equally many modules. 0 keeps everything. More segments than modules means
	// a segment for each module. A module that works in place must not begin a segment. The last
	// segment is like the others, unlike in PyTorch's checkpoint_sequential.
	Recompute int
}

// NewSequential names its modules 0, 1, ….
func NewSequential(modules ...Module) *Sequential {
	s := &Sequential{}
	for i, m := range modules {
		s.Modules = append(s.Modules, Child{strconv.Itoa(i), m})
	}
	return s
}

// Children implements [Container].
func (s *Sequential) Children() []Child { return s.Modules }

// Forward gives each module the result of the module before it, and returns the last result.
func (s *Sequential) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	modules := make([]Module, 0, len(s.Modules))
	for _, c := range s.Modules {
		if c.Module != nil {
			modules = append(modules, c.Module)
		}
	}
	if s.Recompute < 0 {
		refuse(x, "nn.Sequential", "Recompute is %d, want a number of segments, or 0 for none", s.Recompute)
	}
	if s.Recompute == 0 || !x.GradEnabled() {
		return chain(x, in, modules)
	}
	segments := min(s.Recompute, len(modules))
	recomputed := make([]Module, segments)
	for i := range segments {
		segment := modules[i*len(modules)/segments : (i+1)*len(modules)/segments]
		recomputed[i] = Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
			return x.Recompute(in, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return chain(x, in, segment) })
		})
	}
	return chain(x, in, recomputed)
}

// chain runs modules one after another. Its result is a handle of its own.
func chain(x *cgotorch.Exec, in *cgotorch.Tensor, modules []Module) *cgotorch.Tensor {
	out := in
	for _, m := range modules {
		next := m.Forward(x, out)
		if out != in && out != next {
			out.Close()
		}
		out = next
	}
	if out == in {
		return x.Alias(in)
	}
	return out
}
