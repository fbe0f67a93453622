// Package trace records the work of CUDA devices: each kernel, copy and fill with its stream,
// its times and the thread that enqueued it. The records are the driver's, and do not rest on
// cgotorch's own knowledge of its streams. Package trace also records marks of the host's time.
// [Records.WriteChrome] writes a trace for ui.perfetto.dev.
package trace

import (
	"cmp"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// maxRecords is the room of a trace: some 850 MB of host memory, of the core and of Go. It
// holds 10^6 operators with ease.
const maxRecords = 4 << 20

const defaultStream = "default stream" // the name of every default stream

// Trace is a running trace. The driver tells it through CUPTI what the CUDA devices run.
type Trace struct {
	cuda  bool
	began time.Time

	mu      sync.Mutex
	marks   []Mark
	stopped bool
}

// Start is process-wide: it records every kernel, copy and fill of every CUDA device until
// [Trace.Stop]. It does not wait. Without CUDA the trace holds marks alone. Operators take some
// microseconds more meanwhile.
//
// Start fails with [cgotorch.ErrMisuse] while another trace runs. It fails with
// [cgotorch.ErrUnsupported] where CUPTI is absent, or another tool has it, such as Nsight or
// torch.profiler.
func Start() (*Trace, error) {
	const op = "trace.Start"
	if err := seam.Ready(); err != nil {
		return nil, err
	}
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != nil {
		return nil, &cgotorch.Error{Op: op, Kind: cgotorch.ErrMisuse, Caller: seam.Caller(), Message: "a trace is running already: stop it first"}
	}
	t := &Trace{cuda: true, began: time.Now()}
	if err := seam.Check(op, ct.TraceStart(maxRecords)); errors.Is(err, cgotorch.ErrNoDevice) {
		t.cuda = false
	} else if err != nil {
		return nil, err
	}
	tracing.running = t
	return t, nil
}

// tracing is the trace that runs, or nil.
var tracing struct {
	sync.Mutex
	running *Trace
}

// Mark begins a span of the host's time, such as a training step. end ends it. Work that any
// goroutine enqueues meanwhile belongs to the span. Spans may lie inside each other. The trace
// shows each span on the host and on every stream with work of it. The end of the trace ends an
// open span. A later span is not recorded.
func (t *Trace) Mark(name string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := len(t.marks)
	t.marks = append(t.marks, Mark{Name: name, Start: t.Now()})
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if !t.stopped {
				t.marks[i].End = t.Now()
			}
		})
	}
}

// Now returns the time since the trace began, in the clock of records and marks: the wall
// clock, as CUPTI has it.
func (t *Trace) Now() time.Duration { return time.Duration(time.Now().UnixNano() - t.began.UnixNano()) }

