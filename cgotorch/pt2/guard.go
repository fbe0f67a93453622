package pt2

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Guards of a program]
//
// PyTorch exports one branch for each condition on sizes that the Python code asks. The conditions
// that held are the program's guards, as texts of Python in the file: (L['x'].size()[0] % 2) == 0.
// With other sizes the program would compute the wrong branch. So each call checks all guards
// before its first node, as PyTorch does.
//
// A guard that this package cannot read is not passed over. The program then runs with the sizes of
// its export alone.

// guards are the conditions on the inputs of a program.
type guards struct {
	list    []guard
	sources []source // what the guards read
	known   map[source]bool
	unknown string // the first guard that cannot be read; "" if there is none
}

// A guard is a condition.
type guard struct {
	text      string // of Python, with the names of inputs
	condition *expr
}

// A source is a number that a guard reads of an input.
type source struct {
	text, input string // of Python, such as x.size()[0]; the name of the input
	leaf        int
	of          string // "size", "stride", "dim", or "" for the input itself
	dim         int
}

// readGuards reads the guards of a file.
func (p *Program) readGuards(a *archive, text *exported) {
	if text.Guards == nil {
		slog.Warn(fmt.Sprintf("pt2: %.200s: the file has no guards, as PyTorch %.40s wrote it: only the ranges of its sizes are checked; export it with PyTorch 2.11 to check the conditions of its code", a.Name, text.TorchVersion))
		return
	}
	names := p.leafNames()
	g := &p.guards
	for _, code := range *text.Guards {
		condition, err := parsePython(code)
		if err == nil {
			err = g.resolve(p, condition, names)
		}
		if err != nil {
			if g.unknown == "" {
				g.unknown = fmt.Sprintf("%.200s: %v", code, err)
			}
			continue
		}
		g.list = append(g.list, guard{strings.ReplaceAll(condition.python(), "\n", " "), condition})
	}
	p.readRanges(text, names)
}

// readRanges adds the ranges of sizes that are formulas, such as 2*s0. Those of symbols are in
// [Size].
func (p *Program) readRanges(text *exported, names map[string]int) {
	for _, key := range slices.Sorted(maps.Keys(text.RangeConstraints)) {
		formula, err := parsePython(key)
		if err != nil || formula.of == "symbol" {
			continue
		}
		c := text.RangeConstraints[key]
		for i := range p.values {
			for d, s := range p.values[i].Shape {
				if s.expr == nil || !s.expr.equal(formula) {
					continue
				}
				of := &expr{of: "symbol", symbol: p.guards.add(source{fmt.Sprintf("%s.size()[%d]", p.values[i].Name, d), p.values[i].Name, i, "size", d})}
				bound := func(operator string, bound *float64, known bool) {
					if known {
						e := &expr{of: operator, args: []*expr{of, {of: "constant", value: int64(*bound)}}}
						p.guards.list = append(p.guards.list, guard{e.python(), e})
					}
				}
				bound("_operator.ge", c.Min, c.Min != nil && *c.Min > 2 && *c.Min < maxSize)
				bound("_operator.le", c.Max, c.Max != nil && *c.Max >= 0 && *c.Max < maxSize)
			}
		}
	}
}

// leafNames returns the inputs by the names that guards give them, without spaces:
// L['boxes']['left'][0]. An input may have several names.
func (p *Program) leafNames() map[string]int {
	names := map[string]int{}
	leaf := 0
	var walk func(t *tree, paths []string)
	walk = func(t *tree, paths []string) {
		if t.leaf() {
			for _, path := range append(paths, fmt.Sprintf("L['flat_args'][%d]", leaf)) {
				if at, ok := names[path]; ok && at != leaf {
					names[path] = -1 // two inputs could be meant
				} else {
					names[path] = leaf
				}
			}
			leaf++
			return
		}
		for i, c := range t.children {
			steps := []string{fmt.Sprintf("[%d]", i)}
			if t.named {
				key := t.keys[i]
				steps = []string{"[" + quotePython(key) + "]", "." + key}
				if _, err := strconv.ParseInt(key, 10, 64); err == nil {
					steps = []string{"[" + key + "]", "[" + quotePython(key) + "]"} // the tree does not tell a number from a text
				} else if !strings.HasSuffix(t.kind, "ict") {
					steps = append(steps, fmt.Sprintf("[%d]", i))
				}
			}
			var below []string
			for _, path := range paths {
				for _, step := range steps {
					below = append(below, path+step)
				}
			}
			walk(c, below[:min(len(below), mostLeafNames)])
		}
	}
	arguments, keywords := p.in.children[0], p.in.children[1]
	for i, c := range arguments.children {
		name := p.position(i)
		paths := []string{"L[" + quotePython(name) + "]"}
		if at := strings.LastIndexByte(name, '_'); at >= 0 { // args[1] of *args has the name args_1
			if n, err := strconv.Atoi(name[at+1:]); err == nil {
				paths = append(paths, fmt.Sprintf("L[%s][%d]", quotePython(name[:at]), n))
			}
		}
		walk(c, paths)
	}
	for i, c := range keywords.children {
		walk(c, []string{"L[" + quotePython(keywords.keys[i]) + "]"})
	}
	return names
}

