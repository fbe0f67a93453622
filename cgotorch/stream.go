package cgotorch

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Stream is an in-order queue of work on one device. On the CPU it runs its work at once. A
// Stream may be used from any goroutine. Dos on one stream exclude each other.
type Stream struct {
	device    Device
	isDefault bool
	name      string
	named     bool // by StreamOptions

	// A Do holds mu while it runs. Stream's other methods then take their place after it.
	mu     sync.Mutex
	worker *worker // guarded by mu

	state  sync.Mutex // held for moments; guards the fields below
	h      *ct.Stream
	users  int                      // Dos of other streams that use this stream
	sides  map[purpose]*sideStreams // for Dos of this stream
	closed bool
}

// StreamOptions are the options of [NewStream]. The zero value is a stream of normal priority.
type StreamOptions struct {
	HighPriority bool // the device prefers the waiting work of this stream
	// Name is shown in traces and texts. "" means "stream N", where N counts the streams made.
	Name string
}

// streams is the state of all streams of the process. CUDA has one default stream for each
// device, and CUDA numbers streams by itself.
var streams struct {
	sync.Mutex
	defaults map[Device]*Stream // made on first use
	made     atomic.Int64       // by NewStream and ExternalStream

	// names holds the name of each CUDA stream for traces and reports, by number. A new stream
	// takes the number of a closed one, so the map stays small. Every CPU stream has a new number.
	// The map holds it where the program named the stream, or while the stream checker is on.
	names sync.Map // uint64 -> string
}

const defaultName = "default stream"

func streamName(given string) string {
	if n := streams.made.Add(1); given == "" {
		return fmt.Sprintf("stream %d", n)
	}
	return given
}

func (s *Stream) register() {
	if s.device.IsCUDA() || theChecker.on.Load() || s.named {
		streams.names.Store(ct.StreamID(s.h), s.name)
	}
}

// DefaultStream returns the device's default stream, the same Stream at each call. It does not
// fail for a missing device: the stream's methods then fail with [ErrNoDevice].
func DefaultStream(d Device) *Stream {
	streams.Lock()
	defer streams.Unlock()
	s := streams.defaults[d]
	if s == nil {
		if streams.defaults == nil {
			streams.defaults = map[Device]*Stream{}
		}
		s = &Stream{device: d, isDefault: true, name: defaultName}
		streams.defaults[d] = s
	}
	return s
}

// NewStream makes a stream that does not wait for the default stream. The caller must Close it.
// It fails with [ErrNoDevice] or [ErrDeviceLost].
func NewStream(d Device, o StreamOptions) (*Stream, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	var priority int32
	if o.HighPriority {
		priority = -1
	}
	s := &Stream{device: d, name: streamName(o.Name), named: o.Name != ""}
	if err := check("NewStream", ct.StreamNew(d.c(), priority, &s.h)); err != nil {
		return nil, err
	}
	s.register()
	return s, nil
}

// ExternalStream returns a Stream for a cudaStream_t of another library. Work can then be
// enqueued behind the work of that library. For 0 and cudaStreamLegacy it returns
// [DefaultStream]. Dos of two Streams made of one cudaStream_t do not exclude each other.
//
// The caller must Close the Stream. The other library destroys its own stream after Close.
// Where tensors were made or used on it, [Device.ReleaseCachedMemory] must come first.
//
// ExternalStream fails with [ErrInvalidArgument] for a stream of another device, and on the
// CPU. The same holds for cudaStreamPerThread, which is another stream on each thread.
func ExternalStream(d Device, stream uintptr) (*Stream, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	s := &Stream{device: d, name: streamName("")}
	if err := check("ExternalStream", ct.StreamExternal(d.c(), stream, &s.h)); err != nil {
		return nil, err
	}
	if ct.StreamNative(s.h) == nil {
		ct.StreamFree(s.h)
		return DefaultStream(d), nil
	}
	s.register()
	return s, nil
}

// Native returns the stream as a cudaStream_t for other libraries, valid until Close. It
// returns 0 for a default stream and on the CPU.
func (s *Stream) Native() (uintptr, error) {
	h, err := s.handle("Stream.Native")
	if err != nil {
		return 0, err
	}
	return uintptr(ct.StreamNative(h)), nil
}

// Name returns the name in [StreamOptions], "stream N", or "default stream".
func (s *Stream) Name() string { return s.name }

// String returns the name and the device, as in "default stream of cuda:0".
func (s *Stream) String() string { return s.name + " of " + s.device.String() }

// ID returns the number that package trace's records have for the stream. It is valid until
// Close: a later stream may have the same number.
func (s *Stream) ID() (uint64, error) {
	h, err := s.handle("Stream.ID")
	if err != nil {
		return 0, err
	}
	return ct.StreamID(h), nil
}

// Device returns the device that the stream's work runs on.
func (s *Stream) Device() Device { return s.device }

// lock takes the stream for one call and returns its handle. On success the caller unlocks
// s.mu.
func (s *Stream) lock(op string) (*ct.Stream, error) {
	if w := currentWorker(); w != nil && w.stream == s {
		return nil, refuse(op, ErrMisuse,
			"called inside a Do of this stream, which it would wait for: use the Exec's Record, Wait or On")
	}
	if s == nil {
		return nil, noStream(op)
	}
	s.mu.Lock() //edge:dos-exclude-each-other TestDo_ExcludesOthers
	h, err := s.handle(op)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return h, nil
}

func noStream(op string) *Error {
	return refuse(op, ErrInvalidArgument,
		"the stream is nil, or was not made by NewStream, DefaultStream or ExternalStream")
}

// handle returns the C handle. The default stream's is made on first use.
func (s *Stream) handle(op string) (*ct.Stream, error) {
	if s == nil {
		return nil, noStream(op)
	}
	s.state.Lock()
	defer s.state.Unlock()
	return s.open(op)
}