// Stop waits for every device, ends the trace and returns its records. Where it lost records
// for want of room, it returns the others and fails with [cgotorch.ErrOutOfMemory]. Where a
// device is lost it returns the marks alone and fails with [cgotorch.ErrDeviceLost]. It fails
// with [cgotorch.ErrClosed] for a stopped trace.
func (t *Trace) Stop() (*Records, error) {
	const op = "Trace.Stop"
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != t {
		return nil, &cgotorch.Error{Op: op, Kind: cgotorch.ErrClosed, Caller: seam.Caller(), Message: "the trace has been stopped"}
	}
	tracing.running = nil
	r := &Records{}
	var err error
	if t.cuda {
		seam.Waits(op)
		err = r.take(op, t.began)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	r.Marks = t.marks
	for i := range r.Marks {
		if r.Marks[i].End == 0 {
			r.Marks[i].End = t.Now()
		}
	}
	return r, err
}

// take fetches the work from the core.
func (r *Records) take(op string, began time.Time) error {
	var h *ct.Trace
	if err := seam.Check(op, ct.TraceStop(&h)); err != nil {
		return err
	}
	defer ct.TraceFree(h)
	var count int64
	first := ct.TraceRecords(h, &count)
	r.Work = make([]Record, 0, int(count))
	kernels := map[uint32]string{}
	since := func(ns uint64) time.Duration { return time.Duration(int64(ns) - began.UnixNano()) }
	for _, c := range unsafe.Slice(first, int(count)) {
		w := Record{
			Kind: Kind(c.Kind), Copy: CopyKind(c.Copy), Pageable: c.Pageable != 0, Device: cgotorch.CUDA(int(c.Device)), Stream: c.Stream,
			Start: since(c.Start), End: since(c.End), Bytes: int64(c.Bytes), Blocks: c.Blocks, Thread: int(c.Thread), Launch: NotLaunched,
		}
		if c.Launched != 0 {
			w.Launch = since(c.Launched)
		}
		if w.Kind == Kernel {
			name, ok := kernels[c.Name]
			if !ok {
				name = ct.TraceName(h, c.Name)
				kernels[c.Name] = name
			}
			w.Name = name
		}
		r.Work = append(r.Work, w)
	}
	r.nameStreams()
	if lost := ct.TraceLost(h); lost > 0 {
		return &cgotorch.Error{Op: op, Kind: cgotorch.ErrOutOfMemory, Caller: seam.Caller(),
			Message: fmt.Sprintf("%d of %d records were lost: trace a shorter time", lost, lost+count)}
	}
	return nil
}

// nameStreams looks up the names of the streams in the trace.
func (r *Records) nameStreams() {
	r.names = map[uint64]string{}
	for _, w := range r.Work {
		if _, ok := r.names[w.Stream]; ok {
			continue
		}
		if name, ok := seam.StreamName(w.Stream); ok {
			r.names[w.Stream] = name
		} else {
			r.names[w.Stream] = fmt.Sprintf("stream %d of others", uint32(w.Stream))
		}
	}
}

// Records are the results of a trace.
type Records struct {
	Work  []Record // in order of Start
	Marks []Mark   // in order of Start
	names map[uint64]string
}

// Record is one kernel, copy or fill that a device ran. Times are since the trace began.
type Record struct {
	Kind       Kind
	Name       string // of a kernel
	Device     cgotorch.Device
	Stream     uint64        // see [cgotorch.Stream.ID] and [Records.StreamName]
	Start, End time.Duration // on the device
	Launch     time.Duration // the time of its enqueueing on the host, or NotLaunched
	// Thread is the OS thread that enqueued the work, a number as gettid gives it; 0 where unknown.
	Thread   int
	Blocks   uint32   // of a kernel
	Bytes    int64    // copied or filled
	Copy     CopyKind // of a copy
	Pageable bool     // the host's side of a copy was not page-locked
}

// NotLaunched is the Launch of work without a known launch: the work was enqueued before the
// trace, or by the device.
const NotLaunched = time.Duration(-1 << 63)

// Mark is a span of the host's time, made by [Trace.Mark].
type Mark struct {
	Name       string
	Start, End time.Duration
}

// Kind is the kind of a [Record].
type Kind uint8

// The kinds.
const (
	Kernel Kind = ct.TraceKernel
	Copy   Kind = ct.TraceCopy
	Fill   Kind = ct.TraceFill
)

// CopyKind names the two ends of a copy.
type CopyKind uint8

// The kinds of copies.
const (
	CopyOther          CopyKind = ct.CopyOther
	CopyHostToDevice   CopyKind = ct.CopyHostToDevice
	CopyDeviceToHost   CopyKind = ct.CopyDeviceToHost
	CopyDeviceToDevice CopyKind = ct.CopyDeviceToDevice
	CopyPeer           CopyKind = ct.CopyPeer
)

func (k CopyKind) String() string {
	switch k {
	case CopyHostToDevice:
		return "host to device"
	case CopyDeviceToHost:
		return "device to host"
	case CopyDeviceToDevice:
		return "device to device"
	case CopyPeer:
		return "device to another device"
	}
	return "other"
}

// Title returns a kernel's name, or the kind of a copy or fill.
func (w *Record) Title() string {
	switch {
	case w.Kind == Kernel:
		return w.Name
	case w.Kind == Fill:
		return "fill"
	case w.Pageable:
		return "copy " + w.Copy.String() + ", pageable"
	}
	return "copy " + w.Copy.String()
}

// StreamName returns the name of the last [cgotorch.Stream] that had this number.
func (r *Records) StreamName(stream uint64) string { return r.names[stream] }

// streams returns the streams of a device in order of their names, the default stream first.
func (r *Records) streams(d cgotorch.Device) []uint64 {
	seen := map[uint64]bool{}
	var all []uint64
	for _, w := range r.Work {
		if w.Device == d && !seen[w.Stream] {
			seen[w.Stream] = true
			all = append(all, w.Stream)
		}
	}
	rank := func(stream uint64) int {
		if r.names[stream] == defaultStream {
			return 0
		}
		return len(r.names[stream]) // stream 9 before stream 10
	}
	slices.SortFunc(all, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(r.names[a], r.names[b]), cmp.Compare(a, b))
	})
	return all
}

// devices returns the devices that did any work.
func (r *Records) devices() []cgotorch.Device {
	var all []cgotorch.Device
	for _, w := range r.Work {
		if !slices.Contains(all, w.Device) {
			all = append(all, w.Device)
		}
	}
	slices.SortFunc(all, func(a, b cgotorch.Device) int { return cmp.Compare(a.Index(), b.Index()) })
	return all
}
