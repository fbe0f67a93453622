package gosource

import (
	"fmt"
	"strconv"
	"strings"
)

// goTerm is an expression of Go.
type goTerm struct {
	text     string
	kind     goKind
	constant any      // its value, where the text is a number or a truth value
	divisors []string // what must not be 0
	zero     bool     // it is false where a divisor in it is 0
	wide     bool     // it may be above 64 bits in a sum or a product
}

func constantTerm(v any) goTerm {
	switch n := v.(type) {
	case int64:
		return goTerm{text: strconv.FormatInt(n, 10), kind: goInt, constant: v}
	case float64:
		return goTerm{text: floatSource(n), kind: goFloat, constant: v}
	case bool:
		return goTerm{text: strconv.FormatBool(n), kind: goBool, constant: v}
	}
	return goTerm{}
}

// guarded returns a condition that is false where a divisor is 0.
func (t goTerm) guarded(condition string) string {
	for _, d := range t.divisors {
		condition = fmt.Sprintf("%s != 0 && (%s)", d, condition)
	}
	return condition
}

// float returns the term as a float64.
func (t goTerm) float() goTerm {
	if n, ok := t.constant.(int64); ok {
		t.text, t.constant = floatSource(float64(n)), float64(n)
	} else if t.kind == goInt {
		t.text = "float64(" + t.text + ")"
	}
	t.kind = goFloat
	return t
}

// truth returns the term as a condition.
func (t goTerm) truth() goTerm {
	if t.kind == goInt || t.kind == goFloat {
		t.text, t.kind = t.text+" != 0", goBool
	}
	return t
}

// inside returns the text as an operand.
func (t goTerm) inside() string {
	if strings.ContainsRune(t.text, ' ') && !strings.HasSuffix(t.text, "()") {
		return "(" + t.text + ")"
	}
	return t.text
}

var goSigns = map[string]string{
	"_operator.add": "+", "_operator.sub": "-", "_operator.mul": "*", "_operator.truediv": "/", "_operator.lshift": "<<", "_operator.rshift": ">>",
	"_operator.and_": "&", "_operator.or_": "|", "_operator.xor": "^", "_operator.eq": "==", "_operator.ne": "!=", "_operator.lt": "<",
	"_operator.le": "<=", "_operator.gt": ">", "_operator.ge": ">=", "and": "&&", "or": "||",
}

// logic writes an operator on conditions.
func (t goTerm) logic(of string, args []goTerm) (goTerm, bool) {
	// Python does not divide where an earlier part decides. So later parts carry their own
	// divisors, and are false where one of them is 0.
	t.divisors = args[0].divisors
	for i := range args {
		if t.zero = t.zero || args[i].zero; i == 0 || len(args[i].divisors) == 0 {
			continue
		}
		if args[i].kind != goBool {
			return t, false
		}
		args[i].text, args[i].divisors, t.zero = args[i].guarded(args[i].text), nil, true
	}
	if t.zero && of != "and" && of != "or" { // false would not refuse
		return t, false
	}
	t.kind = goBool
	switch of {
	case "if":
		if args[1].kind != args[2].kind {
			return t, false
		}
		t.kind = args[1].kind
		t.text = fmt.Sprintf("func() %s {\nif %s {\nreturn %s\n}\nreturn %s\n}()", t.kind.source(), args[0].truth().text, args[1].text, args[2].text)
		return t, true
	case "_operator.not_":
		t.text = "!(" + args[0].truth().text + ")"
		return t, true
	}
	parts := make([]string, len(args))
	for i := range args {
		parts[i] = args[i].truth().inside()
	}
	t.text = strings.Join(parts, " "+goSigns[of]+" ")
	return t, true
}

// kindOf returns the kind of the numbers with which a function computes, and converts its arguments
// to that kind.
func kindOf(of string, args []goTerm) goKind {
	float := of == "_operator.truediv" || goCalls[of] != ""
	for _, arg := range args {
		float = float || arg.kind == goFloat
	}
	if !float {
		return goInt
	}
	for i := range args {
		if of != "builtins.round" || i == 0 {
			args[i] = args[i].float()
		}
	}
	return goFloat
}

