package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Prefetch begins the copy of a unit to a slot, unless the unit is there or on its way, and returns
// within microseconds. The copy is enqueued on the Cache's copy stream, in the order of the calls,
// by a goroutine of the Cache. A copy that cannot be enqueued is tried again by the Use, which then
// has the error.
//
// Where every slot is in use, or holds a prefetched unit, the copy begins when a slot is released.
// Prefetch waits only where InFlight prefetches are not done and copies are among them. It then
// waits for one of these copies, or for the end of ctx, whose cause it returns. Prefetch may be
// called inside a Do or outside.
//
// Prefetch fails with [ErrNoSlot] where InFlight prefetches wait for a slot. It fails with
// [ErrUnknownUnit], with [ErrClosed], and for a unit that does not fit its slot or its module.
func (c *Cache[M]) Prefetch(ctx context.Context, name string) error {
	for {
		slotFree, copied, err := c.tryPrefetch(name, true)
		if slotFree == nil {
			return err
		}
		began := time.Now()
		select {
		case <-slotFree:
		case <-copied:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		c.mu.Lock()
		c.stats.HostWait += time.Since(began)
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("weights: unit %s: %w", name, err)
		}
	}
}

// prefetchNow is Prefetch by a goroutine that enqueues the copy itself. It does nothing where
// Prefetch would wait or fail: the Use copies, and has the error.
func (c *Cache[M]) prefetchNow(name string) { _, _, _ = c.tryPrefetch(name, false) }

// tryPrefetch is Prefetch up to the wait, for one of two channels. hand says that the enqueuer
// enqueues the copy.
func (c *Cache[M]) tryPrefetch(name string, hand bool) (slotFree, copied <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.offerEmptied()
	unit, err := c.lookup(name)
	if err != nil {
		return nil, nil, err
	}
	if unit.slot != nil {
		unit.slot.wanted = true
		return nil, nil, nil
	}
	if slices.Contains(c.queue, unit) {
		return nil, nil, nil
	}
	if len(c.queue) >= c.o.InFlight {
		return nil, nil, fmt.Errorf("weights: unit %s: %w: all are in use, and %d prefetches wait for one already: use or Drop them, or let CacheOptions.InFlight be more", name, ErrNoSlot, len(c.queue))
	}
	if c.inFlight() >= c.o.InFlight {
		c.settleBefore(nil)
		c.stats.harvest()
	}
	if c.inFlight() >= c.o.InFlight {
		return c.changed, c.stats.nextAhead(), nil
	}
	slot := c.victim(false)
	switch {
	case slot == nil:
		c.queue = append(c.queue, unit)
	case hand:
		c.handFill(slot, unit)
	default:
		err = c.fill(slot, unit, true)
	}
	return nil, nil, err
}

// inFlight counts the prefetches that are not known to be done.
func (c *Cache[M]) inFlight() int { return len(c.queue) + len(c.pending) + c.stats.prefetching }

// prefetchNext begins the copies of the units behind one that is used, as far as there are slots.
// Copies begin in the units' order, so a unit that is there has all units before it there, too.
func (c *Cache[M]) prefetchNext(used *unit[M]) {
	next := func(i int) *unit[M] { return c.order[(used.place+i)%len(c.order)] }
	most := min(c.o.Slots, len(c.order)) - 1
	there := most
	for there > 0 && next(there).slot == nil {
		there--
	}
	for i := there + 1; i <= most; i++ {
		if next(i).kind.err != nil {
			continue
		}
		slot := c.victim(false)
		if slot == nil || c.fill(slot, next(i), true) != nil {
			return
		}
	}
}

// Drop says that prefetched units will not be used. Others may have their slots at once.
func (c *Cache[M]) Drop(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		unit := c.units[name]
		if unit == nil {
			continue
		}
		if unit.slot != nil {
			unit.slot.wanted = false
		}
		c.dequeue(unit)
	}
	c.slotFree()
}

// dequeue forgets a prefetch that waits for a slot.
func (c *Cache[M]) dequeue(unit *unit[M]) {
	if i := slices.Index(c.queue, unit); i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
		c.signal()
	}
}

// victim returns the slot that gets another unit: an empty slot, or else the slot that the policy
// gives up, or nil. A slot in use is none. A slot whose unit is prefetched and not used yet is one
// for a Use alone, the oldest first. c.mu is held.
func (c *Cache[M]) victim(forUse bool) *slot[M] {
	var best *slot[M]
	for _, slot := range c.slots[:c.o.Slots] {
		switch {
		case slot.uses > 0 || slot.wanted && !forUse:
		case slot.holds == nil:
			return slot
		case best == nil || best.wanted && !slot.wanted:
			best = slot
		case best.wanted == slot.wanted && c.o.Policy.before(slot.holds.usage, best.holds.usage):
			best = slot
		}
	}
	return best
}

// slotFree gives queued prefetches the free slots, and wakes the goroutines that wait for a slot.
// c.mu is held.
func (c *Cache[M]) slotFree() {
	for len(c.queue) > 0 && !c.closed {
		slot := c.victim(false)
		if slot == nil {
			break
		}
		unit := c.queue[0]
		c.queue = c.queue[1:]
		if err := c.fill(slot, unit, true); err != nil {
			break // the device is lost; the unit's Use says it
		}
	}
	c.signal()
}

// signal wakes the goroutines that wait for a slot, or for room in the queue. c.mu is held.
func (c *Cache[M]) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Flush waits until every copy that a Prefetch has begun is enqueued, and until changed units are
// in the store. It also ends when ctx does, and returns its cause. Copies to the device may still
// be under way: [cgotorch.Device.Synchronize] waits for them. Flush fails with
// [cgotorch.ErrDeviceLost].
func (c *Cache[M]) Flush(ctx context.Context) error {
	c.mu.Lock()
	c.settleBefore(nil) //edge:unit-flush-settles TestFill_Handed
	c.offerEmptied()
	c.mu.Unlock()
	for _, unit := range c.order {
		if err := c.flush(ctx, unit); err != nil {
			return err
		}
	}
	return nil
}

// flush waits until the latest change of a unit is in the store.
func (c *Cache[M]) flush(ctx context.Context, unit *unit[M]) error {
	latest := func() *cgotorch.Event {
		c.mu.Lock()
		defer c.mu.Unlock()
		return unit.written
	}
	for {
		e := latest()
		if e == nil {
			return nil
		}
		select {
		case <-e.Done():
		case <-ctx.Done():
			return fmt.Errorf("weights: Flush: unit %s: %w", unit.name, context.Cause(ctx))
		}
		_, err := e.Query()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, cgotorch.ErrClosed):
			return fmt.Errorf("weights: unit %s is not in the store: %w", unit.name, err)
		case latest() == e: // the cache is closed, which has waited for the copy
			return nil
		}
		// A later change has closed the event.
	}
}
