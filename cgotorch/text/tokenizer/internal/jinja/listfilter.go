package jinja

import (
	"math"
	"slices"
	"strings"
)

// listFilter has the filters that take all elements of a value.
func (r *run) listFilter(name string, v any, a *arguments) (any, bool) {
	switch name {
	case "list":
		a.take(r, name)
		return r.list(slices.Clone(r.iterate(v)), plainList), true
	case "first", "last":
		a.take(r, name)
		return r.atEnd(name, v), true
	case "reverse":
		a.take(r, name)
		if s, ok := asText(v); ok {
			runes := r.runes(s)
			slices.Reverse(runes)
			return string(runes), true
		}
		l, isList := v.(*list)
		reversed := slices.Clone(r.iterate(v))
		slices.Reverse(reversed)
		if isList && l.kind == generator {
			return r.list(reversed, plainList), true
		}
		return r.lazy(func() []any { return reversed }), true
	case "items":
		a.take(r, name)
		return r.lazy(func() []any {
			d, ok := v.(*Dict)
			if _, no := v.(*undefined); !ok && !no {
				r.fail("Can only get item pairs from a mapping.")
			} else if no {
				return nil
			}
			return r.pairs(d)
		}), true
	case "batch":
		return r.batch(v, a), true
	}
	return nil, false
}

// orderFilter has the filters that compare elements, and sum.
func (r *run) orderFilter(name string, v any, a *arguments) (any, bool) {
	switch name {
	case "dictsort":
		o := a.take(r, name, "case_sensitive", "by", "reverse")
		d, ok := v.(*Dict)
		if !ok {
			r.fail("'%s' object has no attribute 'items'", typeName(v))
		}
		by := int64(0)
		if r.text(o[1], "key") == "value" {
			by = 1
		}
		return r.sorted(r.pairs(d), []any{by}, given(o[2]), given(o[0])), true
	case "sort":
		o := a.take(r, name, "reverse", "case_sensitive", "attribute")
		paths := []any{o[2]}
		if text, ok := o[2].(string); ok {
			paths = nil
			for _, path := range strings.Split(text, ",") {
				paths = append(paths, path)
			}
		}
		return r.sorted(slices.Clone(r.iterate(v)), paths, given(o[0]), given(o[1])), true
	case "unique":
		o := a.take(r, name, "case_sensitive", "attribute")
		return r.unique(v, o[1], given(o[0])), true
	case "min", "max":
		o := a.take(r, name, "case_sensitive", "attribute")
		return r.most(r.iterate(v), o[1], name == "max", given(o[0])), true
	case "sum":
		o := a.take(r, name, "attribute", "start")
		sum := o[1]
		if sum == (absent{}) {
			sum = int64(0)
		}
		for _, item := range r.iterate(v) {
			r.spend(1)
			sum = r.binary("+", sum, r.path(item, o[0]))
		}
		return sum, true
	}
	return nil, false
}

func (r *run) atEnd(name string, v any) any {
	if d, ok := v.(*Dict); ok && name == "last" {
		v = &list{items: d.keys}
	}
	if l, ok := v.(*list); ok && l.kind == generator && name == "last" {
		r.fail("'generator' object is not reversible")
	}
	all := r.iterate(v)
	if len(all) == 0 {
		return &undefined{reason: "No " + name + " item, sequence was empty."}
	}
	if name == "first" {
		return all[0]
	}
	return all[len(all)-1]
}

func (r *run) pairs(d *Dict) []any {
	pairs := make([]any, len(d.keys))
	for i, k := range d.keys {
		pairs[i] = r.list([]any{k, d.values[i]}, tuple)
	}
	return pairs
}

// folded returns a text in small letters, and other values as they are.
func (r *run) folded(v any, caseSensitive bool) any {
	if s, ok := asText(v); ok && !caseSensitive {
		r.use(len(s))
		return lower(s)
	}
	return v
}

func (r *run) sorts(a, b any) int {
	r.spend(1)
	order, ok := r.order(a, b)
	if !ok {
		r.fail("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
	}
	return order
}

// sorted sorts items by attributes. It changes the slice.
func (r *run) sorted(all []any, paths []any, reverse, caseSensitive bool) *list {
	type entry struct{ key, item any }
	entries := make([]entry, len(all))
	for i, item := range all {
		key := make([]any, len(paths))
		for j, path := range paths {
			key[j] = r.folded(r.path(item, path), caseSensitive)
		}
		entries[i] = entry{r.list(key, plainList), item}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		if reverse {
			return r.sorts(b.key, a.key)
		}
		return r.sorts(a.key, b.key)
	})
	for i, e := range entries {
		all[i] = e.item
	}
	return r.list(all, plainList)
}

