package jsonschema

import (
	"cmp"
	"maps"
	"slices"
)

// link is a schema on the way of references to another one, without a step into a value.
type link struct {
	at    *location
	up    *link
	depth int
}

// conjunction is a list of atoms that must all fit, while choices are left to be made.
type conjunction struct {
	atoms   map[*location]*atom
	choices []choice
}

// conjunctions returns lists of atoms. A value fits all of several schemas if it fits all atoms of
// one list.
func (c *compiler) conjunctions(all []*location) [][]*atom {
	start := &conjunction{atoms: map[*location]*atom{}}
	for _, l := range all {
		c.expand(start, l, nil)
	}
	var lists [][]*atom
	for _, done := range c.chosen(start) {
		lists = append(lists, done.list())
	}
	return lists
}

func (n *conjunction) list() []*atom {
	list := slices.Collect(maps.Values(n.atoms))
	slices.SortFunc(list, func(a, b *atom) int { return cmp.Compare(a.at.id, b.at.id) })
	return list
}

// expand adds a schema, and the schemas that it asks for by $ref and allOf.
func (c *compiler) expand(n *conjunction, l *location, path *link) {
	depth := 0
	if path != nil {
		depth = path.depth + 1
	}
	if depth > mostChain {
		panic(bad(l, "more than %d references lead to one another", mostChain))
	}
	c.spend(1 + depth/8)
	for up := path; up != nil; up = up.up {
		if up.at == l {
			panic(bad(path.at, "it refers to itself without a step into a value, so nothing is said"))
		}
	}
	if _, known := n.atoms[l]; known {
		return
	}
	a := c.read(l)
	if a.trivial && a.never == nil {
		return
	}
	n.atoms[l] = a
	path = &link{l, path, depth}
	for _, other := range a.all {
		c.expand(n, other, path)
	}
	for _, choice := range a.choices {
		choice.path = path
		n.choices = append(n.choices, choice)
	}
}

// chosen returns the conjunctions of all ways to choose a branch of each anyOf and oneOf. It panics
// with a fault if the branches of a oneOf may fit one value.
func (c *compiler) chosen(n *conjunction) []*conjunction {
	c.spend(len(n.atoms))
	if len(n.choices) == 0 {
		return []*conjunction{n}
	}
	first := n.choices[0]
	var all []*conjunction
	var ends []int
	for _, branch := range first.branches {
		c.spend(10 + len(n.atoms) + len(n.choices))
		next := &conjunction{maps.Clone(n.atoms), slices.Clone(n.choices[1:])}
		c.expand(next, branch, first.path)
		all = append(all, c.chosen(next)...)
		ends = append(ends, len(all))
	}
	if first.one {
		c.wantDisjoint(first, all, ends)
	}
	return all
}

// wantDisjoint fails unless no value can fit two branches of a oneOf.
func (c *compiler) wantDisjoint(of choice, all []*conjunction, ends []int) {
	specs := make([]*spec, len(all))
	for i, n := range all {
		specs[i] = merged(n.list(), of.at)
	}
	branch := func(i int) int { b, _ := slices.BinarySearch(ends, i+1); return b }
	for i := range all {
		for k := i + 1; k < len(all); k++ {
			if branch(i) == branch(k) {
				continue
			}
			if c.spend(10); !c.disjoint(specs[i], specs[k], 0) {
				panic(bad(of.at, "the branches %d and %d of oneOf may fit one value: give them different types, or a required property with different constants, or write anyOf",
					branch(i), branch(k)))
			}
		}
	}
}

// disjoint reports whether it is certain that no value fits two specs.
func (c *compiler) disjoint(a, b *spec, depth int) bool {
	c.spend(1 + len(a.atoms) + len(b.atoms))
	if a.why != nil || b.why != nil || a.types&b.types == 0 {
		return true
	}
	if len(a.enums) > 0 || len(b.enums) > 0 {
		if len(a.enums) == 0 {
			a, b = b, a
		}
		return !slices.ContainsFunc(a.enums[0].values, func(v any) bool { return c.fitsSpec(a, v, 0) && c.fitsSpec(b, v, 0) })
	}
	switch common := a.types & b.types; {
	case common == number:
		return a.low != nil && b.high != nil && a.low.value.Cmp(b.high.value) > 0 || b.low != nil && a.high != nil && b.low.value.Cmp(a.high.value) > 0
	case common != objects || depth > 3:
		return false
	}
	_, inA := a.keys()
	_, inB := b.keys()
	maps.Copy(inA, inB)
	for key := range inA {
		if c.disjointSets(a.property(c, key), b.property(c, key), depth+1) {
			return true
		}
	}
	return false
}

// disjointSets is disjoint for the values of a property.
func (c *compiler) disjointSets(a, b []*location, depth int) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	lists := c.conjunctions(b)
	for _, one := range c.conjunctions(a) {
		for _, other := range lists {
			if !c.disjoint(merged(one, c.root), merged(other, c.root), depth) {
				return false
			}
		}
	}
	return true
}
