package cgotorch

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A turn is the lock of a stream. The waiting calls get it in their order. See Note [Deadlocks of
// streams].
type turn struct {
	mu      sync.Mutex
	held    bool
	waiting []chan struct{} // the first one gets the turn next; each has room for one value
}

// Note [Deadlocks of streams]
//
// A Do must not wait for a goroutine that waits for the Do's stream. Neither of them would ever go
// on. After the time of SetDeadlockTimeout a waiting call looks at the stacks of all goroutines. It
// looks for a circle of two kinds of steps:
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

// usualPatience is the time of SetDeadlockTimeout at first.
const usualPatience = 10 * time.Second

// SetDeadlockTimeout is process-wide: it sets after what time a call that waits for a stream's Do
// looks for a deadlock. It returns the time before. The time is 10 s at first. 0 or less means that
// no call looks.
//
// A call fails with [ErrMisuse] if it waits for a Do that waits for the call's own goroutine: the
// Do has started it, or waits for its Do. The error names both places. A Do that is only slow makes
// no call fail, but for one case: it waits for a timer alone, and has started the call's goroutine.
//
// A Do may also wait for a [sync.Mutex] that the waiting goroutine holds. Go does not tell who
// holds a lock, so such a call waits for ever. Both places are logged with [slog.Warn]. Hold no
// lock while you call Do, if a Do takes that lock too.
func SetDeadlockTimeout(d time.Duration) (before time.Duration) {
	if d == 0 {
		d = -1 // 0 stands for usualPatience
	}
	if before = time.Duration(streams.patience.Swap(int64(d))); before == 0 {
		before = usualPatience
	}
	return before
}

// take waits until the caller has the turn of s. It fails if it finds a deadlock.
func (t *turn) take(op string, s *Stream) error {
	t.mu.Lock()
	if !t.held {
		t.held = true
		t.mu.Unlock()
		return nil
	}
	granted := make(chan struct{}, 1)
	t.waiting = append(t.waiting, granted)
	t.mu.Unlock()

	var e *Error
	awaitTurn(op, []*Stream{s}, granted, nil, func(why *Error) bool {
		if t.leave(granted) {
			e = why
		}
		return e != nil
	})
	if e != nil {
		return e
	}
	return nil
}

// awaitTurn waits until the channel `granted` has a value or `done` is closed. After the time of
// SetDeadlockTimeout it looks for deadlocks of a call that waits for any of the given streams. It
// then calls giveUp with the error, and returns if giveUp returns true.
func awaitTurn[T any](op string, lanes []*Stream, granted <-chan T, done <-chan struct{}, giveUp func(*Error) bool) (got T, ok bool) {
	patience := time.Duration(streams.patience.Load())
	if patience == 0 {
		patience = usualPatience
	}
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTicker(patience)
		defer timer.Stop()
		late = timer.C
	}
	var self uint64
	defer func() {
		if self != 0 {
			streams.waiting.Delete(self)
		}
	}()
	for {
		select {
		case got, ok = <-granted:
			return got, ok
		case <-done:
			return got, false
		case <-late:
		}
		if self == 0 {
			self = goroutineID()
			streams.waiting.Store(self, waiter{lanes, caller()})
		}
		all := streams.dump.recent(patience)
		why := deadlock(all, self, lanes)
		// A recent dump may be of an earlier Do, and a Do that is ending waits for its worker for a moment.
		for _, pause := range []time.Duration{0, min(patience/10, time.Second/10)} {
			if why != "" {
				time.Sleep(pause)
				all = goroutines()
				why = deadlock(all, self, lanes)
			}
		}
		if why != "" {
			e := refuse(op, ErrMisuse, "waited %v for %s, whose Do waits for this goroutine, and %s; call from the Do's goroutine with its Exec, or after the Do", patience, namesOf(lanes), why)
			if giveUp(e) {
				return got, false
			}
		}
		tellLock(op, all, lanes)
	}
}

// namesOf names one stream, or the number of streams.
func namesOf(lanes []*Stream) string {
	if len(lanes) == 1 {
		return lanes[0].String()
	}
	return fmt.Sprintf("one of %d streams of %v", len(lanes), lanes[0].device)
}

// tellLock logs a call that waits for a Do that waits for a lock, once for each pair of places.
func tellLock(op string, all map[uint64]goroutine, lanes []*Stream) {
	for _, s := range lanes {
		g := all[s.runner.Load()]
		if !g.locked() {
			continue
		}
		here := caller()
		if _, told := streams.locked.LoadOrStore(here+" "+g.place, struct{}{}); !told {
			slog.Warn(fmt.Sprintf("cgotorch: %s waits for a Do of %v, and that Do waits for a lock at %s: if the waiting goroutine holds the lock, both wait for ever; release the lock before the call", op, s, g.place), "state", g.state, "at", here)
		}
	}
}

// leave gives up a wait. It returns false if the caller has the turn already.
func (t *turn) leave(granted chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, granted)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return i >= 0
}

// give ends the caller's turn.
func (t *turn) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.held = false
		return
	}
	next := t.waiting[0]
	t.waiting = slices.Delete(t.waiting, 0, 1)
	next <- struct{}{}
}

// A goroutine is an entry of a dump of all goroutines.
type goroutine struct {
	state   string // such as "chan receive"
	started uint64 // the goroutine that started this goroutine
	place   string // file:line of the innermost frame of the program
}

// A waiter is a goroutine that has waited for long, for any of the streams.
type waiter struct {
	lanes []*Stream
	place string // of its call
}

