package pt2

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// An expr is an expression of symbols, as a file has it for the size of a dimension. The text is
// that of sympy.srepr, such as
//
//	Mul(Integer(4), Symbol('s0', positive=True, integer=True))
type expr struct {
	of     string // the function; "Symbol" and "Integer" are leaves
	symbol string
	value  int64
	args   []*expr
}

const mostExprDepth = 100

// errUnknown is the result of an expression that this package cannot compute.
var errUnknown = errors.New("unknown")

// parseExpr reads an expression.
func parseExpr(text string) (*expr, error) {
	p := exprParser{text: text}
	e, err := p.expr(0)
	if err == nil && p.text != "" {
		err = fmt.Errorf("%q follows it", p.text)
	}
	if err != nil {
		return nil, fmt.Errorf("the expression %.100q: %w", text, err)
	}
	return e, nil
}

type exprParser struct{ text string } // what is not read yet

func (p *exprParser) skip(prefix string) bool {
	rest, ok := strings.CutPrefix(p.text, prefix)
	p.text = strings.TrimLeft(rest, " ")
	return ok
}

// The method `until` returns the text before one of the characters `ends`.
func (p *exprParser) until(ends string) string {
	n := strings.IndexAny(p.text, ends)
	if n < 0 {
		n = len(p.text)
	}
	text := p.text[:n]
	p.text = p.text[n:]
	return text
}

func (p *exprParser) expr(depth int) (*expr, error) {
	if depth > mostExprDepth {
		return nil, fmt.Errorf("more than %d functions inside each other", mostExprDepth)
	}
	e := &expr{of: p.until("(),")}
	if !p.skip("(") {
		e.value, e.of = 0, "value "+e.of // such as true
		return e, nil
	}
	switch e.of {
	case "Symbol":
		e.symbol = strings.Trim(p.until(",)"), "'\"")
		p.until(")")
	case "Integer":
		v, err := strconv.ParseInt(p.until(")"), 10, 64)
		if err != nil {
			return nil, err
		}
		e.value = v
	case "Float", "Rational": // sizes that need them are not computed
		p.until(")")
	default:
		for !strings.HasPrefix(p.text, ")") {
			arg, err := p.expr(depth + 1)
			if err != nil {
				return nil, err
			}
			e.args = append(e.args, arg)
			if !p.skip(",") && !strings.HasPrefix(p.text, ")") {
				return nil, errors.New("it ends too early")
			}
		}
	}
	if !p.skip(")") {
		return nil, errors.New("it ends too early")
	}
	return e, nil
}

// The method `eval` computes the value. It fails with errUnknown if a symbol has no value, or if
// this package does not know a function.
func (e *expr) eval(symbols map[string]int64) (int64, error) {
	switch e.of {
	case "Integer":
		return e.value, nil
	case "Symbol":
		if v, ok := symbols[e.symbol]; ok {
			return v, nil
		}
		return 0, errUnknown
	}
	combine, ok := combinations[e.of]
	if !ok || len(e.args) == 0 || combine.two && len(e.args) != 2 {
		return 0, errUnknown
	}
	v, err := e.args[0].eval(symbols)
	for _, arg := range e.args[1:] {
		w, argErr := arg.eval(symbols)
		if err == nil {
			err = argErr
		}
		if err == nil {
			v, err = combine.of(v, w)
		}
	}
	return v, err
}

// combinations are the functions of expressions. A function of `two` has exactly two arguments.
var combinations = map[string]struct {
	of  func(a, b int64) (int64, error)
	two bool
}{
	"Add":          {of: addInts},
	"Mul":          {of: mulInts},
	"Max":          {of: func(a, b int64) (int64, error) { return max(a, b), nil }},
	"Min":          {of: func(a, b int64) (int64, error) { return min(a, b), nil }},
	"Pow":          {powInts, true},
	"PowByNatural": {powInts, true},
	"FloorDiv":     {floorDiv, true},
	"CleanDiv":     {floorDiv, true},
	"Mod":          {floorMod, true},
	"PythonMod":    {floorMod, true},
}

// errOverflow is the result of an expression with a value above 64 bits.
var errOverflow = errors.New("a number above 64 bits")

func addInts(a, b int64) (int64, error) {
	if s := a + b; (s > a) == (b > 0) {
		return s, nil
	}
	return 0, errOverflow
}

func mulInts(a, b int64) (int64, error) {
	if a == 0 || b == 0 {
		return 0, nil
	}
	p := a * b
	if p/b != a || a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		return 0, errOverflow
	}
	return p, nil
}

func powInts(base, exponent int64) (int64, error) {
	if exponent < 0 || exponent > 64 && base != 0 && base != 1 && base != -1 {
		return 0, errUnknown
	}
	v := int64(1)
	for range exponent%4 + min(exponent-exponent%4, 64) { // powers of 0, 1 and -1 repeat
		var err error
		if v, err = mulInts(v, base); err != nil {
			return 0, err
		}
	}
	return v, nil
}

func floorDiv(a, b int64) (int64, error) {
	if b == 0 {
		return 0, errors.New("a division by zero")
	}
	if b == -1 {
		return mulInts(a, -1)
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q, nil
}

func floorMod(a, b int64) (int64, error) {
	if b == 0 {
		return 0, errors.New("a division by zero")
	}
	if b == -1 {
		return 0, nil
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m, nil
}

// String returns the expression as a formula, such as 4*s0.
func (e *expr) String() string {
	switch e.of {
	case "Integer":
		return strconv.FormatInt(e.value, 10)
	case "Symbol":
		return e.symbol
	}
	args := make([]string, len(e.args))
	for i, arg := range e.args {
		args[i] = arg.String()
	}
	switch e.of {
	case "Add":
		return "(" + strings.Join(args, "+") + ")"
	case "Mul":
		return strings.Join(args, "*")
	case "Pow":
		return strings.Join(args, "^")
	}
	return e.of + "(" + strings.Join(args, ", ") + ")"
}
