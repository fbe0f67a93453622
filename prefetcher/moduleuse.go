package prefetcher

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Use is a module on the device, lent until [Use.Release] or the end of the Do.
type Use[M any] struct {
	Module M
	Name   string
	Slot   int // of [Modules.At], from 0

	of   *Modules[M]
	slot *moduleSlot[M] // nil when it is released
}

// Use makes x's stream wait, on the device, for the module's copy, which it begins if nobody has prefetched the module, and returns the module. Its
// tensors may be read on x's stream until Release, or the end of the Do; they must not be written, and what shares their memory cannot be kept.
// The host waits only where all slots are in use by other Dos, until one is released.
//
// x's Do fails with [ErrNoSlot] where all slots are in use and none can become free, because this Do has them or because the others wait too;
// and with the errors of [Modules.Prefetch]. In a captured function it fails with [cgotorch.ErrNotCapturable]: see [Modules.At].
func (m *Modules[M]) Use(x *cgotorch.Exec, name string) *Use[M] {
	const op = "Modules.Use"
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("prefetcher: module %s is used inside a capture, and its copy is no part of the graph: capture with the module of a slot (Modules.At), and call Use around the launch: %w", name, cgotorch.ErrNotCapturable))
	}
	if x.Device() != m.device {
		x.Fail(op, fmt.Errorf("prefetcher: module %s comes to %v and is used on %v: %w: use it on a stream of its device", name, m.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	u := &Use[M]{Name: name, of: m}
	x.AtEnd(func() { u.end(x) }) // first, since it unwinds where x cannot be used
	ready, err := m.acquire(x, u)
	if err != nil {
		x.Fail(op, err)
	}
	x.Lend(u.slot.memory, name)
	if ready == nil { // the stream waits already
		return u
	}
	if done, err := cgotorch.QueryFor(ready.Event, []byte(nil)); err != nil || !done {
		reached := &mark{Event: x.RecordTiming()}
		m.mu.Lock()
		m.stats.stalls = append(m.stats.stalls, span{reached, ready.share()})
		m.mu.Unlock()
	}
	x.Wait(ready.Event)
	return u
}

// acquire gives u its slot, and returns what x's stream is to wait for, or nil.
func (m *Modules[M]) acquire(x *cgotorch.Exec, u *Use[M]) (ready *mark, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.lookup(u.Name)
	if err != nil {
		return nil, err
	}
	slot := m.at[s]
	switch {
	case slot == nil:
		m.stats.Misses++
	case slot.fresh:
		m.stats.Ahead++
	default:
		m.stats.Hits++
	}
	for ; slot == nil; slot = m.at[s] {
		if free := m.victim(true); free != nil {
			if err := m.fill(free, s); err != nil {
				return nil, err
			}
		} else if err := m.waitForSlot(x.DoStream(), u.Name); err != nil {
			return nil, err
		}
	}
	m.dequeue(s)
	slot.wanted, slot.fresh = false, false
	slot.uses++
	if slot.users == nil {
		slot.users = map[*cgotorch.Stream]int{}
	}
	slot.users[x.DoStream()]++
	u.slot, u.Slot, u.Module = slot, slot.index, slot.bound[s.layout].module
	m.clock++
	m.uses[s].count++
	m.uses[s].last = m.clock
	if !slot.awaited[x.Stream()] {
		slot.awaited[x.Stream()], ready = true, slot.ready
	}
	if m.o.Policy == NextLayer {
		m.prefetchNext(s)
	}
	m.stats.harvest()
	return ready, nil
}

// waitForSlot waits until something has changed, with m.mu not held meanwhile.
func (m *Modules[M]) waitForSlot(who *cgotorch.Stream, name string) error {
	m.waiting[who] = true
	defer delete(m.waiting, who)
	stuck := true
	for _, slot := range m.slots[:m.o.Slots] {
		held := false
		for user := range slot.users {
			held = held || m.waiting[user]
		}
		stuck = stuck && held
	}
	if stuck {
		return fmt.Errorf("prefetcher: module %s: %w: all %d are in use by this Do, or by others that wait for one too: Release a module before the next Use, or let ModulesOptions.Slots be more", name, ErrNoSlot, m.o.Slots)
	}
	began := time.Now()
	changed := m.changed
	m.mu.Unlock()
	<-changed
	m.mu.Lock()
	m.stats.HostWait += time.Since(began)
	if m.closed {
		return fmt.Errorf("prefetcher: module %s: %w", name, ErrClosed)
	}
	return nil
}

// dequeue forgets a prefetch that a Use has overtaken.
func (m *Modules[M]) dequeue(s *stored) {
	for i, queued := range m.queue {
		if queued == s {
			m.queue = append(m.queue[:i:i], m.queue[i+1:]...)
			return
		}
	}
}

// prefetchNext begins the copies of the modules behind one that is used, as far as there are slots.
func (m *Modules[M]) prefetchNext(s *stored) {
	names := m.store.names
	for i := 1; i < min(m.o.Slots, len(names)); i++ {
		next := m.store.modules[names[(m.order[s]+i)%len(names)]]
		if m.kinds[next.layout].err != nil {
			continue
		}
		if slot := m.at[next]; slot != nil {
			slot.wanted = slot.uses == 0
			continue
		}
		slot := m.victim(false)
		if slot == nil || m.prefetchInto(slot, next) != nil {
			return
		}
	}
}

// Release ends the use on x, an Exec of the Do that began it: the slot may be filled anew when the work enqueued on x's stream so far is done. What else has read the module
// on other streams must have been joined with x's. Releasing twice does nothing.
func (u *Use[M]) Release(x *cgotorch.Exec) {
	m := u.of
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.slot == nil {
		return
	}
	u.release(x.DoStream(), x.Stream(), x.Record())
}

// ReleaseChanged is Release of a module whose tensors the Do has written: they are copied to the store, on a stream of its own, behind the work
// enqueued on x's stream so far. What is used or copied of the module next has the changes; the store's bytes have them after [Modules.Flush]. The module must
// be in use by nobody else. It fails with [cgotorch.ErrInvalidArgument] for a module of a mapped store, which cannot be written.
func (u *Use[M]) ReleaseChanged(x *cgotorch.Exec) {
	const op = "Use.ReleaseChanged"
	m := u.of
	m.mu.Lock()
	defer m.mu.Unlock()
	s := u.slot
	switch {
	case s == nil:
		return
	case s.holds.whole == nil:
		x.Fail(op, fmt.Errorf("prefetcher: module %s lies in a mapped file, which cannot be written: open the store without Map: %w", u.Name, cgotorch.ErrInvalidArgument))
	case s.uses > 1:
		x.Fail(op, fmt.Errorf("prefetcher: module %s is in use %d times, and was changed by one: %w", u.Name, s.uses, cgotorch.ErrInvalidArgument))
	}
	if m.backs == nil {
		var err error
		if m.backs, err = cgotorch.NewStream(m.device, cgotorch.StreamOptions{Name: "module write-backs"}); err != nil {
			x.Fail(op, err)
		}
	}
	e := x.Record()
	of := s.holds
	written, err := s.copyBack(m.backs, e)
	if err != nil {
		e.Close()
		x.Fail(op, fmt.Errorf("prefetcher: copying module %s to the store: %w", u.Name, err))
	}
	if before := m.written[of]; before != nil {
		before.Close()
	}
	m.written[of] = written
	m.stats.Written += of.layout.bytes
	u.release(x.DoStream(), x.Stream(), e)
}

// end is Release at the end of the Do, also of one on a lost device, where there is nothing to record.
func (u *Use[M]) end(x *cgotorch.Exec) {
	u.of.mu.Lock()
	defer u.of.mu.Unlock()
	if u.slot == nil {
		return
	}
	var e *cgotorch.Event
	defer func() { u.release(x.DoStream(), x.Stream(), e) }()
	e = x.Record()
}

// release gives the slot back behind the event, if there is one. m.mu is held.
func (u *Use[M]) release(do, stream *cgotorch.Stream, e *cgotorch.Event) {
	m, s := u.of, u.slot
	u.slot = nil
	if e != nil {
		s.releasedBehind(stream, e)
	}
	if s.users[do]--; s.users[do] == 0 {
		delete(s.users, do)
	}
	if s.uses--; s.uses > 0 {
		return
	}
	switch {
	case m.closed && !m.inUse():
		m.freeLater()
		return
	case m.o.Policy == OnDemand && !s.stays:
		delete(m.at, s.holds)
		s.holds = nil
	}
	m.slotFree()
}

// At is the module of a slot, of the kind of the one named, for functions that are captured: a graph made with it reads whatever the slot
// holds. Nothing orders it with the copies but the Use, which says the slot, around the launch:
//
//	u := modules.Use(x, name)
//	x.Launch(graphs[u.Slot])
//	u.Release(x)
//
// Outside a capture use [Modules.Use]. It fails with [ErrUnknownModule], [ErrNoSlot] for a slot that is not there, and for a module that cannot be used.
func (m *Modules[M]) At(slot int, name string) (module M, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.lookup(name)
	if err != nil {
		return module, err
	}
	if slot < 0 || slot >= len(m.slots) || m.slots[slot].bound[s.layout] == nil {
		return module, fmt.Errorf("prefetcher: slot %d of %d is not for module %s: %w", slot, len(m.slots), name, ErrNoSlot)
	}
	return m.slots[slot].bound[s.layout].module, nil
}

// Slots is the number of slots, those of modules that stay included.
func (m *Modules[M]) Slots() int { return m.o.Slots + len(m.o.Pinned) }