// goCalls are functions of floating-point numbers, goRounds those that round to an integer.
var (
	goCalls  = map[string]string{"math.sqrt": "Sqrt", "torch._sym_sqrt": "Sqrt", "math.log2": "Log2", "torch._sym_log2": "Log2"}
	goRounds = map[string]string{"torch.sym_int": "Trunc", "math.trunc": "Trunc", "math.floor": "Floor", "math.ceil": "Ceil", "builtins.round": "RoundToEven"}
)

// integerHelpers are the functions of goHelpers for operators on integers, and wideHelpers those
// for operators that may be above 64 bits.
var (
	integerHelpers = map[string]string{"_operator.floordiv": "floorDiv", "_operator.mod": "floorMod", "_operator.pow": "power"}
	wideHelpers    = map[string]string{"_operator.add": "sum", "_operator.sub": "difference", "_operator.mul": "product"}
)

// numbers writes a function on numbers. t has the kind that the numbers have.
func (s *writer) numbers(of string, args []goTerm, t goTerm) (goTerm, bool) {
	inside, plain := make([]string, len(args)), make([]string, len(args))
	for i := range args {
		inside[i], plain[i] = args[i].inside(), args[i].text
	}
	list := strings.Join(plain, ", ")
	helper := func(name string) string {
		s.helpers[name] = true
		s.helpers["product"] = s.helpers["product"] || name == "power"
		return fmt.Sprintf("%s(x, %s)", name, list)
	}
	two, whole := len(args) == 2, t.kind == goInt
	switch sign := goSigns[of]; {
	case whole && integerHelpers[of] != "":
		t.text = helper(integerHelpers[of])
		return t, two
	case whole && t.wide && wideHelpers[of] != "":
		t.text = helper(wideHelpers[of])
		return t, len(args) > 1
	case of == "_operator.floordiv":
		t.text = "math.Floor(" + strings.Join(inside, " / ") + ")"
		return t, two
	case of == "_operator.pow":
		t.text = "math.Pow(" + list + ")"
		return t, two
	case sign != "":
		switch of {
		case "_operator.eq", "_operator.ne", "_operator.lt", "_operator.le", "_operator.gt", "_operator.ge":
			t.kind, whole = goBool, two
		case "_operator.add", "_operator.sub", "_operator.mul", "_operator.truediv":
			whole = len(args) > 1
		}
		t.text = strings.Join(inside, " "+sign+" ")
		return t, whole
	case of == "torch.sym_max" || of == "torch.sym_min":
		t.text = of[len("torch.sym_"):] + "(" + list + ")"
		return t, true
	case of == "builtins.round" && two:
		n, isInt := args[1].constant.(int64)
		t.text = "roundTo(" + list + ")"
		s.helpers["roundTo"] = s.helpers["roundTo"] || isInt && n >= 0 && !whole
		return t, isInt && n >= 0 && !whole
	}
	t = t.unary(of, args[0])
	return t, len(args) == 1 && t.text != "" && (whole || of != "_operator.invert")
}

// unary writes a function on one number. The text is "" for a function that Go cannot say.
func (t goTerm) unary(of string, arg goTerm) goTerm {
	t.text = ""
	switch {
	case goRounds[of] != "" && t.kind == goFloat:
		t.text, t.kind = fmt.Sprintf("int64(math.%s(%s))", goRounds[of], arg.text), goInt
	case goRounds[of] != "":
		t.text = arg.text
	case goCalls[of] != "":
		t.text = fmt.Sprintf("math.%s(%s)", goCalls[of], arg.text)
	case of == "_operator.neg":
		t.text = "-(" + arg.text + ")"
	case of == "_operator.invert":
		t.text = "^" + arg.inside()
	case of == "_operator.pos":
		t.text = arg.inside()
	case of == "builtins.abs" && t.kind == goInt:
		t.text = fmt.Sprintf("max(%s, -(%s))", arg.text, arg.text)
	case of == "builtins.abs":
		t.text = "math.Abs(" + arg.text + ")"
	case of == "torch.sym_float":
		t = goTerm{text: arg.float().text, kind: goFloat, divisors: t.divisors}
	}
	return t
}
