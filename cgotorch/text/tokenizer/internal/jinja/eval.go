package jinja

import "strings"

type expression interface{ eval(*run, *scope) any }

func (r *run) eval(n expression, s *scope) any {
	r.spend(1)
	r.enter()
	v := n.eval(r, s)
	r.leave()
	return v
}

type constant struct{ value any }

func (n constant) eval(*run, *scope) any { return n.value }

type nameNode struct {
	line int
	name string
}

func (n *nameNode) eval(r *run, s *scope) any {
	r.line = n.line
	if v, ok := s.get(r, n.name); ok {
		return v
	}
	if f := global(n.name); f != nil {
		return f
	}
	return &undefined{name: n.name}
}

type listNode struct {
	line  int
	items []expression
	kind  listKind
}

func (n *listNode) eval(r *run, s *scope) any {
	items := make([]any, len(n.items))
	for i, item := range n.items {
		items[i] = r.eval(item, s)
	}
	return r.list(items, n.kind)
}

type dictNode struct {
	line         int
	keys, values []expression
}

func (n *dictNode) eval(r *run, s *scope) any {
	d := NewDict()
	for i := range n.keys {
		k := r.eval(n.keys[i], s)
		r.use(sizeNode)
		d.set(r, k, r.eval(n.values[i], s))
	}
	return d
}

type attribute struct {
	line int
	of   expression
	name string
}

func (n *attribute) eval(r *run, s *scope) any {
	v := r.eval(n.of, s)
	r.line = n.line
	return r.attribute(v, n.name)
}

type item struct {
	line  int
	of    expression
	index expression
}

func (n *item) eval(r *run, s *scope) any {
	v := r.eval(n.of, s)
	i := r.eval(n.index, s)
	r.line = n.line
	return r.item(v, i)
}

type slice struct {
	line  int
	of    expression
	parts [3]expression
}

func (n *slice) eval(r *run, s *scope) any {
	v := r.eval(n.of, s)
	var parts [3]any
	for i, p := range n.parts {
		if p != nil {
			parts[i] = r.eval(p, s)
		}
	}
	r.line = n.line
	switch v := v.(type) {
	case string, Markup:
		text, _ := asText(v)
		runes := r.runes(text)
		chosen := r.slice(len(runes), parts)
		var b strings.Builder
		for _, i := range chosen {
			b.WriteRune(runes[i])
		}
		return same(v, b.String())
	case *list:
		if v.kind.indexed() {
			chosen := r.slice(len(v.items), parts)
			items := make([]any, len(chosen))
			for i, j := range chosen {
				items[i] = v.items[j]
			}
			return r.list(items, v.kind)
		}
	case *undefined:
		v.fail(r)
	}
	r.fail("'%s' object is not subscriptable", typeName(v))
	return nil
}

