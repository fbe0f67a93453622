package graph

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostRounds bounds a whileLoop. The condition of a damaged file may never become false. Each round
// waits for the device, so this many take half a minute or more there.
const mostRounds = 1 << 20

// WhileLoop runs the graph `body` on its own results as long as the graph `holds` returns true, in
// at most mostRounds rounds.
type WhileLoop struct {
	Node        *Node
	Holds, Body *Graph
	Args        []Operand // the values that change, then those that stay
	Outs        []int
}

func (l *WhileLoop) Reads() []*Operand { return Pointers(l.Args) }
func (l *WhileLoop) Fills() []int      { return l.Outs }

func (l *WhileLoop) Run(x *cgotorch.Exec, f *Frame) {
	carried, fixed := spread(f, l.Args[:1]), spread(f, l.Args[1:])
	ours := false // `carried` belongs to the loop
	for round := 0; ; round++ {
		if round == mostRounds {
			x.Fail(l.Node.Operator, fmt.Errorf("the loop has not ended after %d rounds: the file is damaged, or the loop's condition never becomes false; export a longer loop in parts: %w", mostRounds, cgotorch.ErrInvalidArgument))
		}
		inputs := append(append([]any{}, carried...), fixed...)
		goOn := l.Holds.Call(x, inputs)
		if len(goOn) != 1 {
			x.Fail(l.Node.Operator, fmt.Errorf("the condition has %d results, want one: %w", len(goOn), cgotorch.ErrInvalidArgument))
		}
		holds := truth(x, l.Node, goOn[0])
		closeAll(goOn)
		if !holds {
			break
		}
		next := l.Body.Call(x, inputs)
		if ours {
			closeAll(carried)
		}
		carried, ours = next, true
	}
	if !ours {
		carried = aliases(x, carried)
	}
	store(x, f, l.Outs, carried)
}

func closeAll(values []any) {
	for _, v := range values {
		if t, ok := v.(*cgotorch.Tensor); ok && t != nil {
			t.Close()
		}
	}
}

func aliases(x *cgotorch.Exec, values []any) []any {
	own := make([]any, len(values))
	for i, v := range values {
		own[i] = v
		if t, ok := v.(*cgotorch.Tensor); ok && t != nil {
			own[i] = x.Alias(t)
		}
	}
	return own
}

// Scan runs a graph on each row of some tensors: on x[0], then on x[1], and so on. A graph with
// carried values gets those of the row before, and returns them first. Its other results are
// stacked.
type Scan struct {
	Node    *Node
	Body    *Graph
	Carried []Operand // one list, or nothing
	Rows    Operand
	Fixed   []Operand
	Outs    []int
}

func (s *Scan) Reads() []*Operand { return append(Pointers(s.Carried, s.Fixed), &s.Rows) }
func (s *Scan) Fills() []int      { return s.Outs }

func (s *Scan) Run(x *cgotorch.Exec, f *Frame) {
	carried, fixed := aliases(x, spread(f, s.Carried)), spread(f, s.Fixed)
	rows, _ := s.Rows.Value(f).([]*cgotorch.Tensor)
	if len(rows) == 0 || rows[0] == nil || rows[0].Dim() == 0 || rows[0].Shape()[0] == 0 {
		x.Fail(s.Node.Operator, fmt.Errorf("there is no row to run on: %w", cgotorch.ErrInvalidArgument))
	}
	var stacks [][]*cgotorch.Tensor
	for i := range rows[0].Shape()[0] {
		inputs := append([]any{}, carried...)
		var slices []any
		for _, row := range rows {
			slices = append(slices, x.Select(row, 0, int(i)))
		}
		results := s.Body.Call(x, append(append(inputs, slices...), fixed...))
		closeAll(slices)
		if len(results) < len(carried) {
			x.Fail(s.Node.Operator, fmt.Errorf("the graph has %d results, and carries %d: %w", len(results), len(carried), cgotorch.ErrInvalidArgument))
		}
		closeAll(carried)
		carried = results[:len(carried):len(carried)]
		rest := results[len(carried):]
		if stacks == nil {
			stacks = make([][]*cgotorch.Tensor, len(rest))
		}
		for k := range stacks {
			t, ok := rest[k].(*cgotorch.Tensor)
			if !ok {
				x.Fail(s.Node.Operator, fmt.Errorf("result %d of a row is %v, want a tensor: %w", k, rest[k], cgotorch.ErrInvalidArgument))
			}
			stacks[k] = append(stacks[k], t)
		}
	}
	results := carried
	for _, parts := range stacks {
		results = append(results, x.Stack(parts, 0))
		for _, t := range parts {
			t.Close()
		}
	}
	store(x, f, s.Outs, results)
}
