package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
)

// Function is a function on numbers.
type Function struct {
	Node *Node
	Of   func(args []any) (any, error)
	Args []Operand
	Out  int
}

func (c *Function) Reads() []*Operand { return Pointers(c.Args) }

func (c *Function) Fills() []int { return []int{c.Out} }

func (c *Function) Run(x *cgotorch.Exec, f *Frame) {
	args := make([]any, len(c.Args))
	for i := range c.Args {
		args[i] = c.Args[i].Value(f)
	}
	v, err := c.Of(args)
	if err != nil {
		x.Fail(c.Node.Operator, fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument))
	}
	f.Values[c.Out] = v
}

// SizeOf are the operators that read a number of a tensor's geometry. The argument i is a
// dimension.
var SizeOf = map[string]func(t *cgotorch.Tensor, i int) int64{
	"aten.sym_size.int":      func(t *cgotorch.Tensor, i int) int64 { return t.Shape()[i] },
	"aten.sym_stride.int":    func(t *cgotorch.Tensor, i int) int64 { return t.Strides()[i] },
	"aten.sym_numel.default": func(t *cgotorch.Tensor, _ int) int64 { return t.Numel() },
}

// SizeRead reads a number of a tensor's geometry.
type SizeRead struct {
	Node   *Node
	Of     func(t *cgotorch.Tensor, i int) int64
	Tensor Operand
	Dim    int64
	HasDim bool
	Out    int
}

func (s *SizeRead) Reads() []*Operand { return []*Operand{&s.Tensor} }

func (s *SizeRead) Fills() []int { return []int{s.Out} }

func (s *SizeRead) Run(x *cgotorch.Exec, f *Frame) {
	t, dim := s.Tensor.Tensor(f), s.Dim
	dims := 0
	if t != nil {
		dims = t.Dim()
	}
	if dim < 0 {
		dim += int64(dims)
	}
	if t == nil || s.HasDim && (dim < 0 || dim >= int64(dims)) {
		x.Fail(s.Node.Operator, fmt.Errorf("%v has no dimension %d: %w", t, s.Dim, cgotorch.ErrInvalidArgument))
	}
	f.Values[s.Out] = s.Of(t, int(dim))
}

// Assertion fails if a condition of the model does not hold.
type Assertion struct{ Args []Operand } // the condition, and a text

func (a *Assertion) Reads() []*Operand { return Pointers(a.Args) }

func (a *Assertion) Fills() []int { return nil }

func (a *Assertion) Run(x *cgotorch.Exec, f *Frame) {
	if holds, ok := expr.Integer(a.Args[0].Value(f)); ok && holds != 0 {
		return
	}
	why := "a condition of the model does not hold"
	if len(a.Args) > 1 {
		if text, ok := a.Args[1].Value(f).(string); ok {
			why = text
		}
	}
	x.Fail("pt2.Program", fmt.Errorf("%.300s: %w", why, cgotorch.ErrInvalidArgument))
}
