package seam

// Values are values that packages keep with an Exec or with a tensor, one of each type. They never
// change: With and Without return other Values. nil has no value.
type Values struct {
	value any
	reach Reach
	next  *Values
}

// Reach says which derived Execs inherit a value.
type Reach int

const (
	Everywhere Reach = iota
	SameScope        // not Execs inside a captured function
	SameOrder        // of those, only Execs whose work is ordered after that of the value's Exec
)

// Find returns the value of type V, or V's zero value.
func Find[V any](vs *Values) (v V, ok bool) {
	for ; vs != nil; vs = vs.next {
		if v, ok = vs.value.(V); ok {
			return v, true
		}
	}
	return v, false
}

// With returns Values with one more value.
func (vs *Values) With(value any, reach Reach) *Values { return &Values{value, reach, vs} }

// Within returns the values whose reach is at most `most`.
func (vs *Values) Within(most Reach) *Values {
	return vs.filter(func(v *Values) bool { return v.reach <= most })
}

// Without returns the values without those of type V.
func Without[V any](vs *Values) *Values {
	return vs.filter(func(v *Values) bool { _, is := v.value.(V); return !is })
}

func (vs *Values) filter(keep func(*Values) bool) *Values {
	if vs == nil {
		return nil
	}
	next := vs.next.filter(keep)
	switch {
	case !keep(vs):
		return next
	case next == vs.next:
		return vs
	}
	return &Values{vs.value, vs.reach, next}
}
