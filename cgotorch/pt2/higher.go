package pt2

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// higherOrder makes the action of a node that runs graphs.
func (b *builder) higherOrder(n *Node, text *nodeText) (action, error) {
	make := higherOrders[n.Operator]
	if make == nil {
		return nil, b.unsupported(n, "an operator on graphs that is not supported")
	}
	var graphs []*graph
	var args []operand
	for i := range text.Inputs {
		arg := &text.Inputs[i].Arg
		if arg.Graph != nil {
			g, err := b.build(arg.Graph.Name, &arg.Graph.Graph)
			if err != nil {
				return nil, err
			}
			graphs = append(graphs, g)
			continue
		}
		o, err := b.operand(arg)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		args = append(args, o)
	}
	outs, err := b.results(text.Outputs)
	if err != nil {
		return nil, err
	}
	act, err := make(n, graphs, args, outs)
	if err != nil {
		return nil, err
	}
	return act, nil
}

// higherOrders make the actions. A function gets the graphs and the other arguments of a node, each
// in the order of the node.
var higherOrders = map[string]func(n *Node, graphs []*graph, args []operand, outs []int) (action, error){
	"higher_order.wrap_with_set_grad_enabled": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		on, ok := constantAt[bool](args, 0)
		if !ok || len(graphs) != 1 {
			return nil, errArguments
		}
		source := map[bool]string{true: ".WithGrad()", false: ".NoGrad()"}[on]
		return &region{graph: graphs[0], args: args[1:], outs: outs, source: source, mode: func(x *cgotorch.Exec) *cgotorch.Exec {
			if on {
				return x.WithGrad()
			}
			return x.NoGrad()
		}}, nil
	},
	"higher_order.wrap_with_autocast": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		on, ok := constantAt[bool](args, 2)
		if !ok || len(graphs) != 1 || len(args) < 4 {
			return nil, errArguments
		}
		to, _ := constantAt[cgotorch.DType](args, 1)
		source := ".NoAutocast()"
		switch {
		case on && to == 0:
			source = "" // the dtype depends on the device
		case on:
			source = ".Autocast(" + goDType(to) + ")"
		}
		return &region{graph: graphs[0], args: args[4:], outs: outs, source: source, mode: func(x *cgotorch.Exec) *cgotorch.Exec {
			switch {
			case !on:
				return x.NoAutocast()
			case to == 0 && x.Device().IsCUDA():
				return x.Autocast(cgotorch.Float16)
			case to == 0:
				return x.Autocast(cgotorch.BFloat16)
			}
			return x.Autocast(to)
		}}, nil
	},
	"higher_order.invoke_subgraph": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		if len(graphs) != 1 || len(args) < 1 {
			return nil, errArguments
		}
		return &region{graph: graphs[0], args: args[1:], outs: outs}, nil // the first one is a name
	},
	"higher_order.cond": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		if len(graphs) != 2 || len(args) < 1 {
			return nil, errArguments
		}
		n.Waits = true
		return &condition{node: n, holds: args[0], then: graphs[0], otherwise: graphs[1], args: args[1:], outs: outs}, nil
	},
	"higher_order.while_loop": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		if len(graphs) != 2 || len(args) < 1 {
			return nil, errArguments
		}
		n.Waits = true
		return &whileLoop{node: n, holds: graphs[0], body: graphs[1], args: args, outs: outs}, nil
	},
	"higher_order.map_impl": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		if len(graphs) != 1 || len(args) < 1 {
			return nil, errArguments
		}
		return &scan{node: n, body: graphs[0], rows: args[0], fixed: args[1:], outs: outs}, nil
	},
	"higher_order.scan": func(n *Node, graphs []*graph, args []operand, outs []int) (action, error) {
		if len(graphs) != 1 || len(args) < 2 {
			return nil, errArguments
		}
		return &scan{node: n, body: graphs[0], carried: args[:1], rows: args[1], fixed: args[2:], outs: outs}, nil
	},
}

var errArguments = errors.New("its arguments are not those of this operator")

func constantAt[T any](args []operand, i int) (v T, ok bool) {
	if i < len(args) && args[i].slot < 0 {
		v, ok = args[i].constant.(T)
	}
	return v, ok
}

// spread returns the values of arguments. A list counts as its items.
func spread(f *frame, args []operand) (values []any) {
	for i := range args {
		if args[i].of == tensorList { // PyTorch writes a list of tensors and numbers so, too
			for k := range args[i].list {
				values = append(values, args[i].list[k].value(f))
			}
			continue
		}
		switch v := args[i].value(f).(type) {
		case []int64:
			for _, n := range v {
				values = append(values, n)
			}
		default:
			values = append(values, v)
		}
	}
	return values
}

// A region runs a graph in another mode.
type region struct {
	graph *graph
	mode  func(x *cgotorch.Exec) *cgotorch.Exec // nil means the same mode
	args  []operand
	outs  []int

	source string // `mode` in Go source, behind an Exec; "" if source cannot say it
}

func (r *region) reads() []*operand { return pointers(r.args) }
func (r *region) fills() []int      { return r.outs }

func (r *region) run(x *cgotorch.Exec, f *frame) {
	y := x
	if r.mode != nil {
		y = r.mode(x)
	}
	store(x, f, r.outs, r.graph.call(y, spread(f, r.args)))
}

// truth returns the value of a condition. It waits for the device if the condition is a tensor.
func truth(x *cgotorch.Exec, n *Node, v any) bool {
	switch v := v.(type) {
	case *cgotorch.Tensor:
		return x.Item(v) != 0
	default:
		holds, ok := integer(v)
		if !ok {
			x.Fail(n.Operator, fmt.Errorf("the condition is %v (a %T): %w", v, v, cgotorch.ErrInvalidArgument))
		}
		return holds != 0
	}
}

// A condition runs one of two graphs.
type condition struct {
	node            *Node
	holds           operand
	then, otherwise *graph
	args            []operand
	outs            []int
}

func (c *condition) reads() []*operand { return append(pointers(c.args), &c.holds) }
func (c *condition) fills() []int      { return c.outs }

func (c *condition) run(x *cgotorch.Exec, f *frame) {
	g := c.otherwise
	if truth(x, c.node, c.holds.value(f)) {
		g = c.then
	}
	store(x, f, c.outs, g.call(x, spread(f, c.args)))
}
