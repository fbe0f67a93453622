package jsonschema

// spec is what several atoms say together: the values that fit all of them.
type spec struct {
	atoms     []*atom
	why       *fault // no value fits
	types     types
	integer   bool
	enums     []enum
	low, high *bound
	multiple  []multiple
	patterns  []pattern
	counts
}

// merged returns what atoms say together. Faults of limits that no atom has are told of `at`.
func merged(atoms []*atom, at *location) *spec {
	s := &spec{atoms: atoms, types: anyType, counts: anyCounts(at)}
	more := func(to *limit, l limit) {
		if l.n > to.n {
			*to = l
		}
	}
	less := func(to *limit, l limit) {
		if l.n < to.n {
			*to = l
		}
	}
	for _, a := range atoms {
		if a.never != nil && s.why == nil {
			s.why = a.never
		}
		if s.types &= a.types; s.types == 0 && s.why == nil {
			s.why = bad(a.at, "no type fits all that is asked")
		}
		s.integer = s.integer || a.integer
		s.enums, s.multiple, s.patterns = append(s.enums, a.enums...), append(s.multiple, a.multiple...), append(s.patterns, a.patterns...)
		for i := range a.lows {
			if b := &a.lows[i]; s.low == nil || b.value.Cmp(s.low.value) > 0 || b.value.Cmp(s.low.value) == 0 && b.strict {
				s.low = b
			}
		}
		for i := range a.highs {
			if b := &a.highs[i]; s.high == nil || b.value.Cmp(s.high.value) < 0 || b.value.Cmp(s.high.value) == 0 && b.strict {
				s.high = b
			}
		}
		more(&s.minLength, a.minLength)
		less(&s.maxLength, a.maxLength)
		more(&s.minItems, a.minItems)
		less(&s.maxItems, a.maxItems)
		more(&s.minProperties, a.minProperties)
		less(&s.maxProperties, a.maxProperties)
	}
	return s
}

// boundAt returns the location of one of two bounds, or else that of an atom.
func (s *spec) boundAt(low, high *bound) *location {
	for _, b := range []*bound{low, high} {
		if b != nil && b.at != nil {
			return b.at
		}
	}
	if len(s.atoms) > 0 {
		return s.atoms[0].at
	}
	return nil
}

// keys returns the keys that the atoms declare or require, in order, and those that are required.
func (s *spec) keys() (all []string, required map[string]*location) {
	seen := map[string]bool{}
	add := func(key string) {
		if !seen[key] {
			seen[key], all = true, append(all, key)
		}
	}
	required = map[string]*location{}
	for _, a := range s.atoms {
		if a.properties != nil {
			for _, key := range a.properties.value.(*object).keys {
				add(key)
			}
		}
	}
	for _, a := range s.atoms {
		for _, key := range a.required {
			add(key)
			if required[key] == nil {
				required[key] = a.requiredAt
			}
		}
	}
	return all, required
}

// property returns the schemas that the value of a key must fit.
func (s *spec) property(c *compiler, key string) (all []*location) {
	for _, a := range s.atoms {
		if a.properties != nil {
			if _, ok := a.properties.value.(*object).of[key]; ok {
				all = append(all, c.child(a.properties, key))
				continue
			}
		}
		if a.extra != nil {
			all = append(all, a.extra)
		}
	}
	return all
}

// extras returns the schemas that the values of undeclared keys must fit. It reports false if no
// such key is written: properties stands without additionalProperties.
func (s *spec) extras() (all []*location, ok bool) {
	for _, a := range s.atoms {
		switch {
		case a.extra != nil:
			all = append(all, a.extra)
		case a.properties != nil:
			return nil, false
		}
	}
	return all, true
}

// item returns the schemas that an item of an array must fit.
func (s *spec) item(at int) (all []*location) {
	for _, a := range s.atoms {
		switch {
		case at < len(a.prefix):
			all = append(all, a.prefix[at])
		case a.items != nil:
			all = append(all, a.items)
		}
	}
	return all
}