const mostLeafNames = 64 // of one input

// quotePython returns a text as Python's repr does, for texts that need no escapes.
func quotePython(text string) string {
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		return `"` + text + `"`
	}
	return "'" + text + "'"
}

// resolve finds what the symbols of an expression stand for, and gives them the names of the
// inputs.
func (g *guards) resolve(p *Program, e *expr, names map[string]int) error {
	if e.of == "symbol" {
		s, err := p.source(e.symbol, names)
		if err != nil {
			return err
		}
		e.symbol = g.add(s)
		return nil
	}
	if e.of != "constant" && e.of != "and" && e.of != "or" && e.of != "if" && pythonFunctions[e.of] == nil {
		return fmt.Errorf("the function %.60s is not known", e.of)
	}
	for _, arg := range e.args {
		if err := g.resolve(p, arg, names); err != nil {
			return err
		}
	}
	return nil
}

// add adds a source, if it is not there yet, and returns its text.
func (g *guards) add(s source) string {
	if !g.known[s] {
		if g.known == nil {
			g.known = map[source]bool{}
		}
		g.known[s] = true
		g.sources = append(g.sources, s)
	}
	return s.text
}

// source finds what a text such as L['x'].size()[0] stands for.
func (p *Program) source(text string, names map[string]int) (source, error) {
	unknown := fmt.Errorf("%.100s is not known", text)
	path, s := text, source{}
	for _, of := range []struct{ mark, of string }{{".size()[", "size"}, {".shape[", "size"}, {".stride()[", "stride"}} {
		at := strings.LastIndex(text, of.mark)
		if at < 0 {
			continue
		}
		dim, err := strconv.Atoi(strings.TrimSuffix(text[at+len(of.mark):], "]"))
		if err != nil || dim < 0 {
			return s, unknown
		}
		path, s.of, s.dim = text[:at], of.of, dim
		break
	}
	for _, mark := range []string{".dim()", ".ndim"} {
		if before, ok := strings.CutSuffix(path, mark); ok && s.of == "" {
			path, s.of = before, "dim"
		}
	}
	leaf, ok := names[path]
	if !ok || leaf < 0 {
		return s, unknown
	}
	v := &p.values[leaf]
	if v.Tensor != (s.of != "") || v.Tensor && s.of != "dim" && s.dim >= len(v.Shape) {
		return s, unknown
	}
	s.leaf, s.input, s.text = leaf, v.Name, v.Name+text[len(path):]
	return s, nil
}

// read returns the number that a source stands for.
func (s *source) read(leaves []any) any {
	leaf := leaves[s.leaf]
	switch s.of {
	case "size":
		return shapeOf(leaf)[s.dim]
	case "dim":
		return int64(len(shapeOf(leaf)))
	case "stride":
		if t, ok := leaf.(*cgotorch.Tensor); ok {
			return t.Strides()[s.dim]
		}
		stride := int64(1) // of contiguous memory
		for _, n := range shapeOf(leaf)[s.dim+1:] {
			stride *= max(n, 1)
		}
		return stride
	}
	return leaf
}