// deadlock returns the place where a Do is blocked, if that Do waits for the goroutine `self`,
// which waits for any of the given streams. Otherwise it returns "".
func deadlock(all map[uint64]goroutine, self uint64, lanes []*Stream) string {
	waiting := map[uint64]waiter{}
	streams.waiting.Range(func(id, w any) bool {
		waiting[id.(uint64)] = w.(waiter)
		return true
	})
	// Stuck are the waiting goroutines that nothing outside of circles can wake. The loop takes the
	// others out, until there are none.
	for again := true; again; {
		again = false
		for id, w := range waiting {
			if slices.ContainsFunc(w.lanes, func(s *Stream) bool { return len(behind(all, waiting, s)) == 0 }) {
				delete(waiting, id)
				again = true
			}
		}
	}
	seen := map[*Stream]bool{}
	var leads func(targets []*Stream) *Stream
	leads = func(targets []*Stream) *Stream {
		for _, s := range targets {
			if seen[s] {
				continue
			}
			seen[s] = true
			for _, id := range behind(all, waiting, s) {
				if id == self || leads(waiting[id].lanes) != nil {
					return s
				}
			}
		}
		return nil
	}
	if _, stuck := waiting[self]; !stuck {
		return ""
	}
	s := leads(lanes)
	if s == nil {
		return ""
	}
	runner := s.runner.Load()
	if w, ok := waiting[runner]; ok {
		return fmt.Sprintf("it waits for %s at %s", namesOf(w.lanes), w.place)
	}
	g := all[runner]
	return fmt.Sprintf("it is blocked at %s (%s)", g.place, g.state)
}

// behind returns the waiting goroutines that the Do of s waits for.
func behind(all map[uint64]goroutine, waiting map[uint64]waiter, s *Stream) []uint64 {
	runner := s.runner.Load()
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

// locked reports whether the goroutine waits for a lock.
func (g goroutine) locked() bool {
	switch g.state {
	case "sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock":
		return true
	}
	return false
}

// blocked reports whether the goroutine waits for other goroutines.
func (g goroutine) blocked() bool {
	switch g.state {
	case "chan receive", "chan send", "select", "semacquire", "sync.WaitGroup.Wait", "sync.Cond.Wait":
		return true
	}
	return g.locked()
}

// dump is the newest dump of all goroutines. Thousands of calls that wait for a slow Do share it,
// because a dump stops the world.
type dump struct {
	mu   sync.Mutex
	all  map[uint64]goroutine
	when time.Time
}

// recent returns a dump of at most this age.
func (d *dump) recent(age time.Duration) map[uint64]goroutine {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil || time.Since(d.when) > age {
		d.when = time.Now() // before the dump, which is therefore no older
		d.all = goroutines()
	}
	return d.all
}

// goroutines returns all goroutines by their numbers. It stops the world.
func goroutines() map[uint64]goroutine {
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) || n >= 64<<20 {
			text = text[:n]
			break
		}
		text = make([]byte, 2*len(text))
	}
	all := map[uint64]goroutine{}
	for _, block := range strings.Split(string(text), "\n\n") {
		lines := strings.Split(block, "\n")
		id, state, ok := parseHead(lines[0])
		if !ok {
			continue
		}
		g := goroutine{state: strings.Clone(state)} // a substring would keep the whole text
		for i := 1; i < len(lines); i++ {
			if rest, ok := strings.CutPrefix(lines[i], "created by "); ok {
				if _, by, ok := strings.Cut(rest, " in goroutine "); ok {
					g.started, _ = strconv.ParseUint(by, 10, 64)
				}
				break
			}
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "\t") {
				if g.place == "" {
					g.place = strings.Clone(placeIn(lines[i], lines[i+1]))
				}
				i++
			}
		}
		all[id] = g
	}
	return all
}

// parseHead parses a line such as "goroutine 35 [chan receive, 2 minutes, locked to thread]:".
func parseHead(line string) (id uint64, state string, ok bool) {
	rest, ok := strings.CutPrefix(line, "goroutine ")
	if !ok {
		return 0, "", false
	}
	number, rest, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseUint(number, 10, 64)
	_, state, ok = strings.Cut(rest, "[")
	state, _, _ = strings.Cut(state, "]")
	state, _, _ = strings.Cut(state, ",")
	state, _, _ = strings.Cut(state, " (") // "(durable)", "(scan)", "(nil chan)"
	return id, state, ok && err == nil
}

// placeIn returns file:line of a frame of the program, and "" for a frame of this library or of
// Go's own packages that wait.
func placeIn(call, location string) string {
	if i := strings.LastIndexByte(call, '('); i > 0 {
		call = call[:i]
	}
	location = strings.TrimSpace(location)
	if i := strings.LastIndex(location, " +0x"); i > 0 {
		location = location[:i]
	}
	file := location
	if i := strings.LastIndexByte(file, ':'); i > 0 {
		file = file[:i]
	}
	if strings.HasPrefix(call, "sync.") || strings.HasPrefix(call, "internal/") || ownFrame(runtime.Frame{Function: call, File: file}) {
		return ""
	}
	return location
}

// goroutineID returns the number of the calling goroutine, as in a dump.
func goroutineID() uint64 {
	text := make([]byte, 64)
	line, _, _ := bytes.Cut(text[:runtime.Stack(text, false)], []byte("\n"))
	id, _, _ := parseHead(string(line))
	return id
}
