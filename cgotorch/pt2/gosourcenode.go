package pt2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
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

// A goValue is a value of the program: a tensor or a number.
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

// A goArg is an argument: a value, a list with values, or a constant.
type goArg struct {
	value    *goValue
	constant any
	list     []goArg
	of       listKind
}

// A goNode is a node of the program. The nodes of regions stand among the others.
type goNode struct {
	node   *Node
	path   []string // the parts of the path of its module
	op     string   // the operator, as in aten::add.Tensor; the name of a function on numbers
	act    action
	args   []goArg
	outs   []*goValue // nil where nobody names the result
	kind   []parameter
	effect bool   // the node runs though nobody reads its results
	exec   string // the mode, behind the Exec, such as .NoGrad()
}

// list turns the graph into a list of nodes, without those that nobody needs.
func (s *goSource) list() error {
	var inputs []goArg
	p := s.program
	for i := range p.values {
		v := &p.values[i]
		var user *goValue
		if v.Tensor || v.Bounds != nil {
			user = &goValue{made: -1, base: pathName(p.paths[i]), kind: goInt, wide: true}
			if v.Tensor {
				user.kind = goTensor
			}
		}
		s.users = append(s.users, user)
	}
	for i := range p.graph.inputs {
		switch in := p.inputs[i]; {
		case in.weight >= 0:
			inputs = append(inputs, goArg{value: s.weightValues[in.weight]})
		case in.constant >= 0:
			inputs = append(inputs, goArg{value: s.constantValues[in.constant]})
		case s.users[in.user] != nil:
			inputs = append(inputs, goArg{value: s.users[in.user]})
		default:
			inputs = append(inputs, goArg{constant: p.values[in.user].Fixed})
		}
	}
	outputs, err := s.flatten(p.graph, inputs, "")
	if err != nil {
		return err
	}
	s.outputs = outputs
	s.live()
	return nil
}

// flatten adds the nodes of a graph, and returns its outputs.
func (s *goSource) flatten(g *graph, inputs []goArg, exec string) ([]goArg, error) {
	if len(inputs) != len(g.inputs) {
		return nil, s.file.Bad("the graph %.100s got %d inputs, want %d", g.name, len(inputs), len(g.inputs))
	}
	slots := make([]goArg, g.slots)
	for i, slot := range g.inputs {
		slots[slot] = inputs[i]
	}
	for i := range g.steps {
		if err := s.step(&g.steps[i], slots, exec); err != nil {
			return nil, err
		}
	}
	return bindArgs(g.outputs, slots), nil
}

func bindArgs(operands []operand, slots []goArg) []goArg {
	args := make([]goArg, len(operands))
	for i := range operands {
		switch o := &operands[i]; {
		case o.slot >= 0:
			args[i] = slots[o.slot]
		case o.of != noList:
			args[i] = goArg{list: bindArgs(o.list, slots), of: o.of}
		case o.constant == any((*cgotorch.Tensor)(nil)): // None
		default:
			args[i] = goArg{constant: o.constant}
		}
	}
	return args
}

// step adds the node of a step, or the nodes of its region.
func (s *goSource) step(st *step, slots []goArg, exec string) error {
	n := &goNode{node: st.node, act: st.act, exec: exec, op: st.node.Operator}
	if st.node.Module != "" && !strings.HasPrefix(st.node.Module, "_empty_nn_module") {
		n.path = strings.Split(st.node.Module, ".")
	}
	var outs []int
	var kinds []goKind
	switch act := st.act.(type) {
	case *operatorCall:
		n.args, outs = bindArgs(act.args, slots), act.outs
		dot := strings.LastIndexByte(n.op, '.')
		name, overload := strings.Replace(n.op[:dot], ".", "::", 1), n.op[dot+1:]
		if n.op = name; overload != "default" {
			n.op += "." + overload
		}
		schema, err := act.op.Schema()
		if err != nil {
			return err
		}
		n.kind = resultsOf(schema)
		n.effect = strings.Contains(schema, "!") || !strings.Contains(schema, "-> Tensor(") // a view alone has no effect
		if kinds, err = s.resultKinds(n, len(outs)); err != nil {
			return err
		}
	case *function:
		n.args, outs = bindArgs(act.args, slots), act.outs
		kind, ok := numberKind(n)
		if !ok {
			return s.refuse(st.node, "it is a function on other values than numbers")
		}
		kinds = []goKind{kind}
	case *sizeRead:
		n.args, outs, kinds = bindArgs([]operand{act.tensor}, slots), []int{act.out}, []goKind{goInt}
	case *assertion:
		n.args, n.effect = bindArgs(act.args, slots), true
		if _, ok := n.args[0].number(); !ok {
			return s.refuse(st.node, "its condition is no number")
		}
	case *region:
		if act.mode != nil && act.source == "" {
			return s.refuse(st.node, "it casts to a dtype that depends on the device")
		}
		results, err := s.flatten(act.graph, bindArgs(act.args, slots), exec+act.source)
		if err != nil {
			return err
		}
		if len(results) < len(act.outs) {
			return s.refuse(st.node, "it has fewer results than names")
		}
		for i, slot := range act.outs {
			slots[slot] = results[i]
		}
		return nil
	default:
		return s.refuse(st.node, "it runs graphs, or is no operator of LibTorch")
	}
	_, wide := st.act.(*operatorCall)
	eachValue(n.args, func(v *goValue) { wide = wide || v.wide && v.kind == goInt })
	for i, slot := range outs {
		v := &goValue{wide: wide && kinds[i] == goInt, kind: kinds[i], base: identifier(nodeBase(n.node.Name), false), made: len(s.nodes)}
		slots[slot] = goArg{value: v}
		n.outs = append(n.outs, v)
	}
	s.nodes = append(s.nodes, n)
	return nil
}

