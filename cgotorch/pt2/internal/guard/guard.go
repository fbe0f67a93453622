// Package guard decides for which inputs a program of torch.export runs.
package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/expr"
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

// Guards are the inputs of a program, and the conditions on them.
type Guards struct {
	Inputs  []Input
	List    []Guard
	Sources []source // what the guards read
	known   map[source]bool
	Unknown string                // the first guard that cannot be read; "" if there is none
	passed  atomic.Pointer[[]any] // what the guards have read when they held last
}

// Guard is a condition.
type Guard struct {
	Text      string // Of Python, with the names of inputs
	Condition *expr.Expr
}

// source is a number that a guard reads of an input.
type source struct {
	Text, input string // Of Python, such as x.size()[0]; the name of the input
	Leaf        int
	Of          string // "size", "stride", "dim", or "" for the input itself
	Dim         int
}

// Read adds the guard with a text of Python. `names` are the inputs by the names that guards give
// them.
func (g *Guards) Read(code string, names map[string]int) {
	condition, err := expr.ParsePython(code)
	if err == nil {
		err = g.resolve(condition, names)
	}
	if err != nil {
		if g.Unknown == "" {
			g.Unknown = fmt.Sprintf("%.200s: %v", code, err)
		}
		return
	}
	g.List = append(g.List, Guard{strings.ReplaceAll(condition.Python(), "\n", " "), condition})
}

// ReadRanges adds the ranges of sizes that are formulas, such as 2*s0. Those of symbols are in
// [size].
func (g *Guards) ReadRanges(ranges map[string]Limits) {
	for _, key := range slices.Sorted(maps.Keys(ranges)) {
		formula, err := expr.ParsePython(key)
		if err != nil || formula.Of == "symbol" {
			continue
		}
		for i := range g.Inputs {
			for d, s := range g.Inputs[i].Shape {
				if s.Expr == nil || !s.Expr.Equal(formula) {
					continue
				}
				name := g.Inputs[i].Name
				of := &expr.Expr{Of: "symbol", Symbol: g.add(source{fmt.Sprintf("%s.size()[%d]", name, d), name, i, "size", d})}
				bound := func(operator string, bound int64) {
					e := &expr.Expr{Of: operator, Args: []*expr.Expr{of, {Of: "constant", Value: bound}}}
					g.List = append(g.List, Guard{e.Python(), e})
				}
				if ranges[key].Min > 0 {
					bound("_operator.ge", ranges[key].Min)
				}
				if ranges[key].Max < MaxSize {
					bound("_operator.le", ranges[key].Max)
				}
			}
		}
	}
}

// resolve finds what the symbols of an expression stand for, and gives them the names of the
// inputs.
func (g *Guards) resolve(e *expr.Expr, names map[string]int) error {
	if e.Of == "symbol" {
		s, err := g.source(e.Symbol, names)
		if err != nil {
			return err
		}
		e.Symbol = g.add(s)
		return nil
	}
	if e.Of != "constant" && e.Of != "and" && e.Of != "or" && e.Of != "if" && expr.Functions[e.Of] == nil {
		return fmt.Errorf("the function %.60s is not known", e.Of)
	}
	for _, arg := range e.Args {
		if err := g.resolve(arg, names); err != nil {
			return err
		}
	}
	return nil
}

// add adds a source, if it is not there yet, and returns its text.
func (g *Guards) add(s source) string {
	if !g.known[s] {
		if g.known == nil {
			g.known = map[source]bool{}
		}
		g.known[s] = true
		g.Sources = append(g.Sources, s)
	}
	return s.Text
}

// source finds what a text such as L['x'].size()[0] stands for.
func (g *Guards) source(text string, names map[string]int) (source, error) {
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
		path, s.Of, s.Dim = text[:at], of.of, dim
		break
	}
	for _, mark := range []string{".dim()", ".ndim"} {
		if before, ok := strings.CutSuffix(path, mark); ok && s.Of == "" {
			path, s.Of = before, "dim"
		}
	}
	leaf, ok := names[path]
	if !ok || leaf < 0 {
		return s, unknown
	}
	v := &g.Inputs[leaf]
	if v.Tensor != (s.Of != "") || v.Tensor && s.Of != "dim" && s.Dim >= len(v.Shape) {
		return s, unknown
	}
	s.Leaf, s.input, s.Text = leaf, v.Name, v.Name+text[len(path):]
	return s, nil
}

// read returns the number that a source stands for.
func (s *source) read(leaves []any) any {
	leaf := leaves[s.Leaf]
	switch s.Of {
	case "size":
		return shapeOf(leaf)[s.Dim]
	case "dim":
		return int64(len(shapeOf(leaf)))
	case "stride":
		if t, ok := leaf.(*cgotorch.Tensor); ok {
			return t.Strides()[s.Dim]
		}
		stride := int64(1) // Of contiguous memory
		for _, n := range shapeOf(leaf)[s.Dim+1:] {
			stride *= max(n, 1)
		}
		return stride
	}
	return leaf
}

