package gosource

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/guard"
)

// goCheck writes the function that checks the sizes of arguments. See Note [Guards of a program].
type goCheck struct {
	s      *writer
	names  []string          // of the arguments, by input; "" for a fixed input
	taken  map[string]bool   // the names in the function
	values map[string]goTerm // by the text of the source: the variable that holds it
	uses   map[string]int    // by symbol: how many sizes have it
	lines  []string
}

// check returns the declaration of a function that fails where [pt2.Program.Call] would fail for
// sizes. It returns "" if every argument may have any size. The arguments have the given names, and
// `signature` declares them.
func (s *writer) check(names, signature []string) string {
	c := &goCheck{s: s, names: names, taken: map[string]bool{}, values: map[string]goTerm{}}
	for _, name := range names {
		c.taken[name] = true
	}
	c.shapes()
	p := s.p
	unknown := p.Guards.Unknown != ""
	for i := range p.Guards.List {
		if unknown {
			break
		}
		unknown = !c.guard(&p.Guards.List[i])
	}
	if unknown {
		c.exported()
	}
	if len(c.lines) == 0 {
		return ""
	}
	s.helpers["require"] = true
	return fmt.Sprintf("// checkSizes fails for sizes for which PyTorch has not exported the model.\nfunc checkSizes(%s) {\n%s\n}\n",
		joinVariables(append([]string{"x *cgotorch.Exec"}, signature...)), strings.Join(c.lines, "\n"))
}

// shapes writes the conditions of single inputs, and that equal symbols have equal sizes.
func (c *goCheck) shapes() {
	p := c.s.p
	first := map[string]goTerm{} // by symbol
	bind := func(s *guard.Size, v goTerm, what string) {
		switch {
		case s.Min == s.Max:
			c.require(fmt.Sprintf("%s == %d", v.text, s.Min), fmt.Sprintf("%s == %d", what, s.Min), what, v.text)
			return
		case s.Min > 0 && s.Max < guard.MaxSize:
			c.require(fmt.Sprintf("%s >= %d && %s <= %d", v.text, s.Min, v.text, s.Max), fmt.Sprintf("%d <= %s <= %d", s.Min, what, s.Max), what, v.text)
		case s.Min > 0:
			c.require(fmt.Sprintf("%s >= %d", v.text, s.Min), fmt.Sprintf("%s >= %d", what, s.Min), what, v.text)
		case s.Max < guard.MaxSize:
			c.require(fmt.Sprintf("%s <= %d", v.text, s.Max), fmt.Sprintf("%s <= %d", what, s.Max), what, v.text)
		}
		if s.Expr == nil || s.Expr.Of != "symbol" {
			return
		}
		if before, ok := first[s.Expr.Symbol]; ok {
			c.require(v.text+" == "+before.text, what+" == "+s.Text, what, v.text)
			return
		}
		first[s.Expr.Symbol] = v
	}
	for i := range p.Signature.Inputs {
		v := &p.Signature.Inputs[i]
		if v.Bounds != nil {
			bind(v.Bounds, goTerm{text: c.names[i], kind: goInt, wide: true}, v.Name)
		}
		if !v.Tensor {
			continue
		}
		c.require(fmt.Sprintf("%s.Dim() == %d", c.names[i], len(v.Shape)), fmt.Sprintf("%s.dim() == %d", v.Name, len(v.Shape)), v.Name+".dim()", c.names[i]+".Dim()")
		for d := range v.Shape {
			if s := &v.Shape[d]; s.Min == s.Max || s.Min > 0 || s.Max < guard.MaxSize || s.Expr != nil && s.Expr.Of == "symbol" && c.repeated(s.Expr.Symbol) {
				bind(s, goTerm{text: fmt.Sprintf("%s.Shape()[%d]", c.names[i], d), kind: goInt}, fmt.Sprintf("%s.size()[%d]", v.Name, d))
			}
		}
	}
	for i := range p.Signature.Inputs {
		for d, s := range p.Signature.Inputs[i].Shape {
			if s.Expr == nil || s.Expr.Of == "symbol" {
				continue
			}
			if formula, ok := c.expr(s.Expr, func(symbol string) (goTerm, bool) { v, ok := first[symbol]; return v, ok }); ok && formula.kind == goInt {
				size, what := fmt.Sprintf("%s.Shape()[%d]", c.names[i], d), fmt.Sprintf("%s.size()[%d]", p.Signature.Inputs[i].Name, d)
				c.require(formula.guarded(size+" == "+formula.text), what+" == "+s.Text, what, size)
			}
		}
	}
}

// repeated reports whether several dimensions or integers have a symbol in their sizes.
func (c *goCheck) repeated(symbol string) bool {
	if c.uses != nil {
		return c.uses[symbol] > 1
	}
	c.uses = map[string]int{}
	for i := range c.s.p.Signature.Inputs {
		for _, s := range c.s.p.Signature.Inputs[i].Sizes() {
			if s.Expr == nil {
				continue
			}
			for _, used := range s.Expr.Symbols(nil) {
				c.uses[used]++
			}
		}
	}
	return c.uses[symbol] > 1
}

