package weights

import "fmt"

// Policy says which unit makes room for another, and what is copied without being asked for. [Cache.Prefetch] works with each.
type Policy int

const (
	// LRU keeps units until their slots are needed, and then gives up the one that was used longest ago.
	LRU Policy = iota
	// LFU gives up the one that has been used least often, of equals the one that was used longest ago.
	LFU
	// OnDemand keeps nothing: each Use copies, unless the unit is in use or was prefetched for it.
	OnDemand
	// NextLayer is for units that are used in the order of the store, again and again: each Use has as many of those behind it copied as there
	// are slots for, and behind the last one comes the first. It is for layers and not for experts, of which the next one is any.
	NextLayer
	// Resident has a slot for each unit and copies all of them when it is made.
	Resident
)

var policyNames = []string{"LRU", "LFU", "OnDemand", "NextLayer", "Resident"}

func (p Policy) String() string {
	if p.valid() {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

func (p Policy) valid() bool { return p >= 0 && int(p) < len(policyNames) }

// before reports whether a slot's unit is to be given up rather than b's.
func (p Policy) before(a, b use) bool {
	if p == LFU && a.count != b.count {
		return a.count < b.count
	}
	return a.last < b.last
}

// use is what policies know of a unit.
type use struct {
	count int64 // Uses
	last  int64 // of all Uses and fills, the number of its latest
}
