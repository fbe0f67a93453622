package cgotorch

import (
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Event is a mark in a stream that another stream, or the host, can wait for. On the CPU it is done when it is recorded.
type Event struct {
	mu      sync.RWMutex // Close alone takes it whole
	h       *ct.Event
	cleanup runtime.Cleanup

	once sync.Once
	done <-chan struct{} // set by once

	capture *graphWork // in which it was recorded, so that it is a place in a graph and no time; or nil
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

// lock returns the handle, which stays until the caller unlocks e.mu for reading.
func (e *Event) lock(op string) (*ct.Event, error) { return e.lockIn(op, nil) }

// lockIn is lock for use in a capture, or outside of one where that is nil.
func (e *Event) lockIn(op string, capture *graphWork) (*ct.Event, error) {
	if e == nil {
		return nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the event is nil"}
	}
	switch {
	case e.capture == capture:
	case e.capture == nil:
		return nil, &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "the event was recorded outside the capture: wait for it on the stream that the graph is launched on, before the launch"}
	default:
		return nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the event was recorded in a capture, which makes it a place in that graph: record one behind the launch"}
	}
	e.mu.RLock()
	if e.h == nil {
		e.mu.RUnlock()
		return nil, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the event is closed, or was never recorded: Record returns events"}
	}
	return e.h, nil
}

func (e *Event) awaitedBy(op string, stream *ct.Stream, capture *graphWork) error {
	h, err := e.lockIn(op, capture)
	if err != nil {
		return err
	}
	defer e.mu.RUnlock()
	return check(op, ct.StreamWait(stream, h))
}

// Query reports whether the event is done.
func (e *Event) Query() (bool, error) {
	h, err := e.lock("Event.Query")
	if err != nil {
		return false, err
	}
	defer e.mu.RUnlock()
	var done int32
	err = check("Event.Query", ct.EventQuery(h, &done))
	return done != 0, err
}

// Poll reports whether the event is done, as [Event.Query] does, and the stream checker learns nothing
// from it. It is for statistics: a program that goes on because an event is done asks Query.
func (e *Event) Poll() (bool, error) { return e.poll("Event.Poll") }

func (e *Event) poll(op string) (bool, error) {
	h, err := e.lock(op)
	if err != nil {
		return false, err
	}
	defer e.mu.RUnlock()
	var done int32
	err = check(op, ct.EventDone(h, &done))
	return done != 0, err
}

// Synchronize waits until the event is done, holding neither a core nor an OS thread; see [Event.Done].
func (e *Event) Synchronize() error { return e.synchronize("Event.Synchronize") }

func (e *Event) synchronize(op string) error {
	if _, err := e.lock(op); err != nil {
		return err
	}
	e.mu.RUnlock()
	waits(op)
	<-e.Done() //edge:event-synchronize TestCheckStreams_HostWaits checked
	h, err := e.lock(op)
	if err != nil {
		return nil // closed meanwhile, and done
	}
	defer e.mu.RUnlock()
	return check(op, ct.EventSynchronize(h)) // it may be done because the device is lost
}

// doneUnchecked returns a channel like that of Done, of which the stream checker learns nothing.
func (e *Event) doneUnchecked(op string) (<-chan struct{}, error) {
	h, err := e.lock(op)
	if err != nil {
		return nil, err
	}
	defer e.mu.RUnlock()
	return notify(h, false)
}

// Done returns a channel that is closed when the event is done, or its device lost: [Event.Query] says which. It does not wait, and
// however many goroutines wait for however many channels, none holds an OS thread; they learn of it within some 20 us. It is the
// same channel at each call, stays good after Close, and is closed already for an event that was closed before.
func (e *Event) Done() <-chan struct{} {
	if e == nil {
		return alreadyDone
	}
	e.once.Do(func() {
		h, err := e.lock("Event.Done")
		if err != nil {
			e.done = alreadyDone
			return
		}
		defer e.mu.RUnlock()
		if e.done, err = notify(h, true); err != nil { // no memory: the plain way, here
			_ = check("Event.Done", ct.EventSynchronize(h))
			e.done = alreadyDone
		}
	})
	return e.done
}

// Elapsed is the number of milliseconds from start to e on the device. Both must have been recorded with
// [Stream.RecordTiming] and be done.
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

// Close frees the event; waits for it that are enqueued or under way stay in force. Closing twice does nothing.
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

// await makes x's stream wait for the work of y's so far; also when x has failed.
func (x *Exec) await(op string, y *Exec) error { return awaitStream(op, x.c.Stream, y.c.Stream) }

// awaitStream makes one stream wait for another one's work so far.
func awaitStream(op string, waiting, first *ct.Stream) error {
	e, err := recordEvent(op, first, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	return e.awaitedBy(op, waiting, nil)
}
