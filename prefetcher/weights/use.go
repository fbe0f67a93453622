package weights

import (
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Use is a unit on the device, lent until [Use.Release] or the end of the Do.
type Use[M any] struct {
	Module M   // its tensors lie in the slot and hold the unit's values
	Slot   int // number of the slot for [Cache.At], from 0

	name    string
	cache   *Cache[M]
	do      *cgotorch.Stream
	changes bool
	slot    *slot[M] // nil after the release
}

// Use returns the module of a unit. It makes x's stream wait, on the device, for the unit's copy.
// If no Prefetch has begun the copy, Use begins it. The host waits until that copy is enqueued.
// If other Dos use all slots, the host waits until a slot is released. It waits for nothing else.
//
// The module's tensors may be read on x's stream until Release or the end of the Do. They must
// not be written, and they require no gradient. x.Keep refuses tensors that share memory with
// them.
//
// x's Do fails with [ErrNoSlot] if all slots are in use and none can become free. No slot can
// become free if this Do uses all slots, or if every Do that uses a slot itself waits for a slot.
// The Do also fails with the errors of [Cache.Prefetch]. In a captured function it fails with
// [cgotorch.ErrNotCapturable]: see [Cache.At]. Use cannot be called in a function given to
// [cgotorch.Exec.Recompute].
func (c *Cache[M]) Use(x *cgotorch.Exec, name string) *Use[M] {
	return c.use(x, "Cache.Use", name, false)
}

// useToChange is a Use whose tensors the caller writes on x's stream. The stream first waits for
// all work so far that reads the tensors. The caller then calls releaseChanged. useToChange fails
// with [ErrBusy] while the unit has a second Use, or while a second Cache uses the store. It
// fails with [cgotorch.ErrInvalidArgument] for a mapped store, which cannot be written.
func (c *Cache[M]) useToChange(x *cgotorch.Exec, name string) *Use[M] {
	return c.use(x, "Cache.useToChange", name, true)
}

func (c *Cache[M]) use(x *cgotorch.Exec, op, name string, changes bool) *Use[M] {
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("weights: unit %s is used inside a capture, and its copy is no part of the graph: capture with the module of a slot (Cache.At), and call Use around the launch: %w", name, cgotorch.ErrNotCapturable))
	}
	if x.Device() != c.device {
		x.Fail(op, fmt.Errorf("weights: unit %s comes to %v and is used on %v: %w: use it on a stream of its device", name, c.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	u := &Use[M]{name: name, cache: c, do: x.DoStream(), changes: changes}
	// AtEnd is called before acquire, because AtEnd panics if x cannot be used.
	x.AtEnd(func() { u.end(x) })
	c.mu.Lock()
	defer c.mu.Unlock() // the calls below may unwind
	if err := c.acquire(u); err != nil {
		x.Fail(op, err)
	}
	u.slot.forbidKeep(x, name)
	c.awaitCopy(x, u.slot)
	if changes {
		for _, e := range u.slot.released {
			x.Wait(e) //edge:unit-change-behind-readers TestUse_ReleaseChanged_Readers checked
		}
	}
	return u
}

// awaitCopy makes x's stream wait for the copy into `slot`, unless the stream already waits for
// it.
func (c *Cache[M]) awaitCopy(x *cgotorch.Exec, slot *slot[M]) {
	on := x.Stream()
	if slot.awaited[on] { //edge:unit-each-stream-waits TestSlot_Reuse_SeveralStreams checked
		return
	}
	if done, err := slot.ready.Poll(); err != nil || !done {
		c.stats.stalls = append(c.stats.stalls, interval{from: &sharedEvent{Event: x.RecordTiming()}, to: slot.ready.share()})
	}
	x.Wait(slot.ready.Event) //edge:unit-use-behind-copy TestPolicy checked
	if len(slot.awaited) >= manyStreams {
		clear(slot.awaited) // some of these streams may be closed; a second wait does no harm
	}
	slot.awaited[on] = true
}

// acquire gives u the slot that holds its unit, and counts the use. c.mu is held, except while
// bringIn waits for a slot.
func (c *Cache[M]) acquire(u *Use[M]) error {
	unit, err := c.lookup(u.name)
	if err != nil {
		return err
	}
	defer c.leaveLine(u.do)
	defer c.offerEmptied()
	filled, err := c.bringIn(unit, u.do)
	if err != nil {
		return err
	}
	if err := c.canUse(unit, u.changes); err != nil {
		return err
	}
	slot := unit.slot
	switch {
	case filled:
		c.stats.Misses++
	case slot.fresh:
		c.stats.Ahead++
	default:
		c.stats.Hits++
	}
	c.dequeue(unit)
	slot.wanted, slot.fresh, slot.changing = false, false, u.changes
	slot.uses++ //edge:unit-in-use-is-kept TestUse_WaitsForSlot
	slot.users[u.do]++
	u.slot, u.Slot, u.Module = slot, slot.index, slot.modules[unit.layout].module
	c.clock++
	unit.usage.count++
	unit.usage.last = c.clock
	if c.o.Policy == NextLayer {
		c.prefetchNext(unit)
	}
	c.stats.harvestMany()
	return nil
}

// bringIn returns when a slot holds the unit and the copy into the slot is enqueued. `filled`
// reports whether bringIn began that copy. While bringIn waits for a slot, c.mu is not held and
// other goroutines may change everything.
func (c *Cache[M]) bringIn(unit *unit[M], do *cgotorch.Stream) (filled bool, err error) {
	for {
		if unit.slot != nil {
			_ = c.settle(unit.slot) // if it fails, the unit has no slot and is copied again
		}
		if unit.slot != nil {
			return false, nil
		}
		if slot := c.victim(true); slot != nil && c.isNext(do) {
			err := c.fill(slot, unit, false)
			return err == nil, err
		}
		if err := c.waitForSlot(do, unit); err != nil {
			return false, err
		}
	}
}

// canUse fails if the unit cannot have one more use now, because of the present uses of the unit
// or of its store. `changes` reports whether the new use is to change the unit.
func (c *Cache[M]) canUse(unit *unit[M], changes bool) error {
	switch {
	case unit.slot.changing:
		return fmt.Errorf("weights: unit %s: %w: somebody changes it: use it afterwards", unit.name, ErrBusy)
	case changes && unit.slot.uses > 0:
		return fmt.Errorf("weights: unit %s: %w: others use it, so that it cannot be changed now", unit.name, ErrBusy)
	case changes && unit.whole == nil:
		return fmt.Errorf("weights: unit %s lies in a mapped file, which cannot be written: open the store without Map: %w", unit.name, cgotorch.ErrInvalidArgument)
	case changes && c.store.shared():
		return fmt.Errorf("weights: unit %s: %w: other Caches use its store, and would read what is written", unit.name, ErrBusy)
	}
	return nil
}

// isNext reports whether this Do is the first in the line for a slot. It returns true if the line
// is empty.
func (c *Cache[M]) isNext(do *cgotorch.Stream) bool { return len(c.line) == 0 || c.line[0] == do }

// leaveLine ends a Do's wait for a slot, and wakes the next Do in the line.
func (c *Cache[M]) leaveLine(do *cgotorch.Stream) {
	if i := slices.Index(c.line, do); i >= 0 {
		c.line = slices.Delete(c.line, i, i+1)
		c.signal()
	}
}

// waitForSlot puts a Do into the line for a slot and waits until something has changed. It fails
// if nothing can change. c.mu is held on entry and return, but not during the wait.
func (c *Cache[M]) waitForSlot(do *cgotorch.Stream, wanted *unit[M]) error {
	c.waiting[do] = wanted
	defer delete(c.waiting, do)
	if !slices.Contains(c.line, do) {
		c.line = append(c.line, do)
	}
	if c.stuck() {
		return fmt.Errorf("weights: unit %s: %w: all %d are in use by this Do, or by others that wait for one too: Release a unit before the next Use, or let CacheOptions.Slots be more", wanted.name, ErrNoSlot, c.o.Slots)
	}
	began := time.Now()
	changed := c.changed
	c.mu.Unlock()
	<-changed
	c.mu.Lock()
	c.stats.HostWait += time.Since(began)
	if c.closed {
		return fmt.Errorf("weights: unit %s: %w", wanted.name, cgotorch.ErrClosed)
	}
	return nil
}

// stuck reports whether every slot is used by a Do that itself waits for a slot.
func (c *Cache[M]) stuck() bool {
	if c.victim(true) != nil {
		return false
	}
	for _, slot := range c.slots {
		held := false
		for do := range slot.users {
			wanted := c.waiting[do]
			held = held || wanted != nil && wanted.slot == nil // if the Do's unit is in a slot now, the Do goes on
		}
		if !held {
			return false
		}
	}
	return true
}

// Release ends the use. x is an Exec of the Do that called Use. The slot may be filled again
// after the work enqueued on x's stream so far. If a stream other than x's has read the unit, x's
// stream must wait for that stream before Release. A second Release does nothing. x's Do fails
// with [cgotorch.ErrMisuse] if a different Do called Use.
func (u *Use[M]) Release(x *cgotorch.Exec) {
	u.cache.mu.Lock()
	defer u.cache.mu.Unlock()
	if u.slot == nil {
		return
	}
	u.sameDo(x, "Use.Release")
	u.release(x.Stream(), x.Record()) //edge:unit-release-records TestSlot_Reuse_InOrder checked
}

func (u *Use[M]) sameDo(x *cgotorch.Exec, op string) {
	if x.DoStream() != u.do {
		x.Fail(op, &cgotorch.Error{Op: op, Kind: cgotorch.ErrMisuse, Message: "unit " + u.name + " was taken by another Do: release it there"})
	}
}

// releaseChanged is the Release after useToChange. It copies the unit to the store, on a stream
// of its own, after the work enqueued on x's stream so far. The unit's next uses and copies have
// the changes. The store's bytes have the changes after Flush. releaseChanged fails with
// [cgotorch.ErrMisuse] after a Release, and for a unit that came from Use and not from
// useToChange.
func (u *Use[M]) releaseChanged(x *cgotorch.Exec) {
	const op = "Use.releaseChanged"
	c := u.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.slot == nil || !u.changes {
		x.Fail(op, &cgotorch.Error{Op: op, Kind: cgotorch.ErrMisuse, Message: "unit " + u.name + " is released already, or was not taken by useToChange"})
	}
	u.sameDo(x, op)
	if c.backs == nil {
		var err error
		if c.backs, err = cgotorch.NewStream(c.device, cgotorch.StreamOptions{Name: "weight write-backs"}); err != nil {
			x.Fail(op, err)
		}
	}
	e := x.Record()
	unit := u.slot.holds
	written, err := u.slot.copyBack(c.backs, e)
	if err != nil {
		e.Close()
		x.Fail(op, fmt.Errorf("weights: copying unit %s to the store: %w", u.name, err))
	}
	if unit.written != nil {
		unit.written.Close()
	}
	unit.written = written
	c.stats.Written += unit.layout.bytes
	u.release(x.Stream(), e)
}

// end is the Release at the end of the Do. On a lost device it releases the slot although Record
// fails.
func (u *Use[M]) end(x *cgotorch.Exec) {
	u.cache.mu.Lock()
	defer u.cache.mu.Unlock()
	if u.slot == nil {
		return
	}
	var e *cgotorch.Event
	defer func() { u.release(x.Stream(), e) }()
	e = x.Record() //edge:unit-do-records-its-end TestUse_EndOfDoReleases checked
}

// release gives the slot back. If e is not nil, the slot is filled only after e. c.mu is held.
func (u *Use[M]) release(on *cgotorch.Stream, e *cgotorch.Event) {
	c, slot := u.cache, u.slot
	u.slot = nil
	if e != nil {
		slot.releasedBehind(on, e)
	}
	if slot.users[u.do]--; slot.users[u.do] == 0 {
		delete(slot.users, u.do)
	}
	slot.changing = false
	if slot.uses--; slot.uses > 0 {
		return
	}
	if c.closed && !c.inUse() {
		c.freeLater()
		return
	}
	c.slotFree()
}
