package gosource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/opschema"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

type goKind int

const (
	goTensor goKind = iota
	goInt
	goFloat
	goBool
)

// source returns the Go type.
func (k goKind) source() string {
	return [...]string{"*cgotorch.Tensor", "int64", "float64", "bool"}[k]
}

// goValue is a value of the program: a tensor or a number.
type goValue struct {
	kind    goKind
	base    string   // the name that a function gives it, if the name is free
	global  bool     // a weight or a constant: a field
	fields  []string // of a global value, from Net on
	modules []string // of a weight, the names of the modules that its fields before the last one stand for
	made    int      // the place of the node that makes it; -1 for an input
	last    int      // the place of the last node that uses it; len(nodes) for a result
	used    bool     // a node that is kept, or the caller, reads it
	wide    bool     // a number that may have any value, other than a size
}

// goArg is an argument: a value, a list with values, or a constant.
type goArg struct {
	value    *goValue
	constant any
	list     []goArg
	of       graph.ListKind
}

// goNode is a node of the program. The nodes of regions stand among the others.
type goNode struct {
	node   *graph.Node
	path   []string // the parts of the path of its module
	op     string   // the operator, as in aten::add.Tensor; the name of a function on numbers
	act    graph.Action
	args   []goArg
	outs   []*goValue // nil where nobody names the result
	kind   []opschema.Argument
	effect bool   // the node runs though nobody reads its results
	exec   string // the mode, behind the Exec, such as .NoGrad()
}

// list turns the graph into a list of nodes, without those that nobody needs.
func (s *writer) list() error {
	var inputs []goArg
	p := s.p
	for i := range p.Signature.Inputs {
		v := &p.Signature.Inputs[i]
		var user *goValue
		if v.Tensor || v.Bounds != nil {
			user = &goValue{made: -1, base: identifier(v.Name, false), kind: goInt, wide: true}
			if v.Tensor {
				user.kind = goTensor
			}
		}
		s.users = append(s.users, user)
	}
	for i := range p.Graph.Inputs {
		switch in := p.Inputs[i]; {
		case in.Weight >= 0:
			inputs = append(inputs, goArg{value: s.weightValues[in.Weight]})
		case in.Constant >= 0:
			inputs = append(inputs, goArg{value: s.constantValues[in.Constant]})
		case s.users[in.User] != nil:
			inputs = append(inputs, goArg{value: s.users[in.User]})
		default:
			inputs = append(inputs, goArg{constant: p.Signature.Inputs[in.User].Fixed})
		}
	}
	outputs, err := s.flatten(p.Graph, inputs, "")
	if err != nil {
		return err
	}
	s.outputs = outputs
	s.live()
	return nil
}

// flatten adds the nodes of a graph, and returns its outputs.
func (s *writer) flatten(g *graph.Graph, inputs []goArg, exec string) ([]goArg, error) {
	if len(inputs) != len(g.Inputs) {
		return nil, s.p.File.Bad("the graph %.100s got %d inputs, want %d", g.Name, len(inputs), len(g.Inputs))
	}
	slots := make([]goArg, g.Slots)
	for i, slot := range g.Inputs {
		slots[slot] = inputs[i]
	}
	for i := range g.Steps {
		if err := s.step(&g.Steps[i], slots, exec); err != nil {
			return nil, err
		}
	}
	return bindArgs(g.Outputs, slots), nil
}

func bindArgs(operands []graph.Operand, slots []goArg) []goArg {
	args := make([]goArg, len(operands))
	for i := range operands {
		switch o := &operands[i]; {
		case o.Slot >= 0:
			args[i] = slots[o.Slot]
		case o.Of != graph.NoList:
			args[i] = goArg{list: bindArgs(o.List, slots), of: o.Of}
		case o.Constant == any((*cgotorch.Tensor)(nil)): // None
		default:
			args[i] = goArg{constant: o.Constant}
		}
	}
	return args
}

