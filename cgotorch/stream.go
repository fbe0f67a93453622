package cgotorch

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
)

// Stream is an in-order queue of work on one device. A CPU stream runs its work at once. A Stream
// may be used from any goroutine. Dos on one stream exclude each other.
type Stream struct {
	device    Device
	isDefault bool
	name      string
	named     bool // the name comes from StreamOptions

	// A Do has the turn while it runs. Other methods of the Stream take the turn too, so they wait for
	// the Do.
	turn   turn
	worker *worker       // guarded by the turn
	runner atomic.Uint64 // the number of the worker's goroutine
	// `observers` follow each Do of the stream. The turn guards them.
	observers []observer

	state  sync.Mutex // held only for moments; guards the fields below
	h      *ct.Stream
	users  int                      // number of Dos of other streams that use this stream
	sides  map[purpose]*sideStreams // side streams for Dos of this stream
	closed bool
}

// StreamOptions are the options of [NewStream]. The zero value is a stream of normal priority.
type StreamOptions struct {
	HighPriority bool // the device prefers waiting work of this stream to other waiting work
	// Name is shown in traces and reports. "" means "stream N", where N is the number of streams made
	// so far.
	Name string
}

// streams holds the state that all streams of the process share. It is process-wide because CUDA
// numbers all streams itself.
var streams struct {
	made     atomic.Int64     // number of streams made by NewStream and ExternalStream
	mistakes mistakes.Process // what is guessed of all Dos
	workers  atomic.Int64     // number of workers whose goroutines run

	// `names` holds the names of streams by their numbers, for traces and reports. It holds every
	// CUDA stream. It stays small, because a new CUDA stream takes the number of a closed stream. A
	// CPU stream always has a new number. So the map holds a CPU stream only if the program named it,
	// or if the stream checker was on when the stream was made.
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
	if s.device.IsCUDA() || s.named || checking() {
		streams.names.Store(ct.StreamID(s.h), s.name)
	}
}

// DefaultStream returns the device's default stream, the same Stream at each call. It does not
// check that the device exists. If the device does not exist, the methods of the Stream fail with
// [ErrNoDevice].
func DefaultStream(d Device) *Stream { return d.state().stream }

// NewStream makes a stream that does not wait for the default stream. The caller must close the
// stream. NewStream fails with [ErrNoDevice] if the device does not exist, and with
// [ErrDeviceLost] if the device is lost.
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

// ExternalStream returns a Stream for a cudaStream_t of another library. Work of this library can
// then be enqueued after work of the other library. For 0 and cudaStreamLegacy, ExternalStream
// returns the device's [DefaultStream]. If two Streams are made from the same cudaStream_t, their
// Dos do not exclude each other.
//
// The caller must close the Stream. The other library may destroy its cudaStream_t only after
// Close. If tensors were made or used on the Stream, [Device.ReleaseCachedMemory] must also be
// called before the cudaStream_t is destroyed.
//
// ExternalStream fails with [ErrInvalidArgument] for a stream of another device, and for the CPU.
// It also fails for cudaStreamPerThread, because this value means another stream on each thread.
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

// Native returns the stream as a cudaStream_t for other libraries. The cudaStream_t is valid until
// Close. Native returns 0 for a default stream and for a CPU stream. It fails for a closed stream.
func (s *Stream) Native() (uintptr, error) {
	h, err := s.use("Stream.Native")
	if err != nil {
		return 0, err
	}
	defer s.unuse()
	return uintptr(ct.StreamNative(h)), nil
}

// String returns the name and the device, as in "default stream of cuda:0". The name is that of
// [StreamOptions], "stream N", or "default stream".
func (s *Stream) String() string { return s.name + " of " + s.device.String() }

// Device returns the device that the stream's work runs on.
func (s *Stream) Device() Device { return s.device }

// lock takes the stream's turn for one call and returns the handle. If it succeeds, the caller must
// give the turn back.
func (s *Stream) lock(op string) (*ct.Stream, error) {
	if s.inDo() {
		return nil, refuse(op, ErrMisuse,
			"called inside a Do of this stream, which it would wait for: use the Exec's Record, Wait or On")
	}
	if s == nil {
		return nil, noStream(op)
	}
	if err := s.turn.take(op, s); err != nil { //edge:dos-exclude-each-other TestDo_ExcludesOthers
		return nil, err
	}
	h, err := s.handle(op)
	if err != nil {
		s.turn.give()
		return nil, err
	}
	return h, nil
}

func noStream(op string) *Error {
	return refuse(op, ErrInvalidArgument,
		"the stream is nil, or was not made by NewStream, DefaultStream or ExternalStream")
}

// handle returns the C handle. The handle of a default stream is made on first use.
func (s *Stream) handle(op string) (*ct.Stream, error) {
	if s == nil {
		return nil, noStream(op)
	}
	s.state.Lock()
	defer s.state.Unlock()
	return s.open(op)
}

