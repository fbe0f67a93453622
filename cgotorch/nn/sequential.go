package nn

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Sequential runs modules one after another. It closes each intermediate result after the next
// module has read that result. It skips nil modules.
type Sequential struct {
	Modules []Child
	// Recompute is the number of segments. A segment consists of successive modules, and keeps only
	// its input for backward. Backward computes the other results again, by
	// [cgotorch.Exec.Recompute]. This saves memory and costs the time of one more forward. Segments
	// have about equally many modules. 0 means that everything is kept. With more segments than
	// modules, each module is a segment.
	//
	// A module that works in place must not begin a segment. The last segment is recomputed too,
	// unlike in PyTorch's checkpoint_sequential.
	Recompute int
}

// NewSequential returns a Sequential whose modules have the names 0, 1, ….
func NewSequential(modules ...Module) *Sequential {
	s := &Sequential{}
	for i, m := range modules {
		s.Modules = append(s.Modules, Child{strconv.Itoa(i), m})
	}
	return s
}

// Children returns the modules. It implements [Container].
func (s *Sequential) Children() []Child { return s.Modules }

// Forward gives each module the result of the module before, and returns the last result.
func (s *Sequential) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	modules := s.present()
	if s.Recompute < 0 {
		refuse(x, "nn.Sequential", "Recompute is %d, want a number of segments, or 0 for none", s.Recompute)
	}
	refuseLoop(x, "nn.Sequential", s)
	x, release := CastWeights(x, s)
	defer release()
	if s.Recompute == 0 || !x.GradEnabled() {
		return chain(x, in, modules)
	}
	segments := min(s.Recompute, len(modules))
	recomputed := make([]Module, segments)
	for i := range segments {
		segment := modules[i*len(modules)/segments : (i+1)*len(modules)/segments]
		recomputed[i] = Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
			return x.Recompute(in, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
				x, release := CastWeights(x, segment) // in the second call, whose Exec has no casts
				defer release()
				return chain(x, in, segment)
			})
		})
	}
	return chain(x, in, recomputed)
}

// refuseLoop fails if one of this package's containers holds itself through others of them.
func refuseLoop(x *cgotorch.Exec, where string, of Container) {
	if path := loopOf(of, nil); path != "" {
		refuse(x, where, "the child %s is a module that is around it, so Forward would not end: take it out of the children", path)
	}
}

// loopOf returns the path to a child that is the container `of` or one of those around it, or "".
func loopOf(of Container, around []Container) string {
	for _, child := range of.Children() {
		var inner Container
		switch m := child.Module.(type) {
		case *Sequential:
			inner = m
		case *Parallel:
			inner = m
		}
		if inner == nil || absent(child.Module) {
			continue
		}
		name := cmp.Or(child.Name, "without a name")
		if inner == of || slices.Contains(around, inner) {
			return name
		}
		if path := loopOf(inner, append(around, of)); path != "" {
			return join(name, path)
		}
	}
	return ""
}

// present returns the modules that are not nil.
func (s *Sequential) present() []Module {
	modules := make([]Module, 0, len(s.Modules))
	for _, c := range s.Modules {
		if !absent(c.Module) {
			modules = append(modules, c.Module)
		}
	}
	return modules
}

// chain runs modules one after another. Some successive modules run as one operator: see
// [together]. It returns a new handle.
func chain(x *cgotorch.Exec, in *cgotorch.Tensor, modules []Module) *cgotorch.Tensor {
	out := in
	for len(modules) > 0 {
		next, count := together(x, out, modules)
		if count == 0 {
			next, count = modules[0].Forward(x, out), 1
		}
		modules = modules[count:]
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

// stemPool is the pooling that [NormReLUMaxPool] does.
var stemPool = MaxPool2d{Kernel: Square(3), Stride: Square(2), Padding: Square(1)}

// together runs the first modules as one operator, and returns how many they are. They are a norm
// and its activation, with or without the pooling of a ResNet's stem, or a linear layer and its
// GELU. It returns 0 if there is no operator for them.
func together(x *cgotorch.Exec, in *cgotorch.Tensor, modules []Module) (out *cgotorch.Tensor, count int) {
	if len(modules) < 2 {
		return nil, 0
	}
	switch m := modules[0].(type) {
	case *BatchNorm2d:
		name := activationName(modules[1])
		if len(modules) > 2 && name == "relu" {
			if pool, ok := modules[2].(*MaxPool2d); ok && *pool == stemPool {
				return NormReLUMaxPool(x, m, in), 3
			}
		}
		if name != "" {
			return m.activated(x, in, nil, name), 2
		}
	case *Linear:
		if gelu, ok := modules[1].(*GELU); ok {
			return m.activated(x, in, gelu), 2
		}
	}
	return nil, 0
}
