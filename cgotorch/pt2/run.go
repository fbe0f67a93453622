package pt2

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opcall"
)

// A frame holds the values of one run of a graph, by slot. A value is a *cgotorch.Tensor, an int64,
// a float64, a bool, a string, or nil.
type frame struct {
	values    []any
	postponed map[int]bool // by slot of a linear layer's result: its reader adds the bias
}

func (o *operand) value(f *frame) any {
	switch {
	case o.slot >= 0:
		return f.values[o.slot]
	case o.of != noList:
		v, err := o.gather(f)
		if err != nil {
			cgotorch.Check(fmt.Errorf("pt2: %w: %w", err, cgotorch.ErrInvalidArgument)) // a value has another type than the file says
		}
		return v
	}
	return o.constant
}

func (o *operand) tensor(f *frame) *cgotorch.Tensor {
	t, _ := o.value(f).(*cgotorch.Tensor)
	return t
}

// gather makes the value of a list.
func (o *operand) gather(f *frame) (any, error) {
	switch o.of {
	case tensorList:
		list := make([]*cgotorch.Tensor, len(o.list))
		for i := range o.list {
			list[i] = o.list[i].tensor(f)
		}
		return list, nil
	case intList:
		list := make([]int64, len(o.list))
		for i := range o.list {
			n, ok := integer(o.list[i].value(f))
			if !ok {
				return nil, fmt.Errorf("item %d of a list of integers is %v", i, o.list[i].value(f))
			}
			list[i] = n
		}
		return list, nil
	case boolList:
		list := make([]bool, len(o.list))
		for i := range o.list {
			list[i], _ = o.list[i].value(f).(bool)
		}
		return list, nil
	case floatList:
		list := make([]float64, len(o.list))
		for i := range o.list {
			n, err := toFloat(o.list[i].value(f))
			if err != nil {
				return nil, err
			}
			list[i] = n
		}
		return list, nil
	}
	return nil, errors.New("a list of an unknown kind")
}

// run runs the steps. The frame holds the inputs. Results that are inputs too get handles of their
// own.
func (g *graph) run(x *cgotorch.Exec, f *frame) []any {
	at := 0
	defer func() {
		if at < len(g.steps) { // an operator has failed and unwinds
			n := g.steps[at].node
			inside.Core.Explain(x, n.place(g.file), n.cure)
		}
	}()
	for ; at < len(g.steps); at++ {
		s := &g.steps[at]
		s.act.run(x, f)
		for _, slot := range s.frees {
			if t, ok := f.values[slot].(*cgotorch.Tensor); ok && t != nil {
				t.Close()
			}
			f.values[slot] = nil
		}
	}
	results := make([]any, len(g.outputs))
	for i := range g.outputs {
		results[i] = g.outputs[i].value(f)
		if t, ok := results[i].(*cgotorch.Tensor); ok && g.aliased[i] && t != nil {
			results[i] = x.Alias(t)
		}
	}
	return results
}

// call runs a sub-graph with the given inputs.
func (g *graph) call(x *cgotorch.Exec, inputs []any) []any {
	if len(inputs) != len(g.inputs) {
		x.Fail("pt2.Program", fmt.Errorf("the graph %s got %d inputs, want %d: %w", g.name, len(inputs), len(g.inputs), cgotorch.ErrInvalidArgument))
	}
	f := &frame{values: make([]any, g.slots)}
	for i, slot := range g.inputs {
		f.values[slot] = inputs[i]
	}
	return g.run(x, f)
}

// operatorCall calls an operator of LibTorch.
type operatorCall struct {
	op     opcall.Operator
	schema string
	args   []operand // in the order of the schema
	outs   []int
	single bool // the operator has one result, a tensor
}

func (o *operatorCall) reads() []*operand { return pointers(o.args) }
func (o *operatorCall) fills() []int      { return o.outs }

func (o *operatorCall) run(x *cgotorch.Exec, f *frame) {
	c := opcall.Begin(x, o.op)
	o.pass(c, f)
	if o.single {
		f.values[o.outs[0]] = c.Run1()
		return
	}
	store(x, f, o.outs, c.RunAll())
}

// pass passes the arguments.
func (o *operatorCall) pass(c opcall.Call, f *frame) {
	for i := range o.args {
		switch v := o.args[i].value(f).(type) {
		case *cgotorch.Tensor:
			c.Tensor(v)
		case onDevice:
			c.Device()
		default:
			c.Any(v)
		}
	}
	c.RestDefault()
}