// step adds the node of a step, or the nodes of its region.
func (s *writer) step(st *graph.Step, slots []goArg, exec string) error {
	n := &goNode{node: st.Node, act: st.Act, exec: exec, op: st.Node.Operator}
	if st.Node.Module != "" && !strings.HasPrefix(st.Node.Module, "_empty_nn_module") {
		n.path = strings.Split(st.Node.Module, ".")
	}
	var outs []int
	var kinds []goKind
	switch act := st.Act.(type) {
	case *graph.Call:
		n.args, outs = bindArgs(act.Args, slots), act.Outs
		n.op = act.Schema.Name
		n.kind = plainKinds(act.Schema.Results)
		n.effect = act.Schema.Writes() || len(n.kind) != 1 || !n.kind[0].Shares // a view alone has no effect
		var err error
		if kinds, err = s.resultKinds(n, len(outs)); err != nil {
			return err
		}
	case *graph.Function:
		n.args, outs = bindArgs(act.Args, slots), []int{act.Out}
		kind, ok := numberKind(n)
		if !ok {
			return s.refuse(st.Node, "it is a function on other values than numbers")
		}
		kinds = []goKind{kind}
	case *graph.SizeRead:
		n.args, outs, kinds = bindArgs([]graph.Operand{act.Tensor}, slots), []int{act.Out}, []goKind{goInt}
	case *graph.Assertion:
		n.args, n.effect = bindArgs(act.Args, slots), true
		if _, ok := n.args[0].number(); !ok {
			return s.refuse(st.Node, "its condition is no number")
		}
	case *graph.Region:
		if act.Mode == graph.Autocast && act.DType == 0 {
			return s.refuse(st.Node, "it casts to a dtype that depends on the device")
		}
		results, err := s.flatten(act.Graph, bindArgs(act.Args, slots), exec+modeSource(act))
		if err != nil {
			return err
		}
		if len(results) < len(act.Outs) {
			return s.refuse(st.Node, "it has fewer results than names")
		}
		for i, slot := range act.Outs {
			slots[slot] = results[i]
		}
		return nil
	default:
		return s.refuse(st.Node, "it runs graphs, or is no operator of LibTorch")
	}
	_, wide := st.Act.(*graph.Call)
	eachValue(n.args, func(v *goValue) { wide = wide || v.wide && v.kind == goInt })
	for i, slot := range outs {
		v := &goValue{wide: wide && kinds[i] == goInt, kind: kinds[i], base: identifier(nodeBase(n.node.Name), false), made: len(s.nodes)}
		slots[slot] = goArg{value: v}
		n.outs = append(n.outs, v)
	}
	s.nodes = append(s.nodes, n)
	return nil
}

// plainKinds returns arguments with int in place of SymInt.
func plainKinds(list []opschema.Argument) []opschema.Argument {
	list = slices.Clone(list)
	for i := range list {
		list[i].Kind = strings.ReplaceAll(list[i].Kind, "SymInt", "int")
	}
	return list
}

// resultKinds returns the kind of each of the `count` results that the graph names. A list of
// tensors counts as many as it has.
func (s *writer) resultKinds(n *goNode, count int) ([]goKind, error) {
	var kinds []goKind
	for _, r := range n.kind {
		kind := goTensor
		switch r.Kind {
		case "Tensor", "Tensor[]":
		case "int":
			kind = goInt
		case "float":
			kind = goFloat
		case "bool":
			kind = goBool
		case "Scalar":
			kind = scalarKind(n.node)
		default:
			return nil, s.refuse(n.node, fmt.Sprintf("it returns %.50q", r.Kind))
		}
		kinds = append(kinds, kind)
	}
	for _, r := range n.kind {
		if r.Kind == "Tensor[]" {
			if len(kinds) > 1 {
				return nil, s.refuse(n.node, "it returns a list among other results")
			}
			for len(kinds) < count {
				kinds = append(kinds, goTensor)
			}
		}
	}
	if len(kinds) < count {
		return nil, s.refuse(n.node, fmt.Sprintf("it has %d results, and its schema %d", count, len(kinds)))
	}
	return kinds, nil
}

