package weights

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [The enqueuer]
//
// To enqueue a copy takes CUDA some 10 us, and 50 us with cold caches, as they are behind a wait.
// The caller of Prefetch has better uses for that time, such as the launch of the kernels that are
// to hide the copy. So Prefetch decides everything under the Cache's lock and hands the fill to a
// goroutine of the Cache, the enqueuer. The enqueuer needs no lock of the Cache and enqueues the
// fills in the order in which they were decided. Code that needs more than the unit of a slot
// settles the slot first, which waits for the enqueuer and never for the device. The fills that a
// Use or an arrived route begins are enqueued by their own goroutine, which has nothing better to
// do.

// fill is the copy of a unit into a slot, from the decision to the copy stream.
type fill[M any] struct {
	slot     *slot[M]
	unit     *unit[M]
	uses     []*cgotorch.Event // behind the unit that the slot held
	ahead    bool              // no Use began it
	enqueued chan struct{}     // closed by the enqueuer; nil for a fill that was not handed to it

	copied interval // set when the fill is enqueued
	err    error    // likewise
}

// fill begins the copy of a unit into a slot and enqueues it. ahead says that no Use needs the copy
// now. c.mu is held.
func (c *Cache[M]) fill(slot *slot[M], unit *unit[M], ahead bool) error {
	f := c.decide(slot, unit, ahead)
	c.settleBefore(f)
	f.enqueue(c.copies)
	return c.settle(slot)
}

// handFill is fill for a copy ahead that the enqueuer enqueues. The call that settles the slot
// gets the error. c.mu is held.
func (c *Cache[M]) handFill(slot *slot[M], unit *unit[M]) {
	f := c.decide(slot, unit, true)
	// The copy counts as a write from now on: a backward that needs the overwritten unit fails.
	slot.modules[unit.layout].whole.BumpVersion() //edge:unit-prefetch-counts-as-write TestFill_LateBackward
	f.enqueued = make(chan struct{})
	c.handed <- f // has room for InFlight fills
}

// decide gives a slot to a unit.
func (c *Cache[M]) decide(slot *slot[M], unit *unit[M], ahead bool) *fill[M] {
	_ = c.settle(slot) // it gets another copy now
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

// enqueueHanded is the enqueuer.
func (c *Cache[M]) enqueueHanded() {
	defer close(c.enqueuer)
	for f := range c.handed {
		f.enqueue(c.copies)
		close(f.enqueued)
	}
}

// enqueue enqueues the copy on the stream, behind every use of the slot's earlier unit and
// behind the unit's own copy to the store.
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

// settle waits until the slot's copy is enqueued, and those before it. A slot whose copy failed is
// then empty. It returns the error of the slot's own copy. c.mu is held.
func (c *Cache[M]) settle(slot *slot[M]) error {
	if slot.fill == nil {
		return nil
	}
	c.settleBefore(slot.fill)
	return c.settleFirst()
}

// settleBefore settles the fills that were decided before f, or all of them for nil.
func (c *Cache[M]) settleBefore(f *fill[M]) {
	for len(c.pending) > 0 && c.pending[0] != f {
		_ = c.settleFirst() // the unit's next Use says the error
	}
}

// settleFirst settles the first of the pending fills, and returns its error.
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

// offerEmptied offers a slot whose copy failed to the prefetches and the Dos that wait for one.
// Callers of settle call it last.
func (c *Cache[M]) offerEmptied() {
	if c.emptied {
		c.emptied = false
		c.slotFree()
	}
}
