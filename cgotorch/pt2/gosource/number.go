package gosource

import (
	"fmt"
	"strconv"

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
	float := v.kind == goFloat
	for i := range n.args {
		kind, _ := n.args[i].number()
		float = float || kind == goFloat
	}
	arg := func(i int) string { // an operand in the type of the operation
		kind, _ := n.args[i].number()
		text := f.any(n.args[i])
		if c, isInt := n.args[i].constant.(int64); isInt && n.args[i].value == nil && float {
			return floatSource(float64(c))
		}
		if n.args[i].value == nil && kind == goInt {
			return fmt.Sprintf("int64(%s)", text)
		}
		if float && kind == goInt {
			return "float64(" + text + ")"
		}
		return text
	}
	binary := func(operator string) string {
		a, b := arg(0), arg(1)
		if !float {
			for i, side := range []*string{&a, &b} { // a constant needs no type beside a variable
				if n.args[i].value == nil && n.args[1-i].value != nil {
					*side = f.any(n.args[i])
				}
			}
		}
		return a + " " + operator + " " + b
	}
	call := func(name string) string {
		if _, ok := goHelpers[name]; ok {
			f.s.helpers[name] = true
			f.s.helpers["product"] = f.s.helpers["product"] || name == "power"
		}
		if name != "min" && name != "max" && name != "math.Pow" {
			return fmt.Sprintf("%s(x, %s, %s)", name, arg(0), arg(1))
		}
		return fmt.Sprintf("%s(%s, %s)", name, arg(0), arg(1))
	}
	text := ""
	switch n.op {
	case "_operator.add":
		if text = binary("+"); v.wide {
			text = call("sum")
		}
	case "_operator.sub":
		if text = binary("-"); v.wide {
			text = call("difference")
		}
	case "_operator.mul":
		if text = binary("*"); v.wide {
			text = call("product")
		}
	case "_operator.truediv":
		text = binary("/")
	case "_operator.lshift":
		text = binary("<<")
	case "_operator.rshift":
		text = binary(">>")
	case "_operator.floordiv":
		if text = "math.Floor(" + binary("/") + ")"; !float {
			text = call("floorDiv")
		}
	case "_operator.mod":
		text = call("floorMod")
	case "_operator.pow":
		text = call(map[bool]string{true: "math.Pow", false: "power"}[float])
	case "torch.sym_min":
		text = call("min")
	case "torch.sym_max":
		text = call("max")
	case "_operator.neg":
		text = "-" + arg(0)
	case "_operator.pos", "torch.sym_float":
		text = arg(0)
	case "torch.sym_sum":
		for i, item := range n.args[0].list {
			if i > 0 {
				text += " + "
			}
			text += f.any(item)
		}
	case "_operator.eq", "_operator.ne", "_operator.lt", "_operator.le", "_operator.gt", "_operator.ge":
		text = binary(map[string]string{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[n.op[len("_operator."):]])
	case "_operator.and_":
		text = f.any(n.args[0]) + " && " + f.any(n.args[1])
	case "_operator.or_":
		text = f.any(n.args[0]) + " || " + f.any(n.args[1])
	case "_operator.not_", "torch.sym_not":
		text = "!" + f.any(n.args[0])
	case "torch._sym_sqrt", "math.sqrt":
		text = "math.Sqrt(" + arg(0) + ")"
	case "torch._sym_log2":
		text = "math.Log2(" + arg(0) + ")"
	case "torch.sym_int", "math.trunc", "math.floor", "math.ceil", "builtins.round":
		of := map[string]string{"torch.sym_int": "Trunc", "math.trunc": "Trunc", "math.floor": "Floor", "math.ceil": "Ceil", "builtins.round": "RoundToEven"}[n.op]
		if text = arg(0); float {
			text = "int64(math." + of + "(" + text + "))"
		}
	}
	f.line("%s := %s", f.define(v, v.base), text)
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

// goHelpers are functions that the source holds if it calls them.
var goHelpers = map[string]string{
	"floorDiv": `// floorDiv is the operator // of Python.
func floorDiv(x *cgotorch.Exec, a, b int64) int64 {
	if b == 0 {
		x.Fail("Net", fmt.Errorf("a division of %d by zero: %w", a, cgotorch.ErrInvalidArgument))
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
`,
	"floorMod": `// floorMod is the operator % of Python.
func floorMod(x *cgotorch.Exec, a, b int64) int64 {
	if b == 0 {
		x.Fail("Net", fmt.Errorf("a division of %d by zero: %w", a, cgotorch.ErrInvalidArgument))
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}
`,
	"power": `// power is the operator ** of Python.
func power(x *cgotorch.Exec, base, exponent int64) int64 {
	if exponent < 0 {
		x.Fail("Net", fmt.Errorf("a power with the exponent %d is no integer: %w", exponent, cgotorch.ErrInvalidArgument))
	}
	if base >= -1 && base <= 1 {
		exponent = min(exponent, 2+exponent%2)
	}
	v := int64(1)
	for range exponent {
		v = product(x, v, base)
	}
	return v
}
`,
	"product": `// product is the operator * of Python, and fails above 64 bits.
func product(x *cgotorch.Exec, factors ...int64) int64 {
	v := int64(1)
	for _, f := range factors {
		p := v * f
		if v != 0 && (p/v != f || v == -1 && f == math.MinInt64) {
			x.Fail("Net", fmt.Errorf("the product of %d is above 64 bits: %w", factors, cgotorch.ErrInvalidArgument))
		}
		v = p
	}
	return v
}
`,
	"sum": `// sum is the operator + of Python, and fails above 64 bits.
func sum(x *cgotorch.Exec, terms ...int64) int64 {
	v := int64(0)
	for _, n := range terms {
		s := v + n
		if (s > v) != (n > 0) && n != 0 {
			x.Fail("Net", fmt.Errorf("the sum of %d is above 64 bits: %w", terms, cgotorch.ErrInvalidArgument))
		}
		v = s
	}
	return v
}
`,
	"difference": `// difference is the operator - of Python, and fails above 64 bits.
func difference(x *cgotorch.Exec, a, b int64) int64 {
	d := a - b
	if (d < a) != (b > 0) {
		x.Fail("Net", fmt.Errorf("%d - %d is above 64 bits: %w", a, b, cgotorch.ErrInvalidArgument))
	}
	return d
}
`,
	"roundTo": `// roundTo is round of Python, to a number of digits behind the point.
func roundTo(f float64, digits int) float64 {
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	return f
}
`,
	"require": `// require fails if a condition does not hold. Shown are names and values.
func require(x *cgotorch.Exec, holds bool, condition string, shown ...any) {
	if !holds {
		x.Fail("Net", fmt.Errorf("%v: PyTorch has exported the model for inputs with %s: %w", shown, condition, cgotorch.ErrInvalidArgument))
	}
}
`,
	"free": `// free closes tensors that nobody reads any more.
func free(tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		t.Close()
	}
}
`,
	"parameter": `// parameter keeps a tensor that an optimizer trains.
func parameter(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	if err := t.SetRequiresGrad(true); err != nil {
		x.Fail("New", err)
	}
	return x.Keep(t)
}
`,
}