// scalarKind returns the kind of the number that a node returns.
func scalarKind(n *graph.Node) goKind {
	if len(n.Results) == 1 {
		switch n.Results[0].Number {
		case "float":
			return goFloat
		case "bool":
			return goBool
		}
	}
	return goInt
}

// modeSource returns the mode of a region as Go source behind an Exec.
func modeSource(r *graph.Region) string {
	switch r.Mode {
	case graph.WithGrad:
		return ".WithGrad()"
	case graph.NoGrad:
		return ".NoGrad()"
	case graph.NoAutocast:
		return ".NoAutocast()"
	case graph.Autocast:
		return ".Autocast(" + goDType(r.DType) + ")"
	}
	return ""
}

// live drops nodes on numbers that nobody uses, and finds the last use of each value.
func (s *writer) live() {
	mark := func(args []goArg, at int) {
		eachValue(args, func(v *goValue) {
			v.last = max(v.last, at)
			v.used = true
		})
	}
	mark(s.outputs, len(s.nodes))
	kept := make([]bool, len(s.nodes))
	for i := len(s.nodes) - 1; i >= 0; i-- {
		n := s.nodes[i]
		for _, v := range n.outs {
			kept[i] = kept[i] || v.used
		}
		if kept[i] = kept[i] || n.effect; kept[i] {
			mark(n.args, i)
		}
	}
	s.order(kept)
	for _, v := range s.users {
		if v != nil {
			v.last = 0
		}
	}
	for i, n := range s.nodes {
		for _, v := range n.outs {
			v.made, v.last = i, i
		}
		eachValue(n.args, func(v *goValue) { v.last = i })
	}
	eachValue(s.outputs, func(v *goValue) { v.last = len(s.nodes) })
	s.ends = make([][]*goValue, len(s.nodes)+1)
	for _, n := range s.nodes {
		for _, v := range n.outs {
			if v.used && v.kind == goTensor {
				s.ends[v.last] = append(s.ends[v.last], v)
			}
		}
	}
}

// order keeps some nodes. It moves those on numbers up to the nodes that make their arguments, so
// that functions pass few numbers to each other.
func (s *writer) order(kept []bool) {
	early := make([][]*goNode, len(s.nodes)+1) // the nodes behind node i-1
	place := map[*goValue]int{}
	for i, n := range s.nodes {
		if !kept[i] {
			continue
		}
		at := i + 1
		if _, isCall := n.act.(*graph.Call); !isCall {
			at = 0
			eachValue(n.args, func(v *goValue) { at = max(at, place[v]) })
			n.path = nil
			if at > 0 {
				n.path = s.nodes[at-1].path
			}
		}
		early[at] = append(early[at], n)
		for _, v := range n.outs {
			place[v] = at
		}
	}
	s.nodes = slices.Concat(early...)
}

func eachValue(args []goArg, visit func(v *goValue)) {
	for i := range args {
		if args[i].value != nil {
			visit(args[i].value)
		}
		eachValue(args[i].list, visit)
	}
}

// number returns the kind of a number, or false.
func (a *goArg) number() (goKind, bool) {
	if a.value != nil {
		return a.value.kind, a.value.kind != goTensor
	}
	if a.of != graph.NoList {
		return 0, false
	}
	switch a.constant.(type) {
	case int64:
		return goInt, true
	case float64:
		return goFloat, true
	case bool:
		return goBool, true
	}
	return 0, false
}

// isDefault reports whether an argument is left out.
func (a *goArg) isDefault() bool {
	return a.value == nil && a.of == graph.NoList && a.constant == any(cgotorch.Default)
}
