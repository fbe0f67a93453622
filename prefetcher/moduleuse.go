package prefetcher

import (
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Use is a module on the device, lent until [Use.Release] or the end of the Do.
type Use[M any] struct {
	Module M
	Name   string
	Slot   int // of [Modules.At], from 0

	of      *Modules[M]
	do      *cgotorch.Stream
	changes bool
	slot    *moduleSlot[M] // nil when it is released
}

// Use makes x's stream wait, on the device, for the module's copy, which it begins if nobody has prefetched the module, and returns the module. Its
// tensors may be read on x's stream until Release, or the end of the Do; they must not be written, and what shares their memory cannot be kept.
// They require no gradient. The host waits only where all slots are in use by other Dos, until one is released, and where a Prefetch of the module has just
// been made, until its calls into CUDA have been.
//
// x's Do fails with [ErrNoSlot] where all slots are in use and none can become free, because this Do has them or because the others wait too;
// and with the errors of [Modules.Prefetch]. In a captured function it fails with [cgotorch.ErrNotCapturable]: see [Modules.At]. It cannot be
// called in a function that is computed again.
func (m *Modules[M]) Use(x *cgotorch.Exec, name string) *Use[M] {
	return m.use(x, "Modules.Use", name, false)
}

// UseToChange is Use of a module whose tensors are to be written, on x's stream: that waits for all who have read them so far. [Use.ReleaseChanged]
// is to follow. It fails with [ErrBusy] while somebody else uses the module, or another Modules the store, and with
// [cgotorch.ErrInvalidArgument] for a mapped store, which cannot be written.
func (m *Modules[M]) UseToChange(x *cgotorch.Exec, name string) *Use[M] {
	return m.use(x, "Modules.UseToChange", name, true)
}

func (m *Modules[M]) use(x *cgotorch.Exec, op, name string, changes bool) *Use[M] {
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("prefetcher: module %s is used inside a capture, and its copy is no part of the graph: capture with the module of a slot (Modules.At), and call Use around the launch: %w", name, cgotorch.ErrNotCapturable))
	}
	if x.Device() != m.device {
		x.Fail(op, fmt.Errorf("prefetcher: module %s comes to %v and is used on %v: %w: use it on a stream of its device", name, m.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	u := &Use[M]{Name: name, of: m, do: x.DoStream(), changes: changes}
	x.AtEnd(func() { u.end(x) }) // first, since it unwinds where x cannot be used
	m.mu.Lock()
	defer m.mu.Unlock() // what follows may unwind
	if err := m.acquire(u); err != nil {
		x.Fail(op, err)
	}
	x.Lend(u.slot.memory, name).Close() // no view of the memory can be kept
	m.awaitCopy(x, u.slot)
	if changes {
		for _, e := range u.slot.released {
			x.Wait(e) //edge:module-change-behind-readers TestMisuse_ReleaseChanged_Readers checked
		}
	}
	return u
}

// awaitCopy makes x's stream wait for the copy into the slot, unless it does.
func (m *Modules[M]) awaitCopy(x *cgotorch.Exec, slot *moduleSlot[M]) {
	if slot.awaited[x.Stream()] { //edge:module-each-stream-waits TestModules_Reuse_SeveralStreams checked
		return
	}
	if done, err := slot.ready.Poll(); err != nil || !done {
		m.stats.stalls = append(m.stats.stalls, span{from: &mark{Event: x.RecordTiming()}, to: slot.ready.share()})
	}
	x.Wait(slot.ready.Event) //edge:module-use-behind-copy TestModules_Policies checked
	if len(slot.awaited) >= manyStreams {
		clear(slot.awaited) // of streams that may be closed; to wait again does no harm
	}
	slot.awaited[x.Stream()] = true
}

const (
	manyStreams = 64 // more than programs use at a time
	manySpans   = 64 // to ask for one takes microseconds, which a Use has no need for
)

// acquire gives u its slot. m.mu is held, but while it waits.
func (m *Modules[M]) acquire(u *Use[M]) error {
	s, err := m.lookup(u.Name)
	if err != nil {
		return err
	}
	defer m.leaveLine(u.do)
	defer m.offerEmptied()
	filled := false
	for {
		if s.slot != nil {
			_ = m.settle(s.slot) // it is tried again below
		}
		if s.slot != nil {
			break
		}
		if free := m.victim(true); free != nil && (len(m.line) == 0 || m.line[0] == u.do) {
			if err := m.fill(free, s, false, false); err != nil {
				return err
			}
			filled = true
		} else if err := m.waitForSlot(u.do, s); err != nil {
			return err
		}
	}
	slot := s.slot
	switch {
	case slot.changing:
		return fmt.Errorf("prefetcher: module %s: %w: somebody changes it: use it afterwards", u.Name, ErrBusy)
	case u.changes && slot.uses > 0:
		return fmt.Errorf("prefetcher: module %s: %w: others use it, so that it cannot be changed now", u.Name, ErrBusy)
	case u.changes && s.whole == nil:
		return fmt.Errorf("prefetcher: module %s lies in a mapped file, which cannot be written: open the store without Map: %w", u.Name, cgotorch.ErrInvalidArgument)
	case u.changes && m.store.shared():
		return fmt.Errorf("prefetcher: module %s: %w: its store has other Modules, which would read what is written", u.Name, ErrBusy)
	case filled:
		m.stats.Misses++
	case slot.fresh:
		m.stats.Ahead++
	default:
		m.stats.Hits++
	}
	m.dequeue(s)
	slot.wanted, slot.fresh, slot.changing = false, false, u.changes
	slot.uses++ //edge:module-in-use-is-kept TestModules_Use_WaitsForSlot
	slot.users[u.do]++
	u.slot, u.Slot, u.Module = slot, slot.index, slot.bound[s.layout].module
	m.clock++
	s.use.count++
	s.use.last = m.clock
	if m.o.Policy == NextLayer {
		m.prefetchNext(s)
	}
	if len(m.stats.copies)+len(m.stats.stalls) > manySpans {
		m.stats.harvest()
	}
	return nil
}

// leaveLine ends a Do's wait for a slot, and lets the next in line look.
func (m *Modules[M]) leaveLine(do *cgotorch.Stream) {
	if i := slices.Index(m.line, do); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
		m.signal()
	}
}

// waitForSlot waits until something has changed, with m.mu not held meanwhile.
func (m *Modules[M]) waitForSlot(who *cgotorch.Stream, wanted *module[M]) error {
	m.waiting[who] = wanted
	defer delete(m.waiting, who)
	if !slices.Contains(m.line, who) {
		m.line = append(m.line, who)
	}
	stuck := m.victim(true) == nil
	for _, slot := range m.slots[:m.o.Slots] {
		held := false
		for user := range slot.users {
			w := m.waiting[user]
			held = held || w != nil && w.slot == nil // who finds its module there now goes on
		}
		stuck = stuck && held
	}
	if stuck {
		return fmt.Errorf("prefetcher: module %s: %w: all %d are in use by this Do, or by others that wait for one too: Release a module before the next Use, or let ModulesOptions.Slots be more", wanted.name, ErrNoSlot, m.o.Slots)
	}
	began := time.Now()
	changed := m.changed
	m.mu.Unlock()
	<-changed
	m.mu.Lock()
	m.stats.HostWait += time.Since(began)
	if m.closed {
		return fmt.Errorf("prefetcher: module %s: %w", wanted.name, ErrClosed)
	}
	return nil
}

// dequeue forgets a prefetch that a Use has overtaken.
func (m *Modules[M]) dequeue(s *module[M]) {
	if i := slices.Index(m.queue, s); i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
		m.signal()
	}
}