// slice returns the indices that Python's slice of a sequence of length n takes.
func (r *run) slice(n int, parts [3]any) []int {
	number := func(v any, otherwise int) int {
		if v == nil {
			return otherwise
		}
		i, ok := whole(v)
		if !ok {
			r.fail("slice indices must be integers or None, and this is a %s", typeName(v))
		}
		return int(max(min(i, int64(n)+1), -int64(n)-1))
	}
	step := number(parts[2], 1)
	if step == 0 {
		r.fail("slice step cannot be zero")
	}
	clamp := func(i, low, high int) int {
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	var indices []int
	if step > 0 {
		for i, to := clamp(number(parts[0], 0), 0, n), clamp(number(parts[1], n), 0, n); i < to; i += step {
			indices = append(indices, i)
		}
	} else {
		to := -1
		if parts[1] != nil {
			to = clamp(number(parts[1], 0), -1, n-1)
		}
		for i := clamp(number(parts[0], n-1), -1, n-1); i > to; i += step {
			indices = append(indices, i)
		}
	}
	r.spend(len(indices) / 8)
	r.use(sizeValue * len(indices))
	return indices
}

type argumentNodes struct {
	items       []expression
	names       []string
	named       []expression
	star, stars expression // behind * and **, or nil
}

func (r *run) arguments(n argumentNodes, s *scope) *arguments {
	a := &arguments{names: n.names[:len(n.names):len(n.names)]}
	for _, e := range n.items {
		a.items = append(a.items, r.eval(e, s))
	}
	for _, e := range n.named {
		a.values = append(a.values, r.eval(e, s))
	}
	if n.star != nil {
		a.items = append(a.items, r.iterate(r.eval(n.star, s))...)
	}
	if n.stars != nil {
		more, ok := r.eval(n.stars, s).(*Dict)
		if !ok {
			r.fail("argument after ** must be a mapping")
		}
		for i, k := range more.keys {
			a.names, a.values = append(a.names, r.text(k, "")), append(a.values, more.values[i])
		}
	}
	r.use(sizeValue * (len(a.items) + len(a.values)))
	return a
}

type callNode struct {
	line      int
	of        expression
	arguments argumentNodes
}

func (n *callNode) eval(r *run, s *scope) any {
	f := r.eval(n.of, s)
	a := r.arguments(n.arguments, s)
	r.line = n.line
	return r.call(f, a)
}

func (r *run) call(f any, a *arguments) any {
	switch f := f.(type) {
	case *function:
		return f.call(r, a)
	case *undefined:
		f.fail(r)
	}
	r.fail("'%s' object is not callable", typeName(f))
	return nil
}

type filterNode struct {
	line      int
	of        expression // nil for the text of a block
	name      string
	arguments argumentNodes
}

func (n *filterNode) eval(r *run, s *scope) any {
	var v any
	if n.of == nil {
		v, _ = s.get(r, filtered)
	} else {
		v = r.eval(n.of, s)
	}
	a := r.arguments(n.arguments, s)
	r.line = n.line
	return r.filter(n.name, v, a)
}

type testNode struct {
	line      int
	of        expression
	name      string
	arguments argumentNodes
}

func (n *testNode) eval(r *run, s *scope) any {
	v := r.eval(n.of, s)
	a := r.arguments(n.arguments, s)
	r.line = n.line
	return r.test(n.name, v, a)
}

type condition struct {
	line                  int
	test, then, otherwise expression
}

func (n *condition) eval(r *run, s *scope) any {
	if truth(r.eval(n.test, s)) {
		return r.eval(n.then, s)
	}
	if n.otherwise == nil {
		return &undefined{reason: "the inline if-expression evaluated to false and no else section was defined"}
	}
	return r.eval(n.otherwise, s)
}

type logic struct {
	line        int
	or          bool
	left, right expression
}

func (n *logic) eval(r *run, s *scope) any {
	if v := r.eval(n.left, s); truth(v) == n.or {
		return v
	}
	return r.eval(n.right, s)
}

type unary struct {
	line int
	op   string
	of   expression
}

func (n *unary) eval(r *run, s *scope) any {
	v := r.eval(n.of, s)
	r.line = n.line
	if n.op == "not" {
		return !truth(v)
	}
	if n.op == "-" {
		if f, ok := v.(float64); ok {
			return -f
		}
		return r.binary("-", int64(0), v)
	}
	return r.binary("+", int64(0), v)
}

type binary struct {
	line        int
	op          string
	left, right expression
}

func (n *binary) eval(r *run, s *scope) any {
	a, b := r.eval(n.left, s), r.eval(n.right, s)
	r.line = n.line
	return r.binary(n.op, a, b)
}

type concat struct {
	line  int
	items []expression
}

func (n *concat) eval(r *run, s *scope) any {
	var b strings.Builder
	for _, item := range n.items {
		v := r.eval(item, s)
		r.line = n.line
		part := r.str(v)
		r.use(len(part))
		b.WriteString(part)
	}
	return b.String()
}

type comparison struct {
	line  int
	first expression
	ops   []string
	rest  []expression
}

func (n *comparison) eval(r *run, s *scope) any {
	a := r.eval(n.first, s)
	for i, op := range n.ops {
		b := r.eval(n.rest[i], s)
		r.line = n.line
		if !r.compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}
