package weights

import "fmt"

// Policy says which unit makes room for another, and which units are copied without a Prefetch.
// [Cache.Prefetch] works with each.
type Policy int

const (
	// LRU keeps units until their slots are needed. The unit that was used longest ago makes room.
	LRU Policy = iota
	// LFU keeps units too. The unit that was used least often makes room. Of equals, the unit that
	// was used longest ago does.
	LFU
	// OnDemand keeps nothing. Each Use copies, unless the unit is in use or was prefetched.
	OnDemand
	// NextLayer is for units that are used in the order of the store, again and again. Each Use
	// begins the copies of the units behind it, as far as there are slots. The first unit follows
	// the last. It fits layers and not experts, of which any may come next.
	NextLayer
	// Resident has a slot for each unit and copies all of them when the cache is made.
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

// before reports whether the unit with usage a makes room rather than that with usage b.
func (p Policy) before(a, b usage) bool {
	if p == LFU && a.count != b.count {
		return a.count < b.count
	}
	return a.last < b.last
}

// usage is a policy's knowledge of a unit.
type usage struct {
	count int64 // Uses
	last  int64 // the number of its latest Use or fill, among those of all units
}
