package jinja

import (
	"cmp"
	"html"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// binary returns a op b for + - * / // % **.
func (r *run) binary(op string, a, b any) any {
	r.defined(a)
	if _, isText := asText(a); !isText || op != "%" {
		r.defined(b)
	}
	if v, ok := r.sequences(op, a, b); ok {
		return v
	}
	x, isWhole := whole(a)
	y, alsoWhole := whole(b)
	if isWhole && alsoWhole {
		return r.integers(op, x, y)
	}
	f, isReal := real(a)
	g, alsoReal := real(b)
	_, large := a.(Integer)
	_, alsoLarge := b.(Integer)
	if !isReal || !alsoReal {
		if _, ok := asText(a); ok && op == "+" {
			r.fail("can only concatenate str (not \"%s\") to str", typeName(b))
		}
		r.fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	}
	if large || alsoLarge {
		r.fail("numbers beyond 64 bits cannot be calculated with")
	}
	return r.reals(op, f, g)
}

// sequences is binary for texts and lists.
func (r *run) sequences(op string, a, b any) (any, bool) {
	s, isText := asText(a)
	t, alsoText := asText(b)
	_, alsoList := b.(*list)
	switch l, isList := a.(*list); {
	case op == "+" && isText && alsoText:
		_, marked := a.(Markup)
		_, alsoMarked := b.(Markup)
		if marked || alsoMarked {
			s, t = string(r.escape(a)), string(r.escape(b))
		}
		r.use(len(s) + len(t))
		if marked || alsoMarked {
			return Markup(s + t), true
		}
		return s + t, true
	case op == "%" && isText:
		return r.percent(s, b), true
	case op == "*" && (alsoText || alsoList) && !isText && !isList:
		return r.sequences(op, b, a)
	case op == "*" && isText:
		if n, ok := whole(b); ok {
			n = max(n, 0)
			r.useTimes(len(s), n)
			return same(a, strings.Repeat(s, int(n))), true
		}
	case op == "+" && isList:
		if m, ok := b.(*list); ok && l.kind == m.kind && l.kind <= tuple {
			return r.list(slices.Concat(l.items, m.items), l.kind), true
		}
	case op == "*" && isList && l.kind <= tuple:
		if n, ok := whole(b); ok {
			n = max(n, 0)
			r.useTimes(sizeValue*len(l.items), n)
			return r.list(slices.Repeat(l.items, int(n)), l.kind), true
		}
	}
	return nil, false
}

// useTimes is use(size * n), which may overflow.
func (r *run) useTimes(size int, n int64) {
	if size > 0 && n > int64(maxBytes/size) {
		r.use(maxBytes + 1)
	}
	r.use(size * int(n))
}

// same returns a text of the type that `like` has.
func same(like any, s string) any {
	if _, ok := like.(Markup); ok {
		return Markup(s)
	}
	return s
}

// escape returns a text for HTML.
func (r *run) escape(v any) Markup {
	if m, ok := v.(Markup); ok {
		return m
	}
	s, _ := asText(v)
	r.use(2 * len(s))
	return Markup(html.EscapeString(s))
}

func (r *run) integers(op string, x, y int64) any {
	var v int64
	ok := true
	switch op {
	case "+":
		v = x + y
		ok = (v > x) == (y > 0)
	case "-":
		v = x - y
		ok = (v < x) == (y > 0)
	case "*":
		high, low := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y)))
		v, ok = x*y, high == 0 && low <= math.MaxInt64
	case "//", "%":
		if y == 0 {
			r.fail("integer division or modulo by zero")
		}
		v = x / y
		if rest := x % y; rest != 0 && (rest < 0) != (y < 0) {
			v--
		}
		if op == "%" {
			v = x - v*y
		}
	case "**":
		if y < 0 {
			return r.reals(op, float64(x), float64(y))
		}
		v = 1
		for i := int64(0); i < y && ok && x != 1 && x != 0; i++ {
			high, low := bits.Mul64(uint64(max(v, -v)), uint64(max(x, -x)))
			v, ok = v*x, high == 0 && low <= math.MaxInt64
			r.spend(1)
		}
		if x == 0 && y > 0 {
			v = 0
		}
	default:
		return r.reals(op, float64(x), float64(y))
	}
	if !ok {
		r.fail("the result of %d %s %d has more than 64 bits", x, op, y)
	}
	return v
}

