package pt2

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostRounds bounds a whileLoop. The condition of a damaged file may never become false. Each round
// waits for the device, so this many take half a minute or more there.
const mostRounds = 1 << 20

// whileLoop runs the graph `body` on its own results as long as the graph `holds` returns true, in
// at most mostRounds rounds.
type whileLoop struct {
	node        *Node
	holds, body *graph
	args        []operand // the values that change, then those that stay
	outs        []int
}

func (l *whileLoop) reads() []*operand { return pointers(l.args) }
func (l *whileLoop) fills() []int      { return l.outs }

func (l *whileLoop) run(x *cgotorch.Exec, f *frame) {
	carried, fixed := spread(f, l.args[:1]), spread(f, l.args[1:])
	ours := false // `carried` belongs to the loop
	for round := 0; ; round++ {
		if round == mostRounds {
			x.Fail(l.node.Operator, fmt.Errorf("the loop has not ended after %d rounds: the file is damaged, or the loop's condition never becomes false; export a longer loop in parts: %w", mostRounds, cgotorch.ErrInvalidArgument))
		}
		inputs := append(append([]any{}, carried...), fixed...)
		goOn := l.holds.call(x, inputs)
		if len(goOn) != 1 {
			x.Fail(l.node.Operator, fmt.Errorf("the condition has %d results, want one: %w", len(goOn), cgotorch.ErrInvalidArgument))
		}
		holds := truth(x, l.node, goOn[0])
		closeAll(goOn)
		if !holds {
			break
		}
		next := l.body.call(x, inputs)
		if ours {
			closeAll(carried)
		}
		carried, ours = next, true
	}
	if !ours {
		carried = aliases(x, carried)
	}
	store(x, f, l.outs, carried)
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

// scan runs a graph on each row of some tensors: on x[0], then on x[1], and so on. A graph with
// carried values gets those of the row before, and returns them first. Its other results are
// stacked.
type scan struct {
	node    *Node
	body    *graph
	carried []operand // one list, or nothing
	rows    operand
	fixed   []operand
	outs    []int
}

func (s *scan) reads() []*operand { return append(pointers(s.carried, s.fixed), &s.rows) }
func (s *scan) fills() []int      { return s.outs }

func (s *scan) run(x *cgotorch.Exec, f *frame) {
	carried, fixed := aliases(x, spread(f, s.carried)), spread(f, s.fixed)
	rows, _ := s.rows.value(f).([]*cgotorch.Tensor)
	if len(rows) == 0 || rows[0] == nil || rows[0].Dim() == 0 || rows[0].Shape()[0] == 0 {
		x.Fail(s.node.Operator, fmt.Errorf("there is no row to run on: %w", cgotorch.ErrInvalidArgument))
	}
	var stacks [][]*cgotorch.Tensor
	for i := range rows[0].Shape()[0] {
		inputs := append([]any{}, carried...)
		var slices []any
		for _, row := range rows {
			slices = append(slices, x.Select(row, 0, int(i)))
		}
		results := s.body.call(x, append(append(inputs, slices...), fixed...))
		closeAll(slices)
		if len(results) < len(carried) {
			x.Fail(s.node.Operator, fmt.Errorf("the graph has %d results, and carries %d: %w", len(results), len(carried), cgotorch.ErrInvalidArgument))
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
				x.Fail(s.node.Operator, fmt.Errorf("result %d of a row is %v, want a tensor: %w", k, rest[k], cgotorch.ErrInvalidArgument))
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
	store(x, f, s.outs, results)
}
