package gosource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// Note [How source is cut into functions]
//
// The nodes are cut at the borders of Python's modules. The nodes of one module become a method of
// its struct, unless they are few. Values that other nodes make are its parameters, and values that
// later nodes use are its results. Within a method the names depend on the method alone, so that
// equal modules have equal text, and one method serves them all.

// Limits of a function, in nodes or in calls of other functions.
const (
	fewNodes     = 10 // a function with so many nodes is not cut
	mostItems    = 90 // a function with more is cut into parts
	partItems    = 50
	leastForCall = 4
)

// goFunction is a function whose text is written.
type goFunction struct {
	s        *writer
	receiver []string // the names of the modules from Net to that of the receiver
	path     []string // the module whose nodes the function runs; comments are relative to it
	names    map[*goValue]string
	given    map[*goValue]bool // the parameters
	taken    map[string]bool
	lines    []string
	comment  string // the last comment
}

// goMethod is a function that is written.
type goMethod struct {
	name, receiver string
	text           string // without the name and the receiver
	runs           []string
	doc            string // "" means that it tells the modules
}

// source returns the declaration.
func (m *goMethod) source() string {
	doc := m.doc
	if doc == "" {
		const shown = 8
		runs := slices.Compact(m.runs)
		doc = m.name + " runs " + strings.Join(runs[:min(shown, len(runs))], ", ")
		if len(runs) > shown {
			doc += ", …"
		}
		doc += "."
	}
	return fmt.Sprintf("%sfunc (m *%s) %s%s", comment(doc), m.receiver, m.name, m.text)
}

// goItem is a node, or nodes of one module that become a function.
type goItem struct {
	from, to int
	path     []string // of the module; nil for a node
}

func (s *writer) newFunction(receiver, path []string) *goFunction {
	return &goFunction{s: s, receiver: receiver, path: path, names: map[*goValue]string{}, given: map[*goValue]bool{}, taken: map[string]bool{}}
}

func (f *goFunction) line(format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}

// define gives a value a name.
func (f *goFunction) define(v *goValue, base string) string {
	f.names[v] = unique(base, f.taken)
	return f.names[v]
}

// name returns a value as source.
func (f *goFunction) name(v *goValue) string {
	if name, ok := f.names[v]; ok {
		return name
	}
	return "m." + strings.Join(v.fields[len(f.receiver):], ".")
}

// within reports whether a global value is a field of the receiver, or below it.
func within(v *goValue, receiver []string) bool {
	return v.global && len(receiver) <= len(v.modules) && slices.Equal(v.modules[:len(receiver)], receiver)
}

// items cuts nodes into items.
func (s *writer) items(from, to, depth int) []goItem {
	var items []goItem
	for i := from; i < to; {
		key := s.nodes[i].part(depth)
		j := i + 1
		for j < to && key != "" && s.nodes[j].part(depth) == key {
			j++
		}
		switch {
		case to-from > fewNodes && key != "" && i == from && j == to:
			return s.items(from, to, depth+1)
		case to-from > fewNodes && key != "" && j-i >= leastForCall:
			items = append(items, goItem{i, j, s.nodes[i].path[:depth+1]})
		default:
			for k := i; k < j; k++ {
				items = append(items, goItem{k, k + 1, nil})
			}
		}
		i = j
	}
	return items
}

// part returns a part of the path of a node's module, or "".
func (n *goNode) part(depth int) string {
	if depth < len(n.path) {
		return n.path[depth]
	}
	return ""
}