// open is handle with s.state held.
func (s *Stream) open(op string) (*ct.Stream, error) {
	if s.closed {
		return nil, refuse(op, ErrClosed, "the stream is closed")
	}
	if s.h == nil && !s.isDefault {
		return nil, noStream(op)
	}
	if s.h == nil {
		if err := ready(); err != nil {
			return nil, err
		}
		if err := check(op, ct.StreamDefault(s.device.c(), &s.h)); err != nil {
			return nil, err
		}
		s.register()
	}
	return s.h, nil
}

// Do runs fn on the stream's own OS thread with an [Exec] that enqueues on this stream. It
// waits until fn has returned, and does not wait for the device. Tensors made in fn and not
// kept are freed when fn returns.
//
// Do returns fn's error, or the [*Error] of the first operator that failed in fn. A panic in fn
// is raised again in the caller as a [*Panic]. [runtime.Goexit] in fn ends the caller too.
//
// A Do inside any Do fails with [ErrMisuse]: use [Exec.On] for another stream. fn must not wait
// for another goroutine that uses this stream.
func (s *Stream) Do(fn func(x *Exec) error) error {
	if currentWorker() != nil {
		return refuse("Stream.Do", ErrMisuse, "a Do inside a Do: use Exec.On for another stream")
	}
	out := s.do(fn)
	if theChecker.on.Load() {
		tellRaces()
	}
	switch {
	case out.exited:
		runtime.Goexit()
	case out.panicked != nil:
		panic(out.panicked)
	case out.err == nil && theChecker.on.Load():
		return raceError()
	}
	return out.err
}

// do is Do up to the outcome. The stream is free again when it returns.
func (s *Stream) do(fn func(x *Exec) error) outcome {
	h, err := s.lock("Stream.Do")
	if err != nil {
		return outcome{err: err}
	}
	defer s.mu.Unlock()
	if s.worker == nil {
		s.worker = startWorker(s)
	}
	out := s.worker.do(h, fn)
	if out.exited {
		s.worker = nil // the worker has ended with its goroutine
	}
	return out
}

// use is handle for a Do of another stream, which calls unuse when it ends. It does not wait
// for a Do of this stream.
func (s *Stream) use(op string) (*ct.Stream, error) {
	if s == nil {
		return nil, noStream(op)
	}
	s.state.Lock()
	defer s.state.Unlock()
	h, err := s.open(op)
	if err == nil {
		s.users++ //edge:on-counts TestStream_CloseUnderOn
	}
	return h, err
}

func (s *Stream) unuse() {
	s.state.Lock()
	s.users--
	s.state.Unlock()
}

// Record returns an event behind all work enqueued on the stream so far. It waits for a Do of
// this stream, and not for the device. The caller closes the event.
func (s *Stream) Record() (*Event, error) { return s.record("Stream.Record", 0) }

// RecordTiming is [Stream.Record] for an event whose time [Event.Elapsed] can read.
func (s *Stream) RecordTiming() (*Event, error) { return s.record("Stream.RecordTiming", 1) }

// TryRecord is [Stream.Record], but returns nil at once where Record would wait for a Do of
// this stream.
func (s *Stream) TryRecord() (*Event, error) {
	if s == nil {
		return nil, noStream("Stream.TryRecord")
	}
	if w := currentWorker(); (w != nil && w.stream == s) || !s.mu.TryLock() {
		return nil, nil
	}
	defer s.mu.Unlock()
	h, err := s.handle("Stream.TryRecord")
	if err != nil {
		return nil, err
	}
	return recordEvent("Stream.TryRecord", h, 0)
}

func (s *Stream) record(op string, timing int32) (*Event, error) {
	h, err := s.lock(op)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return recordEvent(op, h, timing)
}

// Wait makes later work of the stream run after the event. The host does not wait for the
// device. It waits for a Do of this stream.
func (s *Stream) Wait(e *Event) error {
	h, err := s.lock("Stream.Wait")
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	return e.awaitedBy("Stream.Wait", h, nil) //edge:stream-wait TestCheckStreams_FindsMistakes checked
}

// Query reports whether all work enqueued so far is done. It does not wait for the device.
func (s *Stream) Query() (bool, error) {
	h, err := s.lock("Stream.Query")
	if err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	var done int32
	err = check("Stream.Query", ct.StreamQuery(h, &done))
	return done != 0, err
}

// Synchronize waits until all work enqueued so far is done.
func (s *Stream) Synchronize() error {
	h, err := s.lock("Stream.Synchronize")
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	waits("Stream.Synchronize")
	return check("Stream.Synchronize", ct.StreamSynchronize(h))
}

// Close waits for a running Do, ends the stream's thread and gives the stream back. Work that
// is already enqueued still runs. A default stream can be used again afterwards. Closing twice
// does nothing.
//
// Close fails with [ErrMisuse] while a Do of another stream uses this stream, by [Exec.On].
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	if w := currentWorker(); w != nil && w.stream == s {
		return refuse("Stream.Close", ErrMisuse, "called inside a Do of this stream")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Lock()
	defer s.state.Unlock()
	if s.users > 0 { //edge:on-keeps-stream-open TestStream_CloseUnderOn
		return refuse("Stream.Close", ErrMisuse, "a Do of another stream uses this one: close it afterwards")
	}
	if s.worker != nil {
		s.worker.stop()
		s.worker = nil
	}
	s.closeSides()
	if !s.device.IsCUDA() && !theChecker.on.Load() {
		streams.names.Delete(ct.StreamID(s.h))
	}
	ct.StreamFree(s.h) //edge:stream-freed TestStream_AfterClose
	s.h = nil
	s.closed = !s.isDefault
	return nil
}
