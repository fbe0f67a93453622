package nn

import (
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Sequential runs modules one after another and closes each intermediate once the next module has read it. Modules without
// a value are passed over.
type Sequential struct {
	Modules []Child
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

// Forward gives each module the result of the one before it, and returns that of the last.
func (s *Sequential) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := in
	for _, c := range s.Modules {
		if c.Module == nil {
			continue
		}
		next := c.Module.Forward(x, out)
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
