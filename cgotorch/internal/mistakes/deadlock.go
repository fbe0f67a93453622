package mistakes

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Note [Deadlocks of streams]
//
// A Do must not wait for a goroutine that waits for the Do's stream. Neither of them would ever go
// on. After 10 s a waiting call looks at the stacks of all goroutines. It looks for a circle of two
// kinds of steps:
//
//	a call waits for a stream, so it waits for the goroutine that runs the stream's Do
//	that goroutine waits for another stream, or for a channel or a lock, so it waits for the
//	goroutines that it started
//
// If a circle leads back to the call, the call fails. A goroutine that runs, sleeps, or waits for
// files or for the network is not part of a circle: the Do is only slow. The same is true of a Do
// that has started such a goroutine. A timer cannot be told from a channel. A call of an Inference
// waits for any of its streams. It is part of a circle only if each of these streams is.
//
// Go does not tell on whom a channel or a lock waits. So a circle through a goroutine that the Do
// has not started is not found. If the Do waits for a sync.Mutex, the holder of the lock may be the
// goroutine that waits for the Do. The library then logs both places once, and goes on waiting.

// A Lane is a stream, for whose Do a call can wait.
type Lane struct {
	Name   string
	Device string
	Runner *atomic.Uint64 // the number of the goroutine that runs the Dos; it tells lanes apart
}

// A waiter is a goroutine that has waited for long, for any of the lanes.
type waiter struct {
	lanes []Lane
	place string // of its call
}

// SetPatience sets after what time a wait is looked at, for tests. 0 means the usual 10 s.
func (p *Process) SetPatience(d time.Duration) { p.patience.Store(int64(d)) }

// Patience returns the time after which a wait is looked at.
func (p *Process) Patience() time.Duration {
	return cmp.Or(time.Duration(p.patience.Load()), 10*time.Second)
}

// A Late is a call that has waited for long for any of its lanes.
type Late struct {
	of    *Process
	self  uint64
	lanes []Lane
}

// Late notes that the calling goroutine has waited for long, in a call of the program's line `at`.
// The caller calls End when the wait ends.
func (p *Process) Late(lanes []Lane, at string) *Late {
	l := &Late{p, GoroutineID(), lanes}
	p.late.Store(l.self, waiter{lanes, at})
	return l
}

// End forgets the wait. The wait may be nil.
func (l *Late) End() {
	if l != nil {
		l.of.late.Delete(l.self)
	}
}

// Deadlock looks at all goroutines. It returns why the wait would never end, or "". If there is no
// circle, but the Do waits for a lock, `lock` describes this once for each pair of places. The
// caller's line is `at`.
func (l *Late) Deadlock(at string) (why, lock string) {
	patience := l.of.Patience()
	all := l.of.dump.recent(patience)
	why = l.of.deadlock(all, l.self, l.lanes)
	// A recent dump may be of an earlier Do, and a Do that is ending waits for its worker for a moment.
	for _, pause := range []time.Duration{0, min(patience/10, time.Second/10)} {
		if why != "" {
			time.Sleep(pause)
			all = goroutines()
			why = l.of.deadlock(all, l.self, l.lanes)
		}
	}
	if why == "" {
		lock = l.lock(all, at)
	}
	return why, lock
}

// lock describes a Do that waits for a lock, once for each pair of places.
func (l *Late) lock(all map[uint64]goroutine, at string) string {
	for _, lane := range l.lanes {
		g := all[lane.Runner.Load()]
		if !g.locked() {
			continue
		}
		if _, told := l.of.locks.LoadOrStore(at+" "+g.place, struct{}{}); !told {
			return fmt.Sprintf("a Do of %v, and that Do waits for a lock at %s (%s): if the waiting goroutine holds the lock, both wait for ever; release the lock before the call", lane.Name, g.place, g.state)
		}
	}
	return ""
}

// Forget forgets which locks were told.
func (p *Process) Forget() { p.locks.Clear() }

// Names names one lane, or the number of lanes.
func Names(lanes []Lane) string {
	if len(lanes) == 1 {
		return lanes[0].Name
	}
	return fmt.Sprintf("one of %d streams of %s", len(lanes), lanes[0].Device)
}

// deadlock returns the place where a Do is blocked, if that Do waits for the goroutine `self`,
// which waits for any of the given lanes. Otherwise it returns "".
func (p *Process) deadlock(all map[uint64]goroutine, self uint64, lanes []Lane) string {
	waiting := map[uint64]waiter{}
	p.late.Range(func(id, w any) bool {
		waiting[id.(uint64)] = w.(waiter)
		return true
	})
	// Stuck are the waiting goroutines that nothing outside of circles can wake. The loop takes the
	// others out, until there are none.
	for again := true; again; {
		again = false
		for id, w := range waiting {
			if slices.ContainsFunc(w.lanes, func(s Lane) bool { return len(behind(all, waiting, s)) == 0 }) {
				delete(waiting, id)
				again = true
			}
		}
	}
	seen := map[*atomic.Uint64]bool{}
	var leads func(targets []Lane) *atomic.Uint64
	leads = func(targets []Lane) *atomic.Uint64 {
		for _, s := range targets {
			if seen[s.Runner] {
				continue
			}
			seen[s.Runner] = true
			for _, id := range behind(all, waiting, s) {
				if id == self || leads(waiting[id].lanes) != nil {
					return s.Runner
				}
			}
		}
		return nil
	}
	if _, stuck := waiting[self]; !stuck {
		return ""
	}
	first := leads(lanes)
	if first == nil {
		return ""
	}
	runner := first.Load()
	if w, ok := waiting[runner]; ok {
		return fmt.Sprintf("it waits for %s at %s", Names(w.lanes), w.place)
	}
	g := all[runner]
	return fmt.Sprintf("it is blocked at %s (%s)", g.place, g.state)
}

// behind returns the waiting goroutines that the Do of s waits for.
func behind(all map[uint64]goroutine, waiting map[uint64]waiter, s Lane) []uint64 {
	runner := s.Runner.Load()
	if _, ok := waiting[runner]; ok {
		return []uint64{runner} // it waits for a stream alone, and runs in its own dump
	}
	if g, ok := all[runner]; !ok || !g.blocked() {
		return nil
	}
	var ids []uint64
	for id, g := range all {
		if !startedBy(all, id, runner) {
			continue
		}
		if _, ok := waiting[id]; ok {
			ids = append(ids, id)
		} else if !g.blocked() {
			return nil // it may wake the Do
		}
	}
	return ids
}

// startedBy reports whether the goroutine `id`, or one that started it, was started by `by`.
func startedBy(all map[uint64]goroutine, id, by uint64) bool {
	for range len(all) {
		g, ok := all[id]
		if !ok {
			return false
		}
		if g.started == by {
			return true
		}
		id = g.started
	}
	return false
}
