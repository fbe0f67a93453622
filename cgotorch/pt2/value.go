package pt2

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// A Value describes an input of a program.
type Value struct {
	Name  string // of the Python argument, as in `image` or `boxes["left"][0]`
	DType cgotorch.DType
	Shape []Size
	// Fixed is the only value that the program accepts, for an input that is not a tensor. It is an
	// int64, a float64, a bool, a string or nil, which is Python's None. It is also nil for a tensor,
	// and for an integer that may change.
	Fixed   any
	Tensor  bool  // the input is a tensor
	Keyword bool  // Python takes the argument by name alone: give it in [Keywords]
	Bounds  *Size // of an integer that may change; nil for any other input
}

// A Size is the size of one dimension.
type Size struct {
	Text     string // "3", a symbol such as "s0", or a formula such as "4*s0"
	Min, Max int64  // the sizes that are accepted; equal for a fixed size

	expr *expr  // nil for a fixed size
	hint *int64 // the size in the export; nil if the file does not say it
}

// sizes returns the sizes of a tensor's dimensions, or the bounds of an integer that may change.
func (v *Value) sizes() []Size {
	if v.Bounds != nil {
		return []Size{*v.Bounds}
	}
	return v.Shape
}

func describe(t *cgotorch.Tensor) string { return fmt.Sprintf("%v%v", t.DType(), t.Shape()) }

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

// String returns a text such as "float32[s0 3 224 224]".
func (v Value) String() string {
	switch {
	case v.Bounds != nil:
		return "an int"
	case !v.Tensor:
		return fmt.Sprint(v.Fixed)
	}
	sizes := make([]string, len(v.Shape))
	for i, s := range v.Shape {
		sizes[i] = s.Text
	}
	return fmt.Sprintf("%v[%s]", v.DType, strings.Join(sizes, " "))
}
