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

// goTerm is an expression of Go.
type goTerm struct {
	text     string
	kind     goKind
	constant any      // its value, where the text is a number or a truth value
	divisors []string // what must not be 0
	zero     bool     // it is false where a divisor in it is 0
	wide     bool     // it may be above 64 bits in a sum or a product
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
	float, logic := false, true
	for i, arg := range e.Args {
		if args[i], ok = c.expr(arg, source); !ok {
			return t, false
		}
		t.divisors = append(t.divisors, args[i].divisors...)
		t.zero = t.zero || args[i].zero
		t.wide = t.wide || args[i].wide
		float = float || args[i].kind == goFloat
		logic = logic && args[i].kind == goBool
	}
	if e.Of == "and" || e.Of == "or" || e.Of == "if" || e.Of == "_operator.not_" {
		return c.logic(e.Of, args, t)
	}
	if logic || t.zero {
		return t, false // Python counts with truth values, and Go does not
	}
	for _, arg := range args {
		if arg.kind == goBool {
			return t, false
		}
	}
	if t.kind = goInt; float || e.Of == "_operator.truediv" || e.Of == "math.sqrt" || e.Of == "torch._sym_sqrt" || e.Of == "math.log2" || e.Of == "torch._sym_log2" {
		t.kind = goFloat
		for i := range args {
			if e.Of != "builtins.round" || i == 0 {
				args[i] = args[i].float()
			}
		}
	}
	return c.numbers(e.Of, args, t)
}

// logic writes an operator on conditions.
func (c *goCheck) logic(of string, args []goTerm, t goTerm) (goTerm, bool) {
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

// numbers writes a function on numbers. t has the kind that the numbers have.
func (c *goCheck) numbers(of string, args []goTerm, t goTerm) (goTerm, bool) {
	texts := make([]string, len(args))
	for i := range args {
		texts[i] = args[i].inside()
	}
	helper := func(name string) string {
		c.s.helpers[name] = true
		plain := make([]string, len(args))
		for i := range args {
			plain[i] = args[i].text
		}
		return fmt.Sprintf("%s(%s)", name, strings.Join(append([]string{"x"}, plain...), ", "))
	}
	whole := func(round string) string {
		if t.kind == goFloat {
			t.kind = goInt
			return fmt.Sprintf("int64(math.%s(%s))", round, args[0].text)
		}
		return args[0].text
	}
	two := len(args) == 2
	switch of {
	case "_operator.pow", "_operator.lshift", "_operator.rshift":
		if !two {
			return t, false
		}
	case "_operator.truediv", "_operator.floordiv", "_operator.mod":
		if !two || t.kind == goFloat && of == "_operator.mod" {
			return t, false
		}
		if args[1].constant == nil {
			t.divisors = append(t.divisors, texts[1])
		} else if args[1].constant == int64(0) || args[1].constant == 0.0 {
			return t, false
		}
	}
	switch of {
	case "_operator.eq", "_operator.ne", "_operator.lt", "_operator.le", "_operator.gt", "_operator.ge":
		t.kind = goBool
		t.text = strings.Join(texts, " "+goSigns[of]+" ")
		return t, two
	case "_operator.add", "_operator.sub", "_operator.mul", "_operator.truediv":
		t.wide = t.wide || of == "_operator.mul" && args[0].constant == nil && args[len(args)-1].constant == nil
		if name := map[string]string{"_operator.add": "sum", "_operator.sub": "difference", "_operator.mul": "product"}[of]; t.wide && t.kind == goInt {
			t.text = helper(name)
			return t, len(args) > 1
		}
		t.text = strings.Join(texts, " "+goSigns[of]+" ")
		return t, len(args) > 1
	case "_operator.and_", "_operator.or_", "_operator.xor":
		t.text = strings.Join(texts, " "+goSigns[of]+" ")
		return t, two && t.kind == goInt
	case "_operator.lshift", "_operator.rshift":
		if n, isInt := args[1].constant.(int64); !isInt || n < 0 || t.kind != goInt {
			return t, false
		}
		t.text = strings.Join(texts, " "+goSigns[of]+" ")
	case "_operator.floordiv":
		if t.text = "math.Floor(" + strings.Join(texts, " / ") + ")"; t.kind == goInt {
			t.text = helper("floorDiv")
		}
	case "_operator.mod":
		t.text = helper("floorMod")
	case "_operator.pow":
		if n, isInt := args[1].constant.(int64); t.kind == goInt && (!isInt || n < 0) {
			return t, false
		}
		if t.text = fmt.Sprintf("math.Pow(%s, %s)", args[0].text, args[1].text); t.kind == goInt {
			c.s.helpers["product"] = true
			t.text = helper("power")
		}
	case "_operator.neg":
		t.text = "-(" + args[0].text + ")"
	case "_operator.invert":
		t.text = "^" + texts[0]
		return t, t.kind == goInt
	case "_operator.pos":
		t.text = texts[0]
	case "torch.sym_max", "torch.sym_min":
		for i := range args {
			texts[i] = args[i].text
		}
		t.text = of[len("torch.sym_"):] + "(" + strings.Join(texts, ", ") + ")"
	case "builtins.abs":
		if t.text = "math.Abs(" + args[0].text + ")"; t.kind == goInt {
			t.text = fmt.Sprintf("max(%s, -(%s))", args[0].text, args[0].text)
		}
	case "torch.sym_float":
		t = goTerm{text: args[0].float().text, kind: goFloat, divisors: t.divisors}
	case "torch.sym_int", "math.trunc":
		t.text = whole("Trunc")
	case "math.floor":
		t.text = whole("Floor")
	case "math.ceil":
		t.text = whole("Ceil")
	case "builtins.round":
		if n, isInt := args[len(args)-1].constant.(int64); two && isInt && n >= 0 && t.kind == goFloat {
			c.s.helpers["roundTo"] = true
			t.text = fmt.Sprintf("roundTo(%s, %s)", args[0].text, args[1].text)
			return t, true
		}
		t.text = whole("RoundToEven")
		return t, len(args) == 1
	case "math.sqrt", "torch._sym_sqrt":
		t.text = "math.Sqrt(" + args[0].text + ")"
	case "math.log2", "torch._sym_log2":
		t.text = "math.Log2(" + args[0].text + ")"
	default:
		return t, false
	}
	return t, true
}