// open does the same as the method `handle`, for a caller that holds s.state.
func (s *Stream) open(op string) (*ct.Stream, error) {
	if s.closed {
		return nil, refuse(op, ErrClosed, "the stream is closed; close it after its last use")
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

// Do runs fn on the stream's own OS thread, with an [Exec] that enqueues on this stream. It waits
// until fn has returned. It does not wait for the device. When fn returns, the tensors made in fn
// are freed, except those that [Exec.Keep] has kept.
//
// Do returns fn's error, or the [*Error] of the first operator that failed in fn. A panic in fn
// is raised again in the caller as a [*Panic]. [runtime.Goexit] in fn ends the caller too.
//
// One step of a training or one request is a good size for a Do. Everything that a longer Do makes
// stays in memory until its end, unless [Exec.Tidy] or Close frees it.
//
// The first Do of a stream starts the stream's thread, which ends with Close. A process has at most
// 1024 of these threads. Do fails with [ErrMisuse] if there would be more.
//
// A Do inside any Do fails with [ErrMisuse]: use [Exec.On] for another stream. fn must not wait
// for another goroutine that uses this stream, because that goroutine waits for the Do. If fn has
// started that goroutine, its call fails after 10 s. A goroutine that holds a [sync.Mutex] must not
// call Do if a Do takes that lock too: Go does not tell who holds a lock, so both wait for ever.
// Both places are then logged with [slog.Warn].
func (s *Stream) Do(fn func(x *Exec) error) error {
	if currentWorker() != nil {
		return refuse("Stream.Do", ErrMisuse, "a Do inside a Do: use Exec.On for another stream")
	}
	out := s.do(fn)
	if c := activeCheck(); c != nil {
		if err := c.afterDo(out != outcome{}); err != nil {
			out.err = err
		}
	}
	switch {
	case out.exited:
		runtime.Goexit()
	case out.panicked != nil:
		panic(out.panicked)
	}
	return out.err
}

// do runs fn as Do does, and returns how fn ended. When `do` returns, the stream is unlocked.
func (s *Stream) do(fn func(x *Exec) error) outcome {
	h, err := s.lock("Stream.Do")
	if err != nil {
		return outcome{err: err}
	}
	defer s.turn.give()
	if s.worker == nil {
		if s.worker = startWorker(s); s.worker == nil {
			return outcome{err: refuse("Stream.Do", ErrMisuse, "%d streams have a thread each, which is the most: Close streams that are not used any more, or use one for several goroutines", mostWorkers)}
		}
	}
	out := s.worker.do(h, fn, checkOf(callSite()))
	if out.exited {
		s.worker = nil // the worker has ended with its goroutine
	}
	return out
}

// inDo reports whether the calling goroutine runs a Do of the stream.
func (s *Stream) inDo() bool {
	w := currentWorker()
	return w != nil && w.stream == s
}

// use keeps the stream open for a Do of another stream, and returns the C handle. When that Do
// ends, it calls the method `unuse`. `use` does not wait for a Do of this stream.
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

// Record returns an event that marks the end of all work enqueued so far on the stream. It waits
// for a Do of this stream, but not for the device. Close frees the event early. Without Close the
// garbage collector frees it.
func (s *Stream) Record() (*Event, error) {
	const op = "Stream.Record"
	h, err := s.lock(op)
	if err != nil {
		return nil, err
	}
	defer s.turn.give()
	return recordEvent(op, h, 0)
}

// TryRecord is [Stream.Record], but it does not wait for a Do of this stream. If another goroutine
// runs one, the event marks a place inside it. In the function of a Do of this stream, TryRecord
// returns a nil event and a nil error: use [Exec.Record] there.
func (s *Stream) TryRecord() (*Event, error) {
	if s == nil {
		return nil, noStream("Stream.TryRecord")
	}
	if s.inDo() {
		return nil, nil
	}
	h, err := s.use("Stream.TryRecord")
	if err != nil {
		return nil, err
	}
	defer s.unuse()
	return recordEvent("Stream.TryRecord", h, 0)
}

// Wait makes later work of the stream run after the event. It waits for a Do of this stream, but
// not for the device. On a CPU stream, however, Wait returns only when the event is done.
func (s *Stream) Wait(e *Event) error {
	h, err := s.lock("Stream.Wait")
	if err != nil {
		return err
	}
	defer s.turn.give()
	return e.awaitedBy("Stream.Wait", h, nil) //edge:stream-wait TestCheckStreams_FindsMistakes checked
}

// Query reports whether all work enqueued so far on the stream is done. It waits for a Do of this
// stream, but not for the device.
func (s *Stream) Query() (bool, error) {
	h, err := s.lock("Stream.Query")
	if err != nil {
		return false, err
	}
	defer s.turn.give()
	var done int32
	err = check("Stream.Query", ct.StreamQuery(h, &done))
	return done != 0, err
}

// Synchronize waits until all work enqueued so far on the stream is done.
func (s *Stream) Synchronize() error {
	h, err := s.lock("Stream.Synchronize")
	if err != nil {
		return err
	}
	defer s.turn.give()
	waits("Stream.Synchronize")
	return check("Stream.Synchronize", ct.StreamSynchronize(h))
}

// Close waits for a running Do, ends the stream's thread and frees the stream. Work that is
// already enqueued still runs. A default stream can be used again after Close. A second Close
// does nothing.
//
// Close fails with [ErrMisuse] while a Do of another stream uses this stream by [Exec.On].
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	if s.inDo() {
		return refuse("Stream.Close", ErrMisuse, "called inside a Do of this stream")
	}
	if err := s.turn.take("Stream.Close", s); err != nil {
		return err
	}
	defer s.turn.give()
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
	if !s.device.IsCUDA() && !checking() {
		streams.names.Delete(ct.StreamID(s.h))
	}
	ct.StreamFree(s.h) //edge:stream-freed TestStream_AfterClose
	s.h = nil
	s.closed = !s.isDefault
	return nil
}