// most returns the first of the largest or the smallest items by an attribute.
func (r *run) most(all []any, path any, largest, caseSensitive bool) any {
	if len(all) == 0 {
		return &undefined{reason: "No aggregated item, sequence was empty."}
	}
	found, best := all[0], r.folded(r.path(all[0], path), caseSensitive)
	for _, item := range all[1:] {
		key := r.folded(r.path(item, path), caseSensitive)
		if order := r.sorts(key, best); order < 0 && !largest || order > 0 && largest {
			found, best = item, key
		}
	}
	return found
}

func (r *run) unique(v, attribute any, caseSensitive bool) any {
	return r.lazy(func() []any {
		seen := NewDict()
		var chosen []any
		for _, item := range r.iterate(v) {
			key := r.folded(r.path(item, attribute), caseSensitive)
			if _, ok := seen.get(r.key(key)); !ok {
				r.use(sizeNode)
				seen.set(r, key, nil)
				chosen = append(chosen, item)
			}
		}
		return chosen
	})
}

func (r *run) batch(v any, a *arguments) any {
	o := a.take(r, "batch", "linecount", "fill_with")
	n, isNumber := whole(o[0])
	if n == 0 && isNumber || o[0] == (absent{}) {
		r.fail("a batch wants at least 1 element")
	}
	if n < 0 || !isNumber {
		n = math.MaxInt32 // Python looks for a batch of just this length
	}
	return r.lazy(func() []any {
		var batches []any
		for chunk := range slices.Chunk(r.iterate(v), int(n)) {
			chunk = slices.Clone(chunk)
			if fill := o[1]; fill != (absent{}) && fill != nil && len(chunk) < int(n) && isNumber {
				r.useTimes(sizeValue, n)
				chunk = append(chunk, slices.Repeat([]any{fill}, int(n)-len(chunk))...)
			}
			batches = append(batches, r.list(chunk, plainList))
		}
		return batches
	})
}

// chooseFilter has map, select, selectattr, reject and rejectattr.
func (r *run) chooseFilter(name string, v any, a *arguments) (any, bool) {
	switch name {
	case "map":
		return r.lazy(func() []any { return r.mapped(r.elements(v), a) }), true
	case "select", "selectattr", "reject", "rejectattr":
		return r.lazy(func() []any { return r.chosen(name, r.elements(v), a) }), true
	}
	return nil, false
}

// elements is iterate for the filters that take None for an empty list.
func (r *run) elements(v any) []any {
	if !truth(v) {
		return nil
	}
	all := r.iterate(v)
	r.use(sizeValue * len(all))
	r.spend(len(all))
	return all
}

func (r *run) chosen(name string, all []any, a *arguments) []any {
	rest := *a
	var attribute any = absent{}
	if name == "selectattr" || name == "rejectattr" {
		if len(rest.items) == 0 {
			r.fail("Missing parameter for attribute name")
		}
		attribute, rest.items = rest.items[0], rest.items[1:]
	}
	test := ""
	if len(rest.items) > 0 {
		test, rest.items = r.text(rest.items[0], ""), rest.items[1:]
	}
	var chosen []any
	for _, item := range all {
		value := r.path(item, attribute)
		holds := truth(value)
		if test != "" {
			holds = r.test(test, value, &rest)
		}
		if holds == (name[0] == 's') {
			chosen = append(chosen, item)
		}
	}
	return chosen
}

func (r *run) mapped(all []any, a *arguments) []any {
	all = slices.Clone(all)
	if len(a.items) > 0 {
		filter := r.text(a.items[0], "")
		rest := arguments{a.items[1:], a.names, a.values}
		for i, item := range all {
			all[i] = r.filter(filter, item, &rest)
		}
		return all
	}
	o := a.take(r, "map", "attribute", "default")
	if o[0] == (absent{}) {
		r.fail("map requires a filter argument")
	}
	for i, item := range all {
		all[i] = r.path(item, o[0])
		if _, no := all[i].(*undefined); no && o[1] != (absent{}) && o[1] != nil {
			all[i] = o[1]
		}
	}
	return all
}