// guard returns why the guards refuse the leaves, or nil. See fits.
func (p *Program) guard(leaves []any) error {
	g := &p.guards
	if g.unknown != "" {
		if err := p.asExported(leaves); err != nil {
			return fmt.Errorf("%w, because a guard of the export is of a form that this package does not read (%s)", err, g.unknown)
		}
		return nil // the guards held at the export
	}
	if len(g.list) == 0 {
		return nil
	}
	read := make([]any, len(g.sources))
	for i := range g.sources {
		read[i] = g.sources[i].read(leaves)
	}
	if passed := p.passed.Load(); passed != nil && slices.Equal(*passed, read) {
		return nil
	}
	values := make(map[string]any, len(read))
	for i := range g.sources {
		values[g.sources[i].text] = read[i]
	}
	for i := range g.list {
		holds, err := g.list[i].condition.truth(values)
		if err == nil && holds {
			continue
		}
		why := ""
		if err != nil {
			why = fmt.Sprintf(" (%v)", err)
		}
		return fmt.Errorf("%s: the program was exported for inputs with %s, a guard of its Python code%s",
			g.describe(&g.list[i], values), g.list[i].text, why)
	}
	p.passed.Store(&read)
	return nil
}

// describe tells what a guard reads, as in "dimension 0 of the input x is 5".
func (g *guards) describe(of *guard, values map[string]any) string {
	var parts []string
	for _, name := range of.condition.symbols(nil) {
		s := &g.sources[slices.IndexFunc(g.sources, func(s source) bool { return s.text == name })]
		text := "the input " + s.input
		switch s.of {
		case "size":
			text = fmt.Sprintf("dimension %d of %s", s.dim, text)
		case "stride":
			text = fmt.Sprintf("stride %d of %s", s.dim, text)
		case "dim":
			text = "the rank of " + text
		}
		parts = append(parts, fmt.Sprintf("%s is %v", text, values[name]))
	}
	return strings.Join(parts, ", ")
}

// asExported returns why the sizes are not those of the export, or nil.
func (p *Program) asExported(leaves []any) error {
	for i := range p.values {
		v := &p.values[i]
		given := shapeOf(leaves[i])
		if n, ok := leaves[i].(int64); ok {
			given = []int64{n}
		}
		for d, s := range v.sizes() {
			if s.Min == s.Max || s.hint != nil && *s.hint == given[d] {
				continue
			}
			what := fmt.Sprintf("dimension %d of the input %s is %d", d, v.Name, given[d])
			if !v.Tensor {
				what = fmt.Sprintf("the input %s is %d", v.Name, given[d])
			}
			if s.hint == nil {
				return fmt.Errorf("%s, and the file does not say which size it had in the export", what)
			}
			return fmt.Errorf("%s, and the program runs with the size of its export alone, %d", what, *s.hint)
		}
	}
	return nil
}

// pythonText are the operators of pythonLevels by their functions.
var pythonText = func() map[string]string {
	text := map[string]string{}
	for _, level := range pythonLevels {
		for sign, of := range level {
			text[of] = sign
		}
	}
	return text
}()

// python returns an expression as Python has it.
func (e *expr) python() string {
	var b strings.Builder
	e.write(&b)
	return b.String()
}

func (e *expr) write(b *strings.Builder) {
	arg := func(i int) {
		a := e.args[i]
		inside := len(a.args) > 1 && (pythonText[a.of] != "" || a.of == "if")
		if inside {
			b.WriteByte('(')
		}
		a.write(b)
		if inside {
			b.WriteByte(')')
		}
	}
	list := func(between string) {
		for i := range e.args {
			if i > 0 {
				b.WriteString(between)
			}
			arg(i)
		}
	}
	switch {
	case e.of == "symbol":
		b.WriteString(e.symbol)
	case e.of == "constant":
		text := fmt.Sprint(e.value)
		if v, ok := e.value.(bool); ok {
			text = map[bool]string{true: "True", false: "False"}[v]
		}
		b.WriteString(text)
	case e.of == "if":
		arg(1)
		b.WriteString(" if ")
		arg(0)
		b.WriteString(" else ")
		arg(2)
	case e.of == "_operator.not_":
		b.WriteString("not ")
		arg(0)
	case len(e.args) == 1 && strings.HasPrefix(e.of, "_operator."):
		b.WriteString(map[string]string{"_operator.neg": "-", "_operator.pos": "", "_operator.invert": "~"}[e.of])
		arg(0)
	case e.of == "_operator.pow":
		list(" ** ")
	case pythonText[e.of] != "":
		list(" " + pythonText[e.of] + " ")
	default:
		b.WriteString(e.of[strings.LastIndexByte(e.of, '.')+1:] + "(")
		list(", ")
		b.WriteByte(')')
	}
}
