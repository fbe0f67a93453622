package cgotorch

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Stream is an in-order queue of work on one device. On the CPU it runs its work at once. A Stream may be used from any
// goroutine; Dos on one stream exclude each other.
type Stream struct {
	device    Device
	isDefault bool
	name      string
	named     bool // by StreamOptions

	mu     sync.Mutex // held by a Do while it runs, so that Stream's other methods take their place after it
	worker *worker    // guarded by mu

	state  sync.Mutex // held for moments; guards what follows
	h      *ct.Stream
	users  int                      // Dos of other streams that use this one
	sides  map[purpose]*sideStreams // for Dos of this stream
	closed bool
}

// StreamOptions are the options of [NewStream]; the zero value is a stream of normal priority.
type StreamOptions struct {
	HighPriority bool   // the device prefers this stream's waiting work to that of others
	Name         string // shown in traces and texts; "" is "stream N", where N counts the streams made
}

// streams is what is known of all streams of the process: CUDA has one default stream a device, and numbers streams by itself.
var streams struct {
	sync.Mutex
	defaults map[Device]*Stream // made on first use
	made     atomic.Int64       // by NewStream and ExternalStream

	// names holds the name of each CUDA stream for traces and reports, by number. A number is for the next stream after Close, so there are
	// not many. CPU streams have new numbers each: they are here if the program named them, or while the stream checker is on.
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

// DefaultStream is the device's default stream, the same one at each call. A device that is not there is reported by the
// stream's methods, with [ErrNoDevice].
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

// NewStream makes a stream that does not wait for the default stream. The caller must Close it. It fails with
// [ErrNoDevice] or [ErrDeviceLost].
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

// ExternalStream is a stream of another library's, given as a cudaStream_t, so that work can be enqueued behind its work; for 0
// and cudaStreamLegacy it returns [DefaultStream]. Dos of two Streams made of one cudaStream_t do not exclude each other. It fails with [ErrInvalidArgument] for cudaStreamPerThread, which is another
// stream on each thread, for a stream of another device, and on the CPU. Whoever made the stream destroys it, after Close, and after
// [Device.ReleaseCachedMemory] where tensors were made or used on it. The caller must Close it.
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

// Native is the stream as a cudaStream_t, for other libraries, until Close; 0 for a default stream and on the CPU.
func (s *Stream) Native() (uintptr, error) {
	h, err := s.handle("Stream.Native")
	if err != nil {
		return 0, err
	}
	return uintptr(ct.StreamNative(h)), nil
}

// Name is what [StreamOptions] says, "stream N", or "default stream".
func (s *Stream) Name() string { return s.name }

// String is the name and the device, as in "default stream of cuda:0".
func (s *Stream) String() string { return s.name + " of " + s.device.String() }

// ID is the number by which a [TraceRecord] names the stream, until Close; the next stream that is made may have it after that.
func (s *Stream) ID() (uint64, error) {
	h, err := s.handle("Stream.ID")
	if err != nil {
		return 0, err
	}
	return ct.StreamID(h), nil
}

// Device is where the stream's work runs.
func (s *Stream) Device() Device { return s.device }

// lock takes the stream for one call and returns its handle; on success the caller unlocks s.mu.
func (s *Stream) lock(op string) (*ct.Stream, error) {
	if w := currentWorker(); w != nil && w.stream == s {
		return nil, &Error{Op: op, Kind: ErrMisuse, Caller: caller(), Message: "called inside a Do of this stream, which it would wait for: use the Exec's Record, Wait or On"}
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
	return &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the stream is nil, or was not made by NewStream, DefaultStream or ExternalStream"}
}

// handle is the C handle; the default stream's is made on first use.
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
		return nil, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the stream is closed"}
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

// Do waits until fn has returned, and not for the device. It runs fn on the stream's own OS thread with an [Exec] that
// enqueues on this stream, and returns fn's error, or the [*Error] of the first operator that failed in it. Tensors made in
// fn and not kept are freed when it returns.
//
// A panic in fn is raised again in the caller as a [*Panic], and [runtime.Goexit] ends the caller too. A Do inside any Do is
// an error; a second stream inside a Do is [Exec.On]. fn must not wait for another goroutine that uses this stream.
func (s *Stream) Do(fn func(x *Exec) error) error {
	if currentWorker() != nil {
		return &Error{Op: "Stream.Do", Kind: ErrMisuse, Caller: caller(), Message: "a Do inside a Do: use Exec.On for a second stream"}
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

// do is Do up to what becomes of the outcome; the stream is free again.
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
		s.worker = nil // it ended with its goroutine
	}
	return out
}

// use is handle for a Do of another stream, which calls unuse when it ends. It does not wait for a Do of this one.
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

// Record returns a mark behind all work enqueued on the stream so far. The caller closes it.
func (s *Stream) Record() (*Event, error) { return s.record("Stream.Record", 0) }

// RecordTiming is Record for an event that [Event.Elapsed] may be asked of.
func (s *Stream) RecordTiming() (*Event, error) { return s.record("Stream.RecordTiming", 1) }

// TryRecord is [Stream.Record], but returns nil at once where Record would wait for a running Do of this stream.
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

// Wait makes work enqueued on the stream from now on run after the event. The host does not wait.
func (s *Stream) Wait(e *Event) error {
	h, err := s.lock("Stream.Wait")
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	return e.awaitedBy("Stream.Wait", h, nil) //edge:stream-wait TestCheckStreams_FindsMistakes checked
}

// Query reports whether all work enqueued so far is done.
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

// Close waits for a running Do, ends the stream's thread and gives the stream back; work already enqueued still runs. While
// a Do of another stream uses it, by [Exec.On], it fails with [ErrMisuse]. Closing twice does nothing. A default stream can
// be used again afterwards.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	if w := currentWorker(); w != nil && w.stream == s {
		return &Error{Op: "Stream.Close", Kind: ErrMisuse, Caller: caller(), Message: "called inside a Do of this stream"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Lock()
	defer s.state.Unlock()
	if s.users > 0 { //edge:on-keeps-stream-open TestStream_CloseUnderOn
		return &Error{Op: "Stream.Close", Kind: ErrMisuse, Caller: caller(), Message: "a Do of another stream uses this one: close it afterwards"}
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
