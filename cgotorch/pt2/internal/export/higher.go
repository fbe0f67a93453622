package export

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// higherOrders are the operators on graphs, with the number of their graphs and the least number of
// their other arguments.
var higherOrders = map[string]struct{ graphs, args int }{
	"wrap_with_set_grad_enabled": {1, 1}, "wrap_with_autocast": {1, 4}, "invoke_subgraph": {1, 1}, "cond": {2, 1}, "while_loop": {2, 1},
	"map_impl": {1, 1}, "scan": {1, 2},
}

// higherOrder makes the action of a node that runs graphs.
func (b *builder) higherOrder(n *graph.Node, text *nodeText) (graph.Action, error) {
	name := strings.TrimPrefix(n.Operator, "higher_order.")
	want, ok := higherOrders[name]
	if !ok {
		return nil, b.unsupported(n, "an operator on graphs that is not supported")
	}
	var graphs []*graph.Graph
	var args []graph.Operand
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
	if len(graphs) != want.graphs || len(args) < want.args {
		return nil, errArguments
	}
	switch name {
	case "cond":
		n.Waits = true
		return &graph.Condition{Node: n, Holds: args[0], Then: graphs[0], Otherwise: graphs[1], Args: args[1:], Outs: outs}, nil
	case "while_loop":
		n.Waits = true
		return &graph.WhileLoop{Node: n, Holds: graphs[0], Body: graphs[1], Args: args, Outs: outs}, nil
	case "map_impl":
		return &graph.Scan{Node: n, Body: graphs[0], Rows: args[0], Fixed: args[1:], Outs: outs}, nil
	case "scan":
		return &graph.Scan{Node: n, Body: graphs[0], Carried: args[:1], Rows: args[1], Fixed: args[2:], Outs: outs}, nil
	}
	return regionOf(name, &graph.Region{Graph: graphs[0], Args: args[want.args:], Outs: outs}, args)
}

// regionOf gives a region its mode. `args` are all arguments of the operator.
func regionOf(name string, r *graph.Region, args []graph.Operand) (graph.Action, error) {
	on, ok := true, true
	switch name { // the argument of invoke_subgraph is a name
	case "wrap_with_set_grad_enabled":
		if on, ok = graph.ConstantAt[bool](args, 0); on {
			r.Mode = graph.WithGrad
		} else {
			r.Mode = graph.NoGrad
		}
	case "wrap_with_autocast":
		r.DType, _ = graph.ConstantAt[cgotorch.DType](args, 1)
		if on, ok = graph.ConstantAt[bool](args, 2); on {
			r.Mode = graph.Autocast
		} else {
			r.Mode = graph.NoAutocast
		}
	}
	if !ok {
		return nil, errArguments
	}
	return r, nil
}