// prefetchNext begins the copies of the modules behind one that is used, as far as there are slots. They were begun in order, so that none is
// missing before one that is there.
func (m *Modules[M]) prefetchNext(s *module[M]) {
	next := func(i int) *module[M] { return m.order[(s.place+i)%len(m.order)] }
	most := min(m.o.Slots, len(m.order)) - 1
	there := most
	for there > 0 && next(there).slot == nil {
		there--
	}
	for i := there + 1; i <= most; i++ {
		if next(i).kind.err != nil {
			continue
		}
		slot := m.victim(false)
		if slot == nil || m.fill(slot, next(i), true, false) != nil {
			return
		}
	}
}

// Release ends the use on x, an Exec of the Do that began it: the slot may be filled anew when the work enqueued on x's stream so far is done. What else has
// read the module on other streams must have been joined with x's. Releasing twice does nothing. It fails with [cgotorch.ErrMisuse] in another Do.
func (u *Use[M]) Release(x *cgotorch.Exec) {
	m := u.of
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.slot == nil {
		return
	}
	u.sameDo(x, "Use.Release")
	u.release(x.Stream(), x.Record()) //edge:module-release-records TestModules_Reuse_InOrder checked
}

func (u *Use[M]) sameDo(x *cgotorch.Exec, op string) {
	if x.DoStream() != u.do {
		x.Fail(op, &cgotorch.Error{Op: op, Code: cgotorch.CodeMisuse, Message: "module " + u.Name + " was taken by another Do: release it there"})
	}
}

// ReleaseChanged is Release of what [Modules.UseToChange] gave: the module is copied to the store, on a stream of its own, behind the work
// enqueued on x's stream so far. What is used or copied of the module next has the changes; the store's bytes have them after [Modules.Flush]. It
// fails with [cgotorch.ErrMisuse] after a Release, and for what Use gave.
func (u *Use[M]) ReleaseChanged(x *cgotorch.Exec) {
	const op = "Use.ReleaseChanged"
	m := u.of
	m.mu.Lock()
	defer m.mu.Unlock()
	s := u.slot
	if s == nil || !u.changes {
		x.Fail(op, &cgotorch.Error{Op: op, Code: cgotorch.CodeMisuse, Message: "module " + u.Name + " is released already, or was not taken by UseToChange"})
	}
	u.sameDo(x, op)
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
	if of.written != nil {
		of.written.Close()
	}
	of.written = written
	m.stats.Written += of.layout.bytes
	u.release(x.Stream(), e)
}

// end is Release at the end of the Do, also of one on a lost device, where there is nothing to record.
func (u *Use[M]) end(x *cgotorch.Exec) {
	u.of.mu.Lock()
	defer u.of.mu.Unlock()
	if u.slot == nil {
		return
	}
	var e *cgotorch.Event
	defer func() { u.release(x.Stream(), e) }()
	e = x.Record() //edge:module-do-records-its-end TestModules_EndOfDoReleases checked
}

// release gives the slot back behind the event, if there is one. m.mu is held.
func (u *Use[M]) release(stream *cgotorch.Stream, e *cgotorch.Event) {
	m, s := u.of, u.slot
	u.slot = nil
	if e != nil {
		s.releasedBehind(stream, e)
	}
	if s.users[u.do]--; s.users[u.do] == 0 {
		delete(s.users, u.do)
	}
	s.changing = false
	if s.uses--; s.uses > 0 {
		return
	}
	switch {
	case m.closed && !m.inUse():
		m.freeLater()
		return
	case m.o.Policy == OnDemand && !s.stays && !s.wanted:
		s.holds.slot = nil
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