// resultsOf returns the results of a schema.
func resultsOf(schema string) []parameter {
	at := strings.LastIndex(schema, ") -> ")
	if at < 0 {
		return nil
	}
	text := schema[at+len(") -> "):]
	if !strings.HasPrefix(text, "(") {
		text = "(" + text + ")"
	}
	var results []parameter
	depth, from := 0, 1
	for i := range len(text) {
		switch text[i] {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		}
		if depth == 0 || depth == 1 && text[i] == ',' {
			if words := strings.Fields(text[from:i]); len(words) > 0 {
				r := parameter{of: plainKind(strings.TrimSpace(text[from:i]))}
				if name := words[len(words)-1]; len(words) > 1 && !strings.ContainsAny(name, "()[]") {
					r.name = name
					r.of = plainKind(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text[from:i]), name)))
				}
				results = append(results, r)
			}
			from = i + 1
		}
	}
	return results
}

// plainKind returns the type of an argument without alias annotations and list sizes: SymInt[] for
// SymInt[2], Tensor for Tensor(a!).
func plainKind(of string) string {
	var b strings.Builder
	depth := 0
	for i, r := range of {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case depth == 0 && !(r >= '0' && r <= '9' && i > 0 && strings.LastIndexByte(of[:i], '[') > strings.LastIndexByte(of[:i], ']')):
			b.WriteRune(r)
		}
	}
	return strings.ReplaceAll(b.String(), "SymInt", "int")
}

// resultKinds returns the kind of each of the `count` results that the graph names. A list of
// tensors counts as many as it has.
func (s *goSource) resultKinds(n *goNode, count int) ([]goKind, error) {
	var kinds []goKind
	for _, r := range n.kind {
		kind := goTensor
		switch r.of {
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
			return nil, s.refuse(n.node, fmt.Sprintf("it returns %.50q", r.of))
		}
		kinds = append(kinds, kind)
	}
	for _, r := range n.kind {
		if r.of == "Tensor[]" {
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
func scalarKind(n *Node) goKind {
	if len(n.results) == 1 {
		switch out := &n.results[0]; {
		case out.SymFloat != nil:
			return goFloat
		case out.SymBool != nil:
			return goBool
		}
	}
	return goInt
}

// live drops nodes on numbers that nobody uses, and finds the last use of each value.
func (s *goSource) live() {
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
func (s *goSource) order(kept []bool) {
	early := make([][]*goNode, len(s.nodes)+1) // the nodes behind node i-1
	place := map[*goValue]int{}
	for i, n := range s.nodes {
		if !kept[i] {
			continue
		}
		at := i + 1
		if _, isCall := n.act.(*operatorCall); !isCall {
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

// pathName returns the name of a leaf, such as boxesLeft0 for boxes["left"][0].
func pathName(path string) string { return identifier(path, false) }

// number returns the kind of a number, or false.
func (a *goArg) number() (goKind, bool) {
	if a.value != nil {
		return a.value.kind, a.value.kind != goTensor
	}
	if a.of != noList {
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
	return a.value == nil && a.of == noList && a.constant == any(cgotorch.Default)
}
