package cgotorch

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
)

// A turn is the lock of a stream. Waiting calls get it in the order in which they came. See Note
// [Deadlocks of streams] in internal/mistakes.
type turn struct {
	mu      sync.Mutex
	held    bool
	waiting []chan struct{} // the first one gets the turn next; each has room for one value
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

// awaitTurn waits until the channel `granted` has a value or `done` is closed. After 10 s it looks
// for deadlocks of a call that waits for any of the given streams. It then calls giveUp with the
// error, and returns if giveUp returns true.
func awaitTurn[T any](op string, of []*Stream, granted <-chan T, done <-chan struct{}, giveUp func(*Error) bool) (got T, ok bool) {
	patience := streams.mistakes.Patience()
	looks := time.NewTicker(patience)
	defer looks.Stop()
	var late *mistakes.Late
	var lanes []mistakes.Lane
	defer func() { late.End() }()
	for {
		select {
		case got, ok = <-granted:
			return got, ok
		case <-done:
			return got, false
		case <-looks.C:
		}
		at := caller()
		if late == nil {
			lanes = lanesOf(of)
			late = streams.mistakes.Late(lanes, at)
		}
		switch why, lock := late.Deadlock(at); {
		case why != "" && giveUp(refuse(op, ErrMisuse, "waited %v for %s, whose Do waits for this goroutine, and %s; call from the Do's goroutine with its Exec, or after the Do", patience, mistakes.Names(lanes), why)):
			return got, false
		case lock != "":
			slog.Warn(fmt.Sprintf("cgotorch: %s waits for %s", op, lock), "at", at)
		}
	}
}

func lanesOf(of []*Stream) []mistakes.Lane {
	lanes := make([]mistakes.Lane, len(of))
	for i, s := range of {
		lanes[i] = mistakes.Lane{Name: s.String(), Device: s.device.String(), Runner: &s.runner}
	}
	return lanes
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
