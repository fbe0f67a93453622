// Package expr reads and computes Python's expressions of sizes, as files of torch.export.save have
// them.
package expr

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Expr is an expression of symbols: the size of a dimension, or the condition of a guard.
type Expr struct {
	Of     string // "symbol", "constant", "and", "or", "if", or a name of pythonFunctions
	Symbol string
	Value  any // Of a constant: an int64, a float64, a bool or a string
	Args   []*Expr
}

const mostExprDepth = 100

// ErrUnknown is the result of an expression that this package cannot compute.
var ErrUnknown = errors.New("unknown")

// ParseSympy reads an expression as a file has it for the size of a dimension. The text is that of
// sympy.srepr, such as
//
//	Mul(Integer(4), Symbol('s0', positive=True, integer=True))
func ParseSympy(text string) (*Expr, error) {
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

// until returns the text before one of the characters `ends`.
func (p *exprParser) until(ends string) string {
	n := strings.IndexAny(p.text, ends)
	if n < 0 {
		n = len(p.text)
	}
	text := p.text[:n]
	p.text = p.text[n:]
	return text
}

func (p *exprParser) expr(depth int) (*Expr, error) {
	if depth > mostExprDepth {
		return nil, fmt.Errorf("more than %d functions inside each other", mostExprDepth)
	}
	name := p.until("(),")
	if !p.skip("(") {
		return &Expr{Of: "sympy." + name}, nil // such as true
	}
	e := &Expr{Of: cmp.Or(sympyFunctions[name], "sympy."+name)}
	switch name {
	case "Symbol":
		e.Of, e.Symbol = "symbol", strings.Trim(p.until(",)"), "'\"")
		p.until(")")
	case "Integer":
		v, err := strconv.ParseInt(p.until(")"), 10, 64)
		if err != nil {
			return nil, err
		}
		e.Of, e.Value = "constant", v
	case "Float", "Rational": // sizes that need them are not computed
		p.until(")")
	default:
		for !strings.HasPrefix(p.text, ")") {
			arg, err := p.expr(depth + 1)
			if err != nil {
				return nil, err
			}
			e.Args = append(e.Args, arg)
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

// sympyFunctions are the names of pythonFunctions, by those of sympy.
var sympyFunctions = map[string]string{
	"Add": "_operator.add", "Mul": "_operator.mul", "Max": "torch.sym_max", "Min": "torch.sym_min", "Pow": "_operator.pow",
	"PowByNatural": "_operator.pow", "FloorDiv": "_operator.floordiv", "CleanDiv": "_operator.floordiv", "Mod": "_operator.mod",
	"PythonMod": "_operator.mod",
}

// Eval computes the value, as Python does. It fails with errUnknown if a symbol has no value, or if
// this package does not know a function.
func (e *Expr) Eval(symbols map[string]any) (any, error) {
	switch e.Of {
	case "constant":
		return e.Value, nil
	case "symbol":
		if v, ok := symbols[e.Symbol]; ok {
			return v, nil
		}
		return nil, ErrUnknown
	case "and", "or": // the rest is not computed where the first part decides
		for _, arg := range e.Args {
			v, err := arg.Truth(symbols)
			if err != nil || v == (e.Of == "or") {
				return v, err
			}
		}
		return e.Of == "and", nil
	case "if":
		holds, err := e.Args[0].Truth(symbols)
		if err != nil {
			return nil, err
		}
		return e.Args[map[bool]int{true: 1, false: 2}[holds]].Eval(symbols)
	}
	of := Functions[e.Of]
	if of == nil || len(e.Args) == 0 {
		return nil, ErrUnknown
	}
	args := make([]any, len(e.Args))
	for i, arg := range e.Args {
		var err error
		if args[i], err = arg.Eval(symbols); err != nil {
			return nil, err
		}
	}
	if !folds[e.Of] {
		return of(args)
	}
	v := args[0]
	for _, arg := range args[1:] {
		var err error
		if v, err = of([]any{v, arg}); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// folds are the functions of two arguments that expressions have with more or fewer.
var folds = map[string]bool{"_operator.add": true, "_operator.mul": true, "torch.sym_max": true, "torch.sym_min": true}

// Truth computes a condition.
func (e *Expr) Truth(symbols map[string]any) (bool, error) {
	v, err := e.Eval(symbols)
	if err != nil {
		return false, err
	}
	switch v := v.(type) {
	case bool:
		return v, nil
	case int64:
		return v != 0, nil
	}
	return false, ErrUnknown
}

// Equal reports whether two expressions have equal parts, in any order where the order is free.
func (e *Expr) Equal(other *Expr) bool {
	if e.Of != other.Of || e.Symbol != other.Symbol || e.Value != other.Value || len(e.Args) != len(other.Args) {
		return false
	}
	if !folds[e.Of] {
		return slices.EqualFunc(e.Args, other.Args, (*Expr).Equal)
	}
	rest := slices.Clone(other.Args)
	for _, arg := range e.Args {
		i := slices.IndexFunc(rest, arg.Equal)
		if i < 0 {
			return false
		}
		rest = slices.Delete(rest, i, i+1)
	}
	return true
}

// errOverflow is the result of an expression with a value above 64 bits.
var errOverflow = errors.New("a number above 64 bits")

// addInts adds integers. It fails above 64 bits.
func addInts(a, b int64) (int64, error) {
	if s := a + b; (s > a) == (b > 0) {
		return s, nil
	}
	return 0, errOverflow
}

// mulInts multiplies integers. It fails above 64 bits.
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
		return 0, ErrUnknown
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
func (e *Expr) String() string {
	switch e.Of {
	case "constant":
		return fmt.Sprint(e.Value)
	case "symbol":
		return e.Symbol
	}
	args := make([]string, len(e.Args))
	for i, arg := range e.Args {
		args[i] = arg.String()
	}
	if sign := map[string]string{"_operator.mul": "*", "_operator.pow": "^"}[e.Of]; sign != "" {
		return strings.Join(args, sign)
	}
	if sign := map[string]string{"_operator.add": "+", "_operator.floordiv": "//", "_operator.mod": "%"}[e.Of]; sign != "" {
		return "(" + strings.Join(args, sign) + ")"
	}
	return e.Of[strings.LastIndexByte(e.Of, '.')+1:] + "(" + strings.Join(args, ", ") + ")"
}
