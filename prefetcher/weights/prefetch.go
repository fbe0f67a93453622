package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Prefetch begins the copy of a unit to a slot, and returns within microseconds. If the unit is
// in a slot or its copy has begun, Prefetch only keeps the unit for its Use. A goroutine of the
// Cache enqueues the copies on the Cache's copy stream, in the order of the calls. If a copy
// cannot be enqueued, the Use tries again and reports the error.
//
// If every slot is in use or holds a prefetched unit, the copy begins when a slot is released.
// Prefetch waits only if InFlight prefetches are not done and some of them are copying. It then
// waits until one of these copies is done, or until ctx ends. If ctx ends first, it returns the
// cause. Prefetch may be called inside a Do or outside.
//
// Prefetch fails with [ErrNoSlot] if InFlight prefetches wait for a slot. It fails with
// [ErrUnknownUnit] for an unknown name, and with [cgotorch.ErrClosed] after Close. It also fails
// for a unit that does not fit its slot or its module.
func (c *Cache[M]) Prefetch(ctx context.Context, name string) error {
	for {
		slotFree, copied, err := c.tryPrefetch(name)
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

// tryPrefetch is Prefetch without the wait. If it returns channels, the caller waits for one of
// them and tries again.
func (c *Cache[M]) tryPrefetch(name string) (slotFree, copied <-chan struct{}, err error) {
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
		return nil, nil, fmt.Errorf("weights: unit %s: %w: all are in use, and %d prefetches wait for one already: use them, or let CacheOptions.InFlight be more", name, ErrNoSlot, len(c.queue))
	}
	if c.inFlight() >= c.o.InFlight {
		c.settleBefore(nil)
		c.stats.harvest()
	}
	if c.inFlight() >= c.o.InFlight {
		return c.changed, c.stats.nextAhead(), nil
	}
	if slot := c.victim(false); slot != nil {
		c.handFill(slot, unit)
	} else {
		c.queue = append(c.queue, unit)
	}
	return nil, nil, nil
}

// inFlight returns the number of prefetches that are perhaps not done.
func (c *Cache[M]) inFlight() int { return len(c.queue) + len(c.pending) + c.stats.prefetching }

// prefetchNext begins the copies of the units that follow `used`, so that they and `used` take
// all slots. Copies begin in the order of the units. So if a unit has a slot, all units between
// it and `used` have slots too.
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

// dequeue removes a unit's prefetch from the queue of prefetches that wait for a slot.
func (c *Cache[M]) dequeue(unit *unit[M]) {
	if i := slices.Index(c.queue, unit); i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
		c.signal()
	}
}

// victim returns the slot that the next unit gets, or nil if there is none. It prefers an empty
// slot, then the slot that the policy gives up. It never returns a slot in use. If a slot's
// prefetched unit has not been used yet, `victim` returns the slot only for a Use, the oldest
// first. c.mu is held.
func (c *Cache[M]) victim(forUse bool) *slot[M] {
	var best *slot[M]
	for _, slot := range c.slots {
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

// slotFree fills the free slots for the queued prefetches, and wakes the goroutines that wait for
// a slot. c.mu is held.
func (c *Cache[M]) slotFree() {
	for len(c.queue) > 0 && !c.closed {
		slot := c.victim(false)
		if slot == nil {
			break
		}
		unit := c.queue[0]
		c.queue = c.queue[1:]
		if err := c.fill(slot, unit, true); err != nil {
			break // the device is lost; the unit's Use reports it
		}
	}
	c.signal()
}

// signal wakes the goroutines that wait for a slot or for a shorter queue. c.mu is held.
func (c *Cache[M]) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Flush waits until every copy that a Prefetch has begun is enqueued, and until units that an
// [Offload] has changed are in the store. If ctx ends first, Flush returns the cause. Copies to the
// device may still run after Flush: [cgotorch.Device.Synchronize] waits for them. Flush fails with
// [cgotorch.ErrDeviceLost] on a lost device.
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

// flush waits until the latest change of the unit is in the store.
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
		case latest() == e: // the cache is closed, and its Close has waited for the copy
			return nil
		}
		// A later change has closed e: wait for the event of that change.
	}
}
