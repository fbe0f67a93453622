package pt2

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/guard"
)

// Node is one line of a program.
type Node struct {
	Name     string // the name of its result, or that of the first one
	Operator string // as in "aten.conv2d.default"
	Text     string // the whole line: results, operator and arguments
	Module   string // the name of the Python module that made it, such as "layer1.0.conv1"; "" if it is not known
	Where    string // the line of Python that made it, as in "model.py:42: y = self.fc(x)"; "" if it is not known
	Waits    bool   // it waits for the device, because a size or a branch depends on its values
}

// Value describes an input of a program.
type Value struct {
	Name  string // of the Python argument, as in `image` or `boxes["left"][0]`
	DType cgotorch.DType
	Shape []Size
	// Fixed is the only value that the program accepts, for an input that is not a tensor. It is an
	// int64, a float64, a bool, a string or nil, which is Python's None. It is also nil for a
	// tensor, and for an integer that may change.
	Fixed   any
	Tensor  bool  // the input is a tensor
	Keyword bool  // Python takes the argument by name alone: give it in [Keywords]
	Bounds  *Size // of an integer that may change; nil for any other input

	text string
}

// Size is the size of one dimension.
type Size struct {
	Text     string // "3", a symbol such as "s0", or a formula such as "4*s0"
	Min, Max int64  // the sizes that are accepted; equal for a fixed size
}

// String returns a text such as "float32[s0 3 224 224]".
func (v Value) String() string { return v.text }

func valueOf(in *guard.Input) Value {
	v := Value{Name: in.Name, DType: in.DType, Fixed: in.Fixed, Tensor: in.Tensor, Keyword: in.Keyword, text: in.String()}
	for _, s := range in.Shape {
		v.Shape = append(v.Shape, Size{s.Text, s.Min, s.Max})
	}
	if in.Bounds != nil {
		v.Bounds = &Size{in.Bounds.Text, in.Bounds.Min, in.Bounds.Max}
	}
	return v
}

// shown describes a value that may be no tensor. It is short.
func shown(v any) string {
	t, ok := v.(*cgotorch.Tensor)
	switch {
	case v == nil:
		return "None (nil)"
	case ok && t == nil:
		return "a nil *Tensor"
	case ok && t.Closed():
		return "a closed tensor"
	case ok:
		return describe(t)
	}
	return fmt.Sprintf("%.60s (a %T)", fmt.Sprint(v), v)
}

func describe(t *cgotorch.Tensor) string { return fmt.Sprintf("%v%v", t.DType(), t.Shape()) }
