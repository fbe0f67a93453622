package graph

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
)

// Frame holds the values of one run of a graph, by slot. A value is a *cgotorch.Tensor, an int64,
// a float64, a bool, a string, or nil.
type Frame struct {
	Values    []any
	Postponed map[int]bool // by slot of a linear layer's result: its reader adds the bias
}

// NewFrame returns an empty frame.
func NewFrame(slots int) *Frame { return &Frame{Values: make([]any, slots)} }

// Value returns the value of an operand.
func (o *Operand) Value(f *Frame) any {
	switch {
	case o.Slot >= 0:
		return f.Values[o.Slot]
	case o.Of != NoList:
		v, err := o.Gather(f)
		if err != nil {
			cgotorch.Check(fmt.Errorf("pt2: %w: %w", err, cgotorch.ErrInvalidArgument)) // a value has another type than the file says
		}
		return v
	}
	return o.Constant
}

// Tensor returns the tensor of an operand, or nil.
func (o *Operand) Tensor(f *Frame) *cgotorch.Tensor {
	t, _ := o.Value(f).(*cgotorch.Tensor)
	return t
}

// Gather makes the value of a list.
func (o *Operand) Gather(f *Frame) (any, error) {
	switch o.Of {
	case TensorList:
		list := make([]*cgotorch.Tensor, len(o.List))
		for i := range o.List {
			list[i] = o.List[i].Tensor(f)
		}
		return list, nil
	case IntList:
		list := make([]int64, len(o.List))
		for i := range o.List {
			n, ok := expr.Integer(o.List[i].Value(f))
			if !ok {
				return nil, fmt.Errorf("item %d of a list of integers is %v", i, o.List[i].Value(f))
			}
			list[i] = n
		}
		return list, nil
	case BoolList:
		list := make([]bool, len(o.List))
		for i := range o.List {
			list[i], _ = o.List[i].Value(f).(bool)
		}
		return list, nil
	case FloatList:
		list := make([]float64, len(o.List))
		for i := range o.List {
			n, err := expr.ToFloat(o.List[i].Value(f))
			if err != nil {
				return nil, err
			}
			list[i] = n
		}
		return list, nil
	}
	return nil, errors.New("a list of an unknown kind")
}

// Run runs the steps. The frame holds the inputs. Results that are inputs too get handles of their
// own.
func (g *Graph) Run(x *cgotorch.Exec, f *Frame) []any {
	at := 0
	defer func() {
		if at < len(g.Steps) { // an operator has failed and unwinds
			n := g.Steps[at].Node
			inside.Core.Explain(x, n.place(g.File), n.Cure)
		}
	}()
	for ; at < len(g.Steps); at++ {
		s := &g.Steps[at]
		s.Act.Run(x, f)
		for _, slot := range s.frees {
			if t, ok := f.Values[slot].(*cgotorch.Tensor); ok && t != nil {
				t.Close()
			}
			f.Values[slot] = nil
		}
	}
	results := make([]any, len(g.Outputs))
	for i := range g.Outputs {
		results[i] = g.Outputs[i].Value(f)
		if t, ok := results[i].(*cgotorch.Tensor); ok && g.Aliased[i] && t != nil {
			results[i] = x.Alias(t)
		}
	}
	return results
}

// Call runs a sub-graph with the given inputs.
func (g *Graph) Call(x *cgotorch.Exec, inputs []any) []any {
	if len(inputs) != len(g.Inputs) {
		x.Fail("pt2.Program", fmt.Errorf("the graph %s got %d inputs, want %d: %w", g.Name, len(inputs), len(g.Inputs), cgotorch.ErrInvalidArgument))
	}
	f := NewFrame(g.Slots)
	for i, slot := range g.Inputs {
		f.Values[slot] = inputs[i]
	}
	return g.Run(x, f)
}
