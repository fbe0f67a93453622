package weights

import "fmt"

// Policy says which unit gives up its slot for another unit. It also says which units are copied
// without a Prefetch. [Cache.Prefetch] works with every Policy.
type Policy int

const (
	// LRU keeps units until their slots are needed. The unit whose last use is longest ago gives up
	// its slot.
	LRU Policy = iota
	// LFU keeps units until their slots are needed. The unit with the fewest uses gives up its
	// slot. Among units with equally few uses, the unit whose last use is longest ago gives up its
	// slot.
	LFU
	// NextLayer is for units that are used in the order of the store, again and again. With n
	// slots, each Use begins the copies of the next n-1 units in that order. The first unit follows
	// the last.
	NextLayer
)

var policyNames = []string{"LRU", "LFU", "NextLayer"}

func (p Policy) String() string {
	if p.valid() {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

func (p Policy) valid() bool { return p >= 0 && int(p) < len(policyNames) }

// before reports whether a unit with usage a gives up its slot before a unit with usage b does.
func (p Policy) before(a, b usage) bool {
	if p == LFU && a.count != b.count {
		return a.count < b.count
	}
	return a.last < b.last
}

// usage is what a policy needs to know of a unit.
type usage struct {
	count int64 // number of Uses
	last  int64 // number of the unit's latest Use or fill, in the count of all Uses and fills of the Cache
}
