package jinja

import "strings"

// signal tells how a statement ended.
type signal int

const (
	goesOn signal = iota
	breaks
	continues
)

type statement interface{ exec(*run, *scope) signal }

func (r *run) block(body []statement, s *scope) signal {
	r.enter()
	defer r.leave()
	for _, n := range body {
		r.spend(1)
		if sig := n.exec(r, s); sig != goesOn {
			return sig
		}
	}
	return goesOn
}

// capture returns the text that statements write.
func (r *run) capture(body []statement, s *scope) (string, signal) {
	out := r.out
	r.out = &strings.Builder{}
	sig := r.block(body, s)
	text := r.out.String()
	r.out = out
	return text, sig
}

type textNode string

func (n textNode) exec(r *run, _ *scope) signal {
	r.write(string(n))
	return goesOn
}

type printNode struct {
	line  int
	value expression
}

func (n *printNode) exec(r *run, s *scope) signal {
	v := r.eval(n.value, s)
	r.line = n.line
	r.write(r.str(v))
	return goesOn
}

type jumpNode signal

func (n jumpNode) exec(*run, *scope) signal { return signal(n) }

type ifNode struct {
	line            int
	test            expression
	then, otherwise []statement
}

func (n *ifNode) exec(r *run, s *scope) signal {
	if truth(r.eval(n.test, s)) {
		return r.block(n.then, s)
	}
	return r.block(n.otherwise, s)
}

type setNode struct {
	line          int
	target, value expression
}

func (n *setNode) exec(r *run, s *scope) signal {
	r.assign(n.target, r.eval(n.value, s), s)
	return goesOn
}

// assign stores a value in a name, in an attribute of a namespace, or its elements in several.
func (r *run) assign(target expression, v any, s *scope) {
	switch t := target.(type) {
	case *nameNode:
		s.set(r, t.name, v)
	case *attribute:
		r.line = t.line
		space, ok := r.eval(t.of, s).(*namespace)
		if !ok {
			r.fail("cannot assign attribute on non-namespace object")
		}
		space.set(r, t.name, v)
	case *listNode:
		r.line = t.line
		items := r.iterate(v)
		if len(items) != len(t.items) {
			r.fail("there are %d values to assign to %d names", len(items), len(t.items))
		}
		for i, item := range items {
			r.assign(t.items[i], item, s)
		}
	}
}

type setBlock struct {
	line   int
	target expression
	filter expression // nil, or filters of nil
	body   []statement
}

func (n *setBlock) exec(r *run, s *scope) signal {
	text, sig := r.capture(n.body, s.child())
	var v any = text
	if n.filter != nil {
		v = r.eval(n.filter, s.with(v))
	}
	r.assign(n.target, v, s)
	return sig
}

type filterBlock struct {
	line   int
	filter expression
	body   []statement
}

func (n *filterBlock) exec(r *run, s *scope) signal {
	text, sig := r.capture(n.body, s.child())
	r.write(r.str(r.eval(n.filter, s.with(text))))
	return sig
}

type withNode struct {
	line            int
	targets, values []expression
	body            []statement
}

func (n *withNode) exec(r *run, s *scope) signal {
	inner := s.child()
	for i, target := range n.targets {
		r.assign(target, r.eval(n.values[i], s), inner)
	}
	return r.block(n.body, inner)
}

type forNode struct {
	line            int
	target          expression
	over            expression
	test            expression // nil for all elements
	body, otherwise []statement
}

func (n *forNode) exec(r *run, s *scope) signal {
	v := r.eval(n.over, s)
	r.line = n.line
	items := r.iterate(v)
	if n.test != nil {
		var chosen []any
		for _, item := range items {
			inner := s.child()
			r.assign(n.target, item, inner)
			if truth(r.eval(n.test, inner)) {
				chosen = append(chosen, item)
			}
		}
		items = chosen
	}
	if len(items) == 0 {
		return r.block(n.otherwise, s.child())
	}
	l := &loop{items: items}
	for i, item := range items {
		r.use(3 * sizeNode)
		l.i = i
		inner := s.child()
		inner.set(r, "loop", l)
		r.assign(n.target, item, inner)
		if r.block(n.body, inner) == breaks {
			break
		}
	}
	return goesOn
}

// loop is the variable of this name in a for.
type loop struct {
	items   []any
	i       int
	changed any // the arguments of the last loop.changed, as a list
}

func (l *loop) attribute(r *run, name string) any {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1)
	case "index0":
		return int64(l.i)
	case "revindex":
		return int64(n - l.i)
	case "revindex0":
		return int64(n - l.i - 1)
	case "first":
		return l.i == 0
	case "last":
		return l.i == n-1
	case "length":
		return int64(n)
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem", "nextitem":
		i := l.i + 1
		if name == "previtem" {
			i = l.i - 1
		}
		if i < 0 || i >= n {
			return &undefined{reason: "there is no " + map[string]string{"previtem": "previous", "nextitem": "next"}[name] + " item"}
		}
		return l.items[i]
	case "cycle":
		return &function{name, func(r *run, a *arguments) any {
			if len(a.items) == 0 {
				r.fail("loop.cycle has nothing to cycle through")
			}
			return a.items[l.i%len(a.items)]
		}}
	case "changed":
		return &function{name, func(r *run, a *arguments) any {
			before := l.changed
			l.changed = &list{items: a.items}
			return before == nil || !r.equal(before, l.changed)
		}}
	}
	return &undefined{of: l, name: name}
}

// macroNode is a macro, or the body of a call block.
type macroNode struct {
	line       int
	name       string
	parameters []string
	defaults   []expression // of the last parameters
	body       []statement
}

func (n *macroNode) exec(r *run, s *scope) signal {
	r.assign(&nameNode{n.line, n.name}, n.bind(s), s)
	return goesOn
}

// bind returns the macro as a function with the variables around it.
func (n *macroNode) bind(s *scope) *function {
	return &function{n.name, func(r *run, a *arguments) any {
		r.enter()
		defer r.leave()
		r.use(sizeNode * (2 + len(n.parameters)))
		inner := s.child()
		if caller, ok := a.named("caller"); ok {
			inner.set(r, "caller", caller)
		}
		if len(a.items) > len(n.parameters) {
			r.fail("macro %q takes not more than %d argument(s)", n.name, len(n.parameters))
		}
		for i, parameter := range n.parameters {
			given, ok := a.named(parameter)
			first := len(n.parameters) - len(n.defaults)
			switch {
			case i < len(a.items) && ok:
				r.fail("macro %q got the argument %q twice", n.name, parameter)
			case i < len(a.items):
				given = a.items[i]
			case !ok && i >= first:
				given = r.eval(n.defaults[i-first], inner)
			case !ok:
				given = &undefined{reason: "parameter '" + parameter + "' was not provided"}
			}
			inner.set(r, parameter, given)
		}
		a.refuse(r, n.name, append([]string{"caller"}, n.parameters...))
		text, _ := r.capture(n.body, inner)
		return text
	}}
}

// callBlock calls a macro with the block's body as its caller.
type callBlock struct {
	call *callNode
	body *macroNode
}

func (n *callBlock) exec(r *run, s *scope) signal {
	r.line = n.call.line
	a := r.arguments(n.call.arguments, s)
	a.names = append(a.names, "caller")
	a.values = append(a.values, n.body.bind(s))
	r.write(r.str(r.call(r.eval(n.call.of, s), a)))
	return goesOn
}