// store puts results into slots. A list of tensors has a slot for each tensor. Results without a
// slot are closed.
func store(x *cgotorch.Exec, f *frame, slots []int, results []any) {
	at := 0
	put := func(v any) {
		if at < len(slots) {
			f.values[slots[at]] = v
		} else if t, ok := v.(*cgotorch.Tensor); ok && t != nil {
			t.Close()
		}
		at++
	}
	for _, v := range results {
		if list, ok := v.([]*cgotorch.Tensor); ok {
			for _, t := range list {
				put(t)
			}
			continue
		}
		put(v)
	}
	if at < len(slots) {
		x.Fail("pt2.Program", fmt.Errorf("a node has %d results, want %d: %w", at, len(slots), cgotorch.ErrInvalidArgument))
	}
}

// function is a function on numbers.
type function struct {
	node *Node
	of   func(args []any) (any, error)
	args []operand
	outs []int
}

func (c *function) reads() []*operand { return pointers(c.args) }
func (c *function) fills() []int      { return c.outs }

func (c *function) run(x *cgotorch.Exec, f *frame) {
	args := make([]any, len(c.args))
	for i := range c.args {
		args[i] = c.args[i].value(f)
	}
	v, err := c.of(args)
	if err != nil {
		x.Fail(c.node.Operator, fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument))
	}
	f.values[c.outs[0]] = v
}

// sizeOf are the operators that read a number of a tensor's geometry. The argument i is a
// dimension.
var sizeOf = map[string]func(t *cgotorch.Tensor, i int) int64{
	"aten.sym_size.int":      func(t *cgotorch.Tensor, i int) int64 { return t.Shape()[i] },
	"aten.sym_stride.int":    func(t *cgotorch.Tensor, i int) int64 { return t.Strides()[i] },
	"aten.sym_numel.default": func(t *cgotorch.Tensor, _ int) int64 { return t.Numel() },
}

// sizeRead reads a number of a tensor's geometry.
type sizeRead struct {
	node   *Node
	of     func(t *cgotorch.Tensor, i int) int64
	tensor operand
	dim    int64
	hasDim bool
	out    int
}

func (b *builder) size(n *Node, text *nodeText) (action, error) {
	args, err := b.operands(text.Inputs)
	if err != nil {
		return nil, err
	}
	outs, err := b.results(text.Outputs)
	if err != nil {
		return nil, err
	}
	if len(args) == 0 || len(outs) != 1 {
		return nil, fmt.Errorf("%d arguments and %d results", len(args), len(outs))
	}
	s := &sizeRead{node: n, of: sizeOf[n.Operator], tensor: args[0], out: outs[0]}
	if s.dim, s.hasDim = constantAt[int64](args, 1); !s.hasDim && n.Operator != "aten.sym_numel.default" {
		return nil, errArguments
	}
	return s, nil
}

func (s *sizeRead) reads() []*operand { return []*operand{&s.tensor} }
func (s *sizeRead) fills() []int      { return []int{s.out} }

func (s *sizeRead) run(x *cgotorch.Exec, f *frame) {
	t, dim := s.tensor.tensor(f), s.dim
	dims := 0
	if t != nil {
		dims = t.Dim()
	}
	if dim < 0 {
		dim += int64(dims)
	}
	if t == nil || s.hasDim && (dim < 0 || dim >= int64(dims)) {
		x.Fail(s.node.Operator, fmt.Errorf("%v has no dimension %d: %w", t, s.dim, cgotorch.ErrInvalidArgument))
	}
	f.values[s.out] = s.of(t, int(dim))
}

// assertion fails if a condition of the model does not hold.
type assertion struct{ args []operand } // the condition, and a text

func (a *assertion) reads() []*operand { return pointers(a.args) }
func (a *assertion) fills() []int      { return nil }

func (a *assertion) run(x *cgotorch.Exec, f *frame) {
	if holds, ok := integer(a.args[0].value(f)); ok && holds != 0 {
		return
	}
	why := "a condition of the model does not hold"
	if len(a.args) > 1 {
		if text, ok := a.args[1].value(f).(string); ok {
			why = text
		}
	}
	x.Fail("pt2.Program", fmt.Errorf("%.300s: %w", why, cgotorch.ErrInvalidArgument))
}