func (r *run) reals(op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		return math.Pow(x, y)
	}
	if y == 0 {
		r.fail("division by zero")
	}
	switch op {
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	}
	rest := math.Mod(x, y)
	if rest != 0 && (rest < 0) != (y < 0) {
		rest += y
	}
	if rest == 0 {
		return math.Copysign(0, y)
	}
	return rest
}

// compare returns a op b for == != < <= > >=, in, and not in.
func (r *run) compare(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	order, comparable := r.order(a, b)
	if !comparable {
		r.fail("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	}
	switch op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

// order compares two values. ok is false if Python cannot.
func (r *run) order(a, b any) (order int, ok bool) {
	r.enter()
	defer r.leave()
	r.defined(a)
	r.defined(b)
	s, isText := asText(a)
	t, alsoText := asText(b)
	if isText && alsoText {
		r.spend(min(len(s), len(t)) / 64)
		return cmp.Compare(s, t), true
	}
	x, isWhole := whole(a)
	y, alsoWhole := whole(b)
	if isWhole && alsoWhole {
		return cmp.Compare(x, y), true
	}
	f, isReal := real(a)
	g, alsoReal := real(b)
	if isReal && alsoReal {
		return cmp.Compare(f, g), true
	}
	l, isList := a.(*list)
	m, alsoList := b.(*list)
	if !isList || !alsoList || l.kind != m.kind || l.kind > tuple {
		return 0, false
	}
	for i := range min(len(l.items), len(m.items)) {
		r.spend(1)
		if !r.equal(l.items[i], m.items[i]) {
			return r.order(l.items[i], m.items[i])
		}
	}
	return cmp.Compare(len(l.items), len(m.items)), true
}

func (r *run) equal(a, b any) bool {
	r.enter()
	defer r.leave()
	r.spend(1)
	switch x := a.(type) {
	case *list:
		y, ok := b.(*list)
		if !ok || x.kind != y.kind || x.kind > numbers {
			return ok && x == y
		}
		return slices.EqualFunc(x.items, y.items, r.equal)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, k := range x.keys {
			if v, ok := y.get(k); !ok || !r.equal(x.values[i], v) {
				return false
			}
		}
		return true
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case Integer:
		return a == b
	}
	s, isText := asText(a)
	t, alsoText := asText(b)
	if isText || alsoText {
		r.spend(min(len(s), len(t)) / 64)
		return isText && alsoText && s == t
	}
	f, isReal := real(a)
	g, alsoReal := real(b)
	if isReal && alsoReal {
		return f == g
	}
	return a == b
}

// hashable fails for what Python cannot look up in a dict.
func (r *run) hashable(v any) {
	l, isList := v.(*list)
	if _, isDict := v.(*Dict); isDict || isList && l.kind == plainList {
		r.fail("unhashable type: '%s'", typeName(v))
	}
}

// contains reports whether v is in a container.
func (r *run) contains(container, v any) bool {
	switch c := container.(type) {
	case string, Markup:
		s, _ := asText(c)
		part, ok := asText(v)
		if !ok {
			r.fail("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		r.spend(len(s) / 64)
		return strings.Contains(s, part)
	case *Dict:
		r.hashable(v)
		_, ok := c.get(r.key(v))
		return ok
	case *list, *undefined:
		return slices.ContainsFunc(r.iterate(c), func(item any) bool { return r.equal(item, v) })
	}
	r.fail("argument of type '%s' is not iterable", typeName(container))
	return false
}
