package cgotorch

import (
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Event is a mark in a stream that another stream, or the host, can wait for. On the CPU an event
// is done when it is recorded. A nil Event is done. An Event may be used from any goroutine.
type Event struct {
	mu      sync.RWMutex // only Close locks mu for writing
	h       *ct.Event
	cleanup runtime.Cleanup

	once sync.Once
	done <-chan struct{} // the channel that Done returns; the field `once` guards it

	// `capture` is the capture in which the event was recorded, or nil. An event of a capture marks a
	// place in the graph. It does not mark a moment in time.
	capture *graphWork
}

func recordEvent(op string, stream *ct.Stream, timing int32) (*Event, error) {
	var h *ct.Event
	if err := check(op, ct.EventRecord(stream, timing, &h)); err != nil {
		return nil, err
	}
	return ownEvent(h), nil
}

func ownEvent(h *ct.Event) *Event {
	e := &Event{h: h}
	e.cleanup = runtime.AddCleanup(e, freeEvent, h)
	return e
}

func freeEvent(h *ct.Event) { ct.EventFree(h) }

// lock locks e.mu for reading and returns the handle. The handle stays valid until the caller
// unlocks e.mu.
func (e *Event) lock(op string) (*ct.Event, error) { return e.lockIn(op, nil) }

// lockIn does the same as the method `lock`, for a use of the event inside the given capture. A
// nil capture means a use outside captures.
func (e *Event) lockIn(op string, capture *graphWork) (*ct.Event, error) {
	if e == nil {
		return nil, refuse(op, ErrInvalidArgument, "the event is nil")
	}
	switch {
	case e.capture == capture:
	case e.capture == nil:
		return nil, refuse(op, ErrNotCapturable,
			"the event was recorded outside the capture: wait for it on the stream that the graph is launched on, before the launch")
	default:
		return nil, refuse(op, ErrInvalidArgument,
			"the event was recorded in a capture, which makes it a place in that graph: record one behind the launch")
	}
	e.mu.RLock()
	if e.h == nil {
		e.mu.RUnlock()
		return nil, refuse(op, ErrClosed, "the event is closed, or was never recorded: Record returns events")
	}
	return e.h, nil
}

func (e *Event) awaitedBy(op string, stream *ct.Stream, capture *graphWork) error {
	if e == nil {
		return nil
	}
	h, err := e.lockIn(op, capture)
	if err != nil {
		return err
	}
	defer e.mu.RUnlock()
	return check(op, ct.StreamWait(stream, h))
}

// Query reports whether the event is done. It does not wait.
func (e *Event) Query() (bool, error) { return e.ask("Event.Query", ct.EventQuery) }

// Poll reports whether the event is done. It does not wait. The stream checker learns nothing
// from Poll, so Poll is only for statistics. A program that goes on because an event is done must
// call [Event.Query].
func (e *Event) Poll() (bool, error) { return e.ask("Event.Poll", ct.EventDone) }

// ask reports whether the event is done, as the core's function `tell` says.
func (e *Event) ask(op string, tell func(*ct.Event, *int32) *ct.Status) (bool, error) {
	if e == nil {
		return true, nil
	}
	h, err := e.lock(op)
	if err != nil {
		return false, err
	}
	defer e.mu.RUnlock()
	var done int32
	err = check(op, tell(h, &done))
	return done != 0, err
}

// Synchronize waits until the event is done. While it waits, it uses no CPU time and no OS
// thread: see [Event.Done].
func (e *Event) Synchronize() error { return e.synchronize("Event.Synchronize") }

func (e *Event) synchronize(op string) error {
	if e == nil {
		return nil
	}
	h, err := e.lock(op)
	if err != nil {
		return err
	}
	// A Close after this does not end the wait.
	done := e.notified(h) //edge:event-synchronize TestCheckStreams_HostWaits checked
	e.mu.RUnlock()
	waits(op)
	<-done
	h, err = e.lock(op)
	if err != nil {
		return nil // the event is done, and was closed meanwhile
	}
	defer e.mu.RUnlock()
	return check(op, ct.EventSynchronize(h)) // returns an error if the event is done because the device is lost
}

// doneUnchecked is Done, but the stream checker learns nothing from the wait.
func (e *Event) doneUnchecked(op string) (<-chan struct{}, error) {
	h, err := e.lock(op)
	if err != nil {
		return nil, err
	}
	defer e.mu.RUnlock()
	return notify(h, false)
}

// Done returns a channel that is closed when the event is done or its device is lost. If the
// device is lost, [Event.Query] fails. Done does not wait. A goroutine that receives from the
// channel holds no OS thread, so many goroutines can receive. They go on within about 20 us after
// the event.
//
// Each call returns the same channel. The channel can still be used after Close. If the event is
// closed before the first call of Done, Done returns a closed channel.
func (e *Event) Done() <-chan struct{} {
	if e == nil {
		return alreadyDone()
	}
	h, err := e.lock("Event.Done")
	if err != nil {
		e.once.Do(func() { e.done = alreadyDone() })
		return e.done
	}
	defer e.mu.RUnlock()
	return e.notified(h)
}

// notified returns the channel of Done. The caller holds e.mu for reading.
func (e *Event) notified(h *ct.Event) <-chan struct{} {
	e.once.Do(func() {
		var err error
		if e.done, err = notify(h, true); err != nil { // there is no memory for a notification, so Done itself waits
			_ = check("Event.Done", ct.EventSynchronize(h))
			e.done = alreadyDone()
		}
	})
	return e.done
}

// Elapsed returns the number of milliseconds between the events `start` and e on the device. Both
// events must have been recorded with [Stream.RecordTiming] or [Exec.RecordTiming], and both must
// be done.
func (e *Event) Elapsed(start *Event) (float64, error) {
	h, err := e.lock("Event.Elapsed")
	if err != nil {
		return 0, err
	}
	defer e.mu.RUnlock()
	if start == e {
		return 0, nil
	}
	from, err := start.lock("Event.Elapsed")
	if err != nil {
		return 0, err
	}
	defer start.mu.RUnlock()
	var ms float64
	err = check("Event.Elapsed", ct.EventElapsed(from, h, &ms))
	return float64(ms), err
}

// Close frees the event. If a stream or a goroutine already waits for the event, its wait goes on
// until the event is done. A second Close does nothing.
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()         //edge:event-close-waits TestEvent_CloseWaitsForCallsUnderWay
	defer e.mu.Unlock() //edge:event-close-waits also
	if e.h != nil {
		e.cleanup.Stop()
		ct.EventFree(e.h) //edge:event-freed TestEvent
		e.h = nil
	}
	return nil
}

// await makes x's stream wait for the work enqueued so far on y's stream. It also works if x's Do
// has already failed.
func (x *Exec) await(op string, y *Exec) error { return awaitStream(op, x.c.Stream, y.c.Stream) }

// awaitStream makes the stream `waiting` wait for the work enqueued so far on the stream `first`.
func awaitStream(op string, waiting, first *ct.Stream) error {
	e, err := recordEvent(op, first, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	return e.awaitedBy(op, waiting, nil)
}
