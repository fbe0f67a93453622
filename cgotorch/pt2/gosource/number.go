package gosource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// numberKind returns the kind of the result of a function on numbers. It returns false for a
// function that Go cannot say.
func numberKind(n *goNode) (goKind, bool) {
	unwritten := &writer{helpers: map[string]bool{}}
	t, ok := unwritten.function(n, false, func(goArg) string { return "n" })
	return t.kind, ok
}

// goLogic are functions on truth values, by the name that [goTerm.logic] gives them.
var goLogic = map[string]string{"_operator.and_": "and", "_operator.or_": "or", "_operator.not_": "_operator.not_", "torch.sym_not": "_operator.not_"}

// function returns a function on numbers. It returns false for a function that Go cannot say.
func (s *writer) function(n *goNode, wide bool, text func(goArg) string) (goTerm, bool) {
	t := goTerm{wide: wide}
	if n.op == "torch.sym_sum" {
		if len(n.args) != 1 || n.args[0].of != graph.IntList {
			return t, false
		}
		var items []string
		for _, item := range n.args[0].list {
			items = append(items, text(item))
		}
		t.text, t.kind = strings.Join(items, " + "), goInt
		return t, true
	}
	args, logic := make([]goTerm, len(n.args)), goLogic[n.op]
	for i, arg := range n.args {
		kind, ok := arg.number()
		if !ok || (kind == goBool) != (logic != "") { // Python counts with truth values, and Go does not
			return t, false
		}
		args[i] = goTerm{text: text(arg), kind: kind}
		if arg.value == nil {
			args[i].constant = arg.constant
		}
	}
	switch {
	case len(args) == 0:
		return t, false
	case logic != "":
		return t.logic(logic, args)
	}
	t.kind = kindOf(n.op, args)
	return s.numbers(n.op, args, t)
}

// number writes a function on numbers.
func (f *goFunction) number(n *goNode) {
	v := n.outs[0]
	t, _ := f.s.function(n, v.wide, f.any)
	typed := slices.ContainsFunc(n.args, func(a goArg) bool { return a.value != nil || a.list != nil })
	if v.kind == goInt && !typed { // all are constants
		t.text = "int64(" + t.text + ")"
	}
	f.line("%s := %s", f.define(v, v.base), t.text)
}

// assertion writes that a condition must hold.
func (f *goFunction) assertion(n *goNode) {
	condition := f.any(n.args[0])
	if kind, _ := n.args[0].number(); kind != goBool {
		condition += " != 0"
	}
	why := "a condition of the model"
	if len(n.args) > 1 {
		if text, ok := n.args[1].constant.(string); ok {
			why = text
		}
	}
	f.s.helpers["require"] = true
	f.line("require(x, %s, %s)", condition, strconv.Quote(commentText(why, 400)))
}

// sizeRead writes the read of a size.
func (f *goFunction) sizeRead(n *goNode) {
	act := n.act.(*graph.SizeRead)
	t := f.name(n.args[0].value)
	text := t + ".Numel()"
	if act.HasDim {
		method := map[bool]string{true: "Strides", false: "Shape"}[n.op == "aten.sym_stride.int"]
		dim := fmt.Sprint(act.Dim)
		if act.Dim < 0 {
			dim = fmt.Sprintf("%s.Dim()-%d", t, -act.Dim)
		}
		text = fmt.Sprintf("%s.%s()[%s]", t, method, dim)
	}
	f.line("%s := %s", f.define(n.outs[0], "n"), text)
}