// hold returns why the guards refuse the leaves, or nil. See fits.
func (g *Guards) hold(leaves []any) error {
	if g.Unknown != "" {
		if err := g.asExported(leaves); err != nil {
			return fmt.Errorf("%w, because a guard of the export is of a form that this package does not read (%s)", err, g.Unknown)
		}
		return nil // the guards held at the export
	}
	if len(g.List) == 0 {
		return nil
	}
	read := make([]any, len(g.Sources))
	for i := range g.Sources {
		read[i] = g.Sources[i].read(leaves)
	}
	if passed := g.passed.Load(); passed != nil && slices.Equal(*passed, read) {
		return nil
	}
	values := make(map[string]any, len(read))
	for i := range g.Sources {
		values[g.Sources[i].Text] = read[i]
	}
	for i := range g.List {
		holds, err := g.List[i].Condition.Truth(values)
		if err == nil && holds {
			continue
		}
		why := ""
		if err != nil {
			why = fmt.Sprintf(" (%v)", err)
		}
		return fmt.Errorf("%s: the program was exported for inputs with %s, a guard of its Python code%s",
			g.describe(&g.List[i], values), g.List[i].Text, why)
	}
	g.passed.Store(&read)
	return nil
}

// describe tells what a guard reads, as in "dimension 0 of the input x is 5".
func (g *Guards) describe(of *Guard, values map[string]any) string {
	var parts []string
	for _, name := range of.Condition.Symbols(nil) {
		s := &g.Sources[slices.IndexFunc(g.Sources, func(s source) bool { return s.Text == name })]
		text := "the input " + s.input
		switch s.Of {
		case "size":
			text = fmt.Sprintf("dimension %d of %s", s.Dim, text)
		case "stride":
			text = fmt.Sprintf("stride %d of %s", s.Dim, text)
		case "dim":
			text = "the rank of " + text
		}
		parts = append(parts, fmt.Sprintf("%s is %v", text, values[name]))
	}
	return strings.Join(parts, ", ")
}

// asExported returns why the sizes are not those of the export, or nil.
func (g *Guards) asExported(leaves []any) error {
	for i := range g.Inputs {
		v := &g.Inputs[i]
		given := shapeOf(leaves[i])
		if n, ok := leaves[i].(int64); ok {
			given = []int64{n}
		}
		for d, s := range v.Sizes() {
			if s.Min == s.Max || s.Hint != nil && *s.Hint == given[d] {
				continue
			}
			what := fmt.Sprintf("dimension %d of the input %s is %d", d, v.Name, given[d])
			if !v.Tensor {
				what = fmt.Sprintf("the input %s is %d", v.Name, given[d])
			}
			if s.Hint == nil {
				return fmt.Errorf("%s, and the file does not say which size it had in the export", what)
			}
			return fmt.Errorf("%s, and the program runs with the size of its export alone, %d", what, *s.Hint)
		}
	}
	return nil
}

// Fits returns why the program does not run with the sizes of the leaves, or nil. A leaf is a
// tensor, the shape of a tensor, or a number. Ranks are those of the program's inputs.
func (g *Guards) Fits(leaves []any) error {
	symbols := map[string]any{}
	wrong := func(i int, format string, args ...any) error {
		v := &g.Inputs[i]
		return fmt.Errorf("the input %s is %v%v, want %s%w", v.Name, v.DType, shapeOf(leaves[i]), v, fmt.Errorf(format, args...))
	}
	for i := range g.Inputs {
		v := &g.Inputs[i]
		if n, ok := leaves[i].(int64); ok && v.Bounds != nil {
			if err := v.accept(n, symbols); err != nil {
				return err
			}
		}
		if !v.Tensor {
			continue
		}
		for d, n := range shapeOf(leaves[i]) {
			s := &v.Shape[d]
			if n < s.Min || n > s.Max {
				if s.Min == s.Max {
					return wrong(i, ": dimension %d must be %d, as in the export", d, s.Min)
				}
				return wrong(i, " with %s from %d to %d, as in the export", s.Text, s.Min, s.Max)
			}
			if s.Expr == nil || s.Expr.Of != "symbol" {
				continue
			}
			if before, ok := symbols[s.Expr.Symbol]; ok && before != n {
				return wrong(i, " with %s = %d as before", s.Text, before)
			}
			symbols[s.Expr.Symbol] = n
		}
	}
	for i := range g.Inputs { // formulas come last, because their symbols may stand in later inputs
		for d, s := range g.Inputs[i].Shape {
			if s.Expr == nil || s.Expr.Of == "symbol" {
				continue
			}
			switch want, err := s.Expr.Eval(symbols); {
			case errors.Is(err, expr.ErrUnknown): // a symbol that stands in no input alone
			case err != nil: // no size equals it, as where it is above 64 bits
				return wrong(i, ", whose size %s is %w", s.Text, err)
			case want != any(shapeOf(leaves[i])[d]):
				return wrong(i, " with %s = %v", s.Text, want)
			}
		}
	}
	return g.hold(leaves)
}
