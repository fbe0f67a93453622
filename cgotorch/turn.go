package cgotorch

import (
	"bytes"
	"fmt"
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
//	that goroutine waits for a channel or a lock, so it waits for the goroutines that it started
//
// If a circle leads back to the call, the call fails. A goroutine that runs, sleeps, or waits for
// files or for the network is not part of a circle: the Do is only slow. Go does not tell on whom a
// channel waits. So a circle through a goroutine that the Do has not started is not found.

// usualPatience is the time of SetDeadlockTimeout at first.
const usualPatience = 10 * time.Second

// SetDeadlockTimeout is process-wide: it sets after what time a call that waits for a stream's Do
// looks for a deadlock. It returns the time before. The time is 10 s at first. 0 or less means that
// no call looks.
//
// A call fails with [ErrMisuse] if it waits for a Do that waits for the call's own goroutine, which
// the Do has started. The error names both places. A Do that is only slow never makes a call fail.
func SetDeadlockTimeout(d time.Duration) (before time.Duration) {
	if d == 0 {
		d = -1 // 0 stands for usualPatience
	}
	if before = time.Duration(streams.patience.Swap(int64(d))); before == 0 {
		before = usualPatience
	}
	return before
}

// The method `take` waits until the caller has the turn of s. It fails if it finds a deadlock.
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

	patience := time.Duration(streams.patience.Load())
	if patience == 0 {
		patience = usualPatience
	}
	if patience < 0 {
		<-granted
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var self uint64
	for {
		select {
		case <-granted:
			if self != 0 {
				streams.waiting.Delete(self)
			}
			return nil
		case <-timer.C:
		}
		if self == 0 {
			self = goroutineID()
			streams.waiting.Store(self, s)
		}
		if why := deadlock(self, s); why != "" && t.leave(granted) {
			streams.waiting.Delete(self)
			return refuse(op, ErrMisuse, "waited %v for %v, whose Do waits for this goroutine: the Do started it, and %s; call from the Do's goroutine with its Exec, or after the Do", patience, s, why)
		}
		timer.Reset(patience)
	}
}

// The method `leave` gives up a wait. It returns false if the caller has the turn already.
func (t *turn) leave(granted chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting, granted)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return i >= 0
}

// tryTake takes the turn if nobody has it.
func (t *turn) tryTake() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		return false
	}
	t.held = true
	return true
}

// The method `give` ends the caller's turn.
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

// The function `deadlock` returns the place where the Do of s is blocked, if that Do waits for the
// goroutine `self`, which waits for s. Otherwise it returns "".
func deadlock(self uint64, s *Stream) string {
	all := goroutines()
	seen := map[*Stream]bool{}
	var leads func(s *Stream) bool
	leads = func(s *Stream) bool {
		runner := s.runner.Load()
		g, ok := all[runner]
		if !ok || seen[s] || !g.blocked() {
			return false
		}
		seen[s] = true
		found := false
		streams.waiting.Range(func(id, next any) bool {
			if startedBy(all, id.(uint64), runner) {
				found = id == self || leads(next.(*Stream))
			}
			return !found
		})
		return found
	}
	if !leads(s) {
		return ""
	}
	g := all[s.runner.Load()]
	return fmt.Sprintf("it is blocked at %s (%s)", g.place, g.state)
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

// blocked reports whether the goroutine waits for other goroutines.
func (g goroutine) blocked() bool {
	switch g.state {
	case "chan receive", "chan send", "select", "semacquire", "sync.WaitGroup.Wait", "sync.Cond.Wait",
		"sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock":
		return true
	}
	return false
}

// The function `goroutines` returns all goroutines by their numbers. It stops the world.
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
		g := goroutine{state: state}
		for i := 1; i < len(lines); i++ {
			if rest, ok := strings.CutPrefix(lines[i], "created by "); ok {
				if _, by, ok := strings.Cut(rest, " in goroutine "); ok {
					g.started, _ = strconv.ParseUint(by, 10, 64)
				}
				break
			}
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "\t") {
				if g.place == "" {
					g.place = placeIn(lines[i], lines[i+1])
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
