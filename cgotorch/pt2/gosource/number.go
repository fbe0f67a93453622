package gosource

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// numberKind returns the kind of the result of a function on numbers. It returns false for a
// function on other values.
func numberKind(n *goNode) (goKind, bool) {
	kinds := make([]goKind, len(n.args))
	result := goInt
	for i := range n.args {
		kind, ok := n.args[i].number()
		if !ok && !(n.op == "torch.sym_sum" && n.args[i].of == graph.IntList) {
			return 0, false
		}
		if kinds[i] = kind; kind == goFloat {
			result = goFloat
		}
	}
	count := 2
	switch n.op {
	case "_operator.add", "_operator.sub", "_operator.mul", "_operator.floordiv", "_operator.pow", "torch.sym_min", "torch.sym_max":
	case "_operator.lshift", "_operator.rshift", "_operator.mod":
		return result, result == goInt && len(kinds) == 2
	case "_operator.truediv":
		result = goFloat
	case "_operator.neg", "_operator.pos", "torch.sym_sum":
		count = 1
	case "_operator.eq", "_operator.ne", "_operator.lt", "_operator.le", "_operator.gt", "_operator.ge":
		result = goBool
	case "_operator.and_", "_operator.or_":
		return goBool, len(kinds) == 2 && kinds[0] == goBool && kinds[1] == goBool
	case "_operator.not_", "torch.sym_not":
		return goBool, len(kinds) == 1 && kinds[0] == goBool
	case "torch.sym_float", "torch._sym_sqrt", "torch._sym_log2", "math.sqrt":
		result, count = goFloat, 1
	case "torch.sym_int", "math.trunc", "math.floor", "math.ceil", "builtins.round":
		result, count = goInt, 1
	default:
		return 0, false
	}
	for _, kind := range kinds {
		if kind == goBool { // Python counts with truth values, and Go does not
			return 0, false
		}
	}
	return result, len(kinds) == count
}

// function writes a function on numbers.
func (f *goFunction) function(n *goNode) {
	v := n.outs[0]
	args, typed := make([]goTerm, len(n.args)), v.kind != goInt
	for i, arg := range n.args {
		kind, _ := arg.number()
		args[i] = goTerm{text: f.any(arg), kind: kind}
		if arg.value == nil {
			args[i].constant = arg.constant
		}
		typed = typed || arg.value != nil || arg.list != nil
	}
	t := goTerm{wide: v.wide}
	logic, isLogic := map[string]string{"_operator.and_": "and", "_operator.or_": "or", "_operator.not_": "_operator.not_", "torch.sym_not": "_operator.not_"}[n.op]
	switch {
	case isLogic:
		t, _ = t.logic(logic, args)
	case n.op == "torch.sym_sum":
		var items []string
		for _, item := range n.args[0].list {
			items = append(items, f.any(item))
		}
		t.text = strings.Join(items, " + ")
	default:
		t.kind = kindOf(n.op, args)
		t, _ = f.s.numbers(n.op, args, t)
	}
	if !typed { // all are constants
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