// require writes a condition. Pairs are names and expressions of the values that the error shows.
func (c *goCheck) require(condition, text string, pairs ...string) {
	shown := ""
	for i := 0; i < len(pairs); i += 2 {
		shown += ", " + strconv.Quote(pairs[i]) + ", " + pairs[i+1]
	}
	c.lines = append(c.lines, fmt.Sprintf("require(x, %s, %s%s)", condition, strconv.Quote(commentText(text, 400)), shown))
}

// guard writes a guard, or reports false if Go cannot say it.
func (c *goCheck) guard(g *guard.Guard) bool {
	written := len(c.lines)
	condition, ok := c.expr(g.Condition, c.source)
	if condition = condition.truth(); !ok {
		c.lines = c.lines[:written] // without variables that nobody uses
		return false
	}
	var pairs []string
	for _, symbol := range g.Condition.Symbols(nil) {
		pairs = append(pairs, symbol, c.values[symbol].text)
	}
	c.require(condition.guarded(condition.text), g.Text, pairs...)
	return true
}

// exported writes that each size must be that of the export.
func (c *goCheck) exported() {
	p := c.s.p
	for i := range p.Signature.Inputs {
		v := &p.Signature.Inputs[i]
		for d, s := range v.Sizes() {
			if s.Min == s.Max {
				continue
			}
			text, what := fmt.Sprintf("%s.Shape()[%d]", c.names[i], d), fmt.Sprintf("%s.size()[%d]", v.Name, d)
			if v.Bounds != nil {
				text, what = c.names[i], v.Name
			}
			if s.Hint == nil {
				c.require("false", "the size of an export that the file does not say", what, text)
				continue
			}
			c.require(fmt.Sprintf("%s == %d", text, *s.Hint), fmt.Sprintf("%s == %d", what, *s.Hint), what, text)
		}
	}
}

// source returns the variable that holds what a guard reads, and writes its statement.
func (c *goCheck) source(text string) (goTerm, bool) {
	if v, ok := c.values[text]; ok {
		return v, true
	}
	p := c.s.p
	for _, s := range p.Guards.Sources {
		if s.Text != text {
			continue
		}
		name := c.names[s.Leaf]
		v := goTerm{kind: goInt}
		switch {
		case name == "":
			v = constantTerm(p.Signature.Inputs[s.Leaf].Fixed)
			if v.text == "" {
				return v, false
			}
		case s.Of == "":
			v.text, v.wide = name, true
		default:
			of := map[string]string{"size": fmt.Sprintf("%s.Shape()[%d]", name, s.Dim), "stride": fmt.Sprintf("%s.Strides()[%d]", name, s.Dim), "dim": fmt.Sprintf("int64(%s.Dim())", name)}[s.Of]
			v.text = unique(name+strconv.Itoa(s.Dim), c.taken)
			c.lines = append(c.lines, v.text+" := "+of)
		}
		c.values[text] = v
		return v, true
	}
	return goTerm{}, false
}

// expr returns an expression as Go source. It returns false for what Go cannot say.
func (c *goCheck) expr(e *expr.Expr, source func(symbol string) (goTerm, bool)) (t goTerm, ok bool) {
	if e.Of == "symbol" {
		return source(e.Symbol)
	}
	if len(e.Symbols(nil)) == 0 {
		v, err := e.Eval(nil)
		t = constantTerm(v)
		return t, err == nil && t.text != ""
	}
	args := make([]goTerm, len(e.Args))
	logic := true
	for i, arg := range e.Args {
		if args[i], ok = c.expr(arg, source); !ok {
			return t, false
		}
		t.divisors = append(t.divisors, args[i].divisors...)
		t.zero = t.zero || args[i].zero
		t.wide = t.wide || args[i].wide
		logic = logic && args[i].kind == goBool
	}
	if e.Of == "and" || e.Of == "or" || e.Of == "if" || e.Of == "_operator.not_" {
		return t.logic(e.Of, args)
	}
	if logic || t.zero {
		return t, false // Python counts with truth values, and Go does not
	}
	for _, arg := range args {
		if arg.kind == goBool {
			return t, false
		}
	}
	t.kind = kindOf(e.Of, args)
	t.wide = t.wide || e.Of == "_operator.mul" && args[0].constant == nil && args[len(args)-1].constant == nil
	if !t.divides(e.Of, args) {
		return t, false
	}
	return c.s.numbers(e.Of, args, t)
}

// divides adds the divisor of a function to those of the term. It reports false for a function that
// a guard cannot call: one that may fail, or whose result is not an integer.
func (t *goTerm) divides(of string, args []goTerm) bool {
	switch of {
	case "_operator.lshift", "_operator.rshift", "_operator.pow":
		if len(args) != 2 {
			return false
		}
		n, isInt := args[1].constant.(int64)
		return isInt && n >= 0 && t.kind == goInt || of == "_operator.pow" && t.kind == goFloat
	case "_operator.truediv", "_operator.floordiv", "_operator.mod":
		if len(args) != 2 || t.kind == goFloat && of == "_operator.mod" || args[1].constant == int64(0) || args[1].constant == 0.0 {
			return false
		}
		if args[1].constant == nil {
			t.divisors = append(t.divisors, args[1].inside())
		}
	}
	return true
}
