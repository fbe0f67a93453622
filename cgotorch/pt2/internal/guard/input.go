package guard

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
)

// Input is a value that a caller gives to a program.
type Input struct {
	Name  string // of the Python argument, as in `image` or `boxes["left"][0]`
	DType cgotorch.DType
	Shape []Size
	// Fixed is the only value that the program accepts, for an input that is not a tensor. It is an
	// int64, a float64, a bool, a string or nil, which is Python's None. It is also nil for a
	// tensor, and for an integer that may change.
	Fixed   any
	Tensor  bool  // the input is a tensor
	Keyword bool  // Python takes the argument by name alone: give it in Keywords
	Bounds  *Size // of an integer that may change; nil for any other input
}

// Size is the size of one dimension.
type Size struct {
	Text string // "3", a symbol such as "s0", or a formula such as "4*s0"
	Limits
	Expr *expr.Expr // nil for a fixed size
	Hint *int64     // the size in the export; nil if the file does not say it
}

// Limits are the sizes that are accepted. They are equal for a fixed size.
type Limits struct{ Min, Max int64 }

// Sizes returns the sizes of a tensor's dimensions, or the bounds of an integer that may change.
func (v *Input) Sizes() []Size {
	if v.Bounds != nil {
		return []Size{*v.Bounds}
	}
	return v.Shape
}

// String returns a text such as "float32[s0 3 224 224]".
func (v Input) String() string {
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

// shapeOf returns the shape of a leaf: of a tensor, or the shape itself.
func shapeOf(leaf any) []int64 {
	if t, ok := leaf.(*cgotorch.Tensor); ok {
		return t.Shape()
	}
	shape, _ := leaf.([]int64)
	return shape
}

// accept returns why an integer does not lie in its bounds, or is not the size that it must equal.
func (v *Input) accept(n int64, symbols map[string]any) error {
	s := v.Bounds
	if n < s.Min {
		return fmt.Errorf("the input %s is %d, want %d or more", v.Name, n, s.Min)
	}
	if n > s.Max {
		return fmt.Errorf("the input %s is %d, want %d or less", v.Name, n, s.Max)
	}
	if s.Expr == nil || s.Expr.Of != "symbol" {
		return nil
	}
	if before, ok := symbols[s.Expr.Symbol]; ok && before != n {
		return fmt.Errorf("the input %s is %d, want %s = %d as before", v.Name, n, s.Text, before)
	}
	symbols[s.Expr.Symbol] = n
	return nil
}

// MaxSize is the largest size.
const MaxSize = 1<<63 - 1