// body writes items. Too many items are cut into parts.
func (f *goFunction) body(items []goItem) error {
	if len(items) > mostItems {
		for part := range slices.Chunk(items, max(partItems, (len(items)+partItems-1)/partItems)) {
			if err := f.call(part, f.path, "part"); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		var err error
		if item.path == nil {
			err = f.node(f.s.nodes[item.from])
		} else {
			err = f.call([]goItem{item}, item.path, "")
		}
		if err != nil {
			return err
		}
		if f.s.freeEarly {
			f.free(item)
		}
	}
	return nil
}

// free closes the function's own tensors that nobody reads behind an item.
func (f *goFunction) free(item goItem) {
	var names []string
	for _, ended := range f.s.ends[item.from:item.to] {
		for _, v := range ended {
			if name, ok := f.names[v]; ok && !f.given[v] {
				names = append(names, name)
			}
		}
	}
	if len(names) > 0 {
		f.s.helpers["free"] = true
		f.line("free(%s)", strings.Join(names, ", "))
	}
}

// node writes a node.
func (f *goFunction) node(n *goNode) error {
	if _, isCall := n.act.(*graph.Call); !isCall {
		// a number says nothing about its place
	} else if comment := f.place(n); comment != "" && comment != f.comment {
		f.line("// %s", comment)
		f.comment = comment
	}
	switch n.act.(type) {
	case *graph.Function:
		f.number(n)
	case *graph.Assertion:
		f.assertion(n)
	case *graph.SizeRead:
		if v := n.args[0].value; v == nil || v.kind != goTensor {
			return f.s.refuse(n.node, "its argument is no tensor")
		}
		f.sizeRead(n)
	default:
		return f.operator(n)
	}
	return nil
}

// place describes the module and the line of Python that a node comes from.
func (f *goFunction) place(n *goNode) string {
	path := n.path
	if len(path) >= len(f.path) && slices.Equal(path[:len(f.path)], f.path) {
		path = path[len(f.path):]
	}
	text := strings.Join(path, ".")
	where, line, _ := strings.Cut(n.node.Where, ": ")
	if line != "" {
		text += map[bool]string{true: ": ", false: ""}[text != ""] + line
	}
	if where != "" {
		text = commentText(text, 90-min(len(where), 60)) + " (" + where + ")"
	}
	return commentText(strings.TrimSpace(text), 95)
}

// call writes a function for items, or finds an equal one, and writes its call.
func (f *goFunction) call(items []goItem, path []string, name string) error {
	from, to := items[0].from, items[len(items)-1].to
	receiver, module := f.s.structOf(path)
	if name == "" {
		name = "forward"
		if len(receiver) < len(path) {
			name = identifier(strings.Join(path[len(receiver):], "_"), false)
		}
	}
	params, results := f.s.border(from, to, receiver)
	g := f.s.newFunction(receiver, path)
	var signature, given, returned []string
	for _, v := range params {
		base := [...]string{goTensor: "in", goInt: "n", goFloat: "f", goBool: "ok"}[v.kind]
		if v.global {
			base = v.base
		}
		signature = append(signature, declare(g.define(v, base), v.kind))
		g.given[v] = true
		given = append(given, f.name(v))
	}
	if name != "part" {
		items = f.s.items(from, to, len(path))
	}
	if err := g.body(items); err != nil {
		return err
	}
	var types []string
	tensors := 0
	for _, v := range results {
		types, returned = append(types, v.kind.source()), append(returned, g.name(v))
		if v.kind == goTensor {
			tensors++
		}
	}
	text := g.text(signature, types, returned, tensors == len(results) && tensors <= 1)
	method := f.s.method(module.typeName, name, text)
	method.runs = append(method.runs, cmp.Or(strings.Join(path, "."), "a part of the model"))
	target := "m"
	if at := f.s.root.fields(receiver)[len(f.receiver):]; len(at) > 0 {
		target += "." + strings.Join(at, ".")
	}
	statement := fmt.Sprintf("%s.%s(%s)", target, method.name, strings.Join(append([]string{"x"}, given...), ", "))
	var names []string
	for _, v := range results {
		names = append(names, f.define(v, v.base))
	}
	if f.comment = ""; len(names) > 0 {
		statement = strings.Join(names, ", ") + " := " + statement
	}
	f.line("%s", statement)
	return nil
}

// method returns the method of a receiver with this text. It makes one with a name like `name`, if
// there is none.
func (s *writer) method(receiver, name, text string) *goMethod {
	method := s.methods[receiver+text]
	if method == nil {
		method = &goMethod{receiver: receiver, text: text}
		for method.name == "" || reserved(method.name) {
			method.name = strings.TrimPrefix(unique(receiver+"."+name, s.taken), receiver+".")
		}
		s.methods[receiver+text] = method
		s.functions = append(s.functions, method)
	}
	return method
}

// text returns the parameters, the results and the body of a function. If `tidy` is set, the
// function frees all its tensors but its result. It then has no result, or one tensor.
func (f *goFunction) text(params, types, returned []string, tidy bool) string {
	result := joinVariables(types)
	if len(types) > 1 {
		result = "(" + result + ")"
	}
	values := strings.Join(returned, ", ")
	lines := f.lines
	if n := len(lines) - 1; n >= 0 && len(types) == 1 {
		if call, ok := strings.CutPrefix(lines[n], values+" := "); ok { // the last statement makes the result
			lines, values = lines[:n], call
		}
	}
	body := strings.Join(lines, "\n")
	switch {
	case tidy && len(types) == 1:
		body = fmt.Sprintf("return x.Tidy(func() *cgotorch.Tensor {\n%s\nreturn %s\n})", body, values)
	case tidy:
		body = fmt.Sprintf("x.Tidy(func() *cgotorch.Tensor {\n%s\nreturn nil\n})", body)
	default:
		body += "\nreturn " + values
	}
	return fmt.Sprintf("(%s) %s {\n%s\n}\n", joinVariables(append([]string{"x *cgotorch.Exec"}, params...)), result, body)
}

func declare(name string, kind goKind) string { return name + " " + kind.source() }

// joinVariables joins variables. Neighbours of one type share the type, as in "a, b int64".
func joinVariables(list []string) string {
	var b strings.Builder
	for i, v := range list {
		name, of, named := strings.Cut(v, " ")
		b.WriteString(name)
		if last := i == len(list)-1; named && (last || !strings.HasSuffix(list[i+1], " "+of)) {
			b.WriteString(" " + of)
		}
		if i < len(list)-1 {
			b.WriteString(", ")
		}
	}
	return b.String()
}

// structOf returns the deepest module of a path that has a struct.
func (s *writer) structOf(path []string) ([]string, *goModule) {
	m := s.root
	for i, part := range path {
		part, _, _ = strings.Cut(part, "@")
		c := m.child(part)
		if c == nil {
			return path[:i], m
		}
		m = c
	}
	return path, m
}

// fields returns the fields that lead to the struct of a path.
func (m *goModule) fields(path []string) []string {
	var fields []string
	for _, part := range path {
		part, _, _ = strings.Cut(part, "@")
		m = m.child(part)
		fields = append(fields, m.field)
	}
	return fields
}

// border returns the parameters and the results of a function for some nodes.
func (s *writer) border(from, to int, receiver []string) (params, results []*goValue) {
	seen := map[*goValue]bool{}
	var globals []*goValue
	for i := from; i < to; i++ {
		eachValue(s.nodes[i].args, func(v *goValue) {
			switch {
			case seen[v]:
			case v.global && !within(v, receiver):
				globals = append(globals, v)
			case !v.global && v.made < from:
				params = append(params, v)
			}
			seen[v] = true
		})
		for _, v := range s.nodes[i].outs {
			if v.used && v.last >= to {
				results = append(results, v)
			}
		}
	}
	return append(params, globals...), results
}

// comment returns text as a comment of lines of at most 100 characters.
func comment(text string) string {
	var b strings.Builder
	line := "//"
	for _, word := range strings.Fields(commentText(text, 4000)) {
		if len(line)+1+len(word) > 100 && line != "//" {
			b.WriteString(line + "\n")
			line = "//"
		}
		line += " " + word
	}
	return b.String() + cmp.Or(line, "//") + "\n"
}
