package weights

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [The enqueuer]
//
// CUDA takes about 10 us to enqueue a copy, and 50 us if the CPU's caches are cold, as they are
// after a wait. The caller of Prefetch should have that time for other work, such as the launches
// of the kernels that run during the copy. So Prefetch makes all decisions under the Cache's
// lock, and writes them into a value of type fill. It sends the fill to a goroutine of the Cache,
// the enqueuer. The enqueuer does not take the Cache's lock. It enqueues the fills in the order
// in which they were decided.
//
// Code that needs more of a slot than the name of its unit settles the slot first. To settle a
// slot means to wait for the enqueuer, and never for the device. A Use does not send its fills to
// the enqueuer. It enqueues them itself, because it would otherwise only wait.

// fill is one copy of a unit into a slot, from the decision until it is enqueued.
type fill[M any] struct {
	slot     *slot[M]
	unit     *unit[M]
	uses     []*cgotorch.Event // recorded after the uses of the unit that the slot held before
	ahead    bool              // begun by a prefetch or a policy, not by a Use
	enqueued chan struct{}     // closed by the enqueuer; nil if another goroutine enqueues the fill

	copied interval // set when the copy has been enqueued
	err    error    // set when the copy could not be enqueued
}

// fill begins the copy of a unit into a slot and enqueues it. `ahead` is set if no Use needs the
// copy now. c.mu is held.
func (c *Cache[M]) fill(slot *slot[M], unit *unit[M], ahead bool) error {
	f := c.decide(slot, unit, ahead)
	c.settleBefore(f)
	f.enqueue(c.copies)
	return c.settle(slot)
}

// handFill begins a copy that no Use needs now, and lets the enqueuer enqueue it. If the copy
// fails, the call that settles the slot gets the error. c.mu is held.
func (c *Cache[M]) handFill(slot *slot[M], unit *unit[M]) {
	f := c.decide(slot, unit, true)
	// The copy counts as a write from now on. So a backward that needs the overwritten unit fails.
	slot.modules[unit.layout].whole.BumpVersion() //edge:unit-prefetch-counts-as-write TestFill_LateBackward
	f.enqueued = make(chan struct{})
	c.handed <- f // handed has room for InFlight fills
}

// decide gives `slot` to `unit` and returns the fill to enqueue.
func (c *Cache[M]) decide(slot *slot[M], unit *unit[M], ahead bool) *fill[M] {
	_ = c.settle(slot) // an error does not matter, because the slot gets another copy now
	if before := slot.holds; before != nil {
		before.slot = nil
		if slot.fresh {
			c.stats.Unused++
		}
	}
	f := &fill[M]{slot: slot, unit: unit, uses: slot.takeUses(), ahead: ahead}
	slot.holds, slot.fresh, slot.wanted, slot.fill = unit, true, ahead, f
	unit.slot = slot
	c.clock++
	unit.usage.last = c.clock
	c.pending = append(c.pending, f)
	return f
}

// enqueueHanded is the enqueuer's loop.
func (c *Cache[M]) enqueueHanded() {
	defer close(c.enqueuer)
	for f := range c.handed {
		f.enqueue(c.copies)
		close(f.enqueued)
	}
}

// enqueue enqueues the copy on the copy stream. The stream first waits for every use of the slot's
// earlier unit. It also waits for the new unit's last copy to the store, because a copy that failed
// may have emptied the slot in which the unit was changed.
func (f *fill[M]) enqueue(copies *cgotorch.Stream) {
	defer closeAll(f.uses)
	behind := f.uses //edge:unit-refill-behind-uses TestSlot_Reuse_InOrder checked
	if f.unit.written != nil {
		//edge:unit-copy-behind-back TestUse_ReleaseChanged_ToAnotherSlot checked
		behind = append(behind[:len(behind):len(behind)], f.unit.written)
	}
	m := f.slot.modules[f.unit.layout]
	parts := []cgotorch.HostCopy{{To: m.whole, From: f.unit.whole}}
	if f.unit.whole == nil {
		parts = parts[:0]
		for i, part := range f.unit.parts {
			parts = append(parts, cgotorch.HostCopy{To: m.state[i], From: part})
		}
	}
	began, done, err := copies.CopyFrom(behind, parts...)
	if err != nil {
		// Work enqueued before the failure may still read the store.
		f.err = errors.Join(fmt.Errorf("weights: copying unit %s to the device: %w", f.unit.name, err), copies.Synchronize())
		return
	}
	f.copied = interval{from: &sharedEvent{Event: began}, to: &sharedEvent{Event: done}, ahead: f.ahead}
}

// settle waits until the slot's copy and all copies decided before it are enqueued. If the slot's
// copy failed, the slot is then empty and `settle` returns the error. c.mu is held.
func (c *Cache[M]) settle(slot *slot[M]) error {
	if slot.fill == nil {
		return nil
	}
	c.settleBefore(slot.fill)
	return c.settleFirst()
}

// settleBefore settles the fills that were decided before f. If f is nil, it settles all fills.
func (c *Cache[M]) settleBefore(f *fill[M]) {
	for len(c.pending) > 0 && c.pending[0] != f {
		_ = c.settleFirst() // the next Use of the unit gets the error
	}
}

// settleFirst settles the first of the pending fills and returns the error of that fill.
func (c *Cache[M]) settleFirst() error {
	f := c.pending[0]
	c.pending = c.pending[1:]
	if f.enqueued != nil { //edge:unit-settled TestCache_Prefetch
		select {
		case <-f.enqueued:
		default:
			began := time.Now()
			<-f.enqueued
			c.stats.HostWait += time.Since(began)
		}
	}
	f.slot.fill = nil
	if f.err != nil {
		f.slot.holds, f.slot.fresh, f.slot.wanted, f.unit.slot = nil, false, false, nil
		c.emptied = true
		return f.err
	}
	f.slot.ready = f.copied.to.share()
	clear(f.slot.awaited)
	c.stats.Bytes += f.unit.layout.bytes
	if f.ahead {
		c.stats.Prefetched++
		c.stats.prefetching++
	}
	c.stats.copies = append(c.stats.copies, f.copied)
	return nil
}

// If a failed copy has emptied a slot, offerEmptied offers the slot to the prefetches and Dos
// that wait for a slot. A function that calls `settle` calls offerEmptied last.
func (c *Cache[M]) offerEmptied() {
	if c.emptied {
		c.emptied = false
		c.slotFree()
	}
}
