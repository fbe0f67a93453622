package cgotorch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// maxTraceRecords is what a trace has room for: some 850 MB of host memory, the core's and Go's, and 10^6 operators with room to spare.
const maxTraceRecords = 4 << 20

// Trace is a trace that runs: what CUDA devices do is recorded, as the driver tells it through CUPTI. It does not rest on what this
// library believes of its streams.
type Trace struct {
	cuda  bool
	began time.Time

	mu      sync.Mutex
	marks   []TraceMark
	stopped bool
}

// StartTrace is process-wide: it records every kernel, copy and fill of every CUDA device until [Trace.Stop]. Without CUDA the trace
// holds marks alone. Operators take some microseconds more meanwhile. It fails with [ErrMisuse] while another trace runs, and with
// [ErrUnsupported] where CUPTI is absent or another tool, such as Nsight or torch.profiler, has it.
func StartTrace() (*Trace, error) {
	const op = "StartTrace"
	if err := ready(); err != nil {
		return nil, err
	}
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != nil {
		return nil, &Error{Op: op, Kind: ErrMisuse, Caller: caller(), Message: "a trace is running already: stop it first"}
	}
	t := &Trace{cuda: true, began: time.Now()}
	if err := check(op, ct.TraceStart(maxTraceRecords)); errors.Is(err, ErrNoDevice) {
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

// Mark begins a span of the host's time, such as a step of training, that end ends. Work that any goroutine enqueues meanwhile belongs
// to it. Spans may lie in one another; each is seen in the trace on the host and on every stream that had work of it. A span that has not
// ended when the trace stops ends there; one that begins later is not recorded.
func (t *Trace) Mark(name string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := len(t.marks)
	t.marks = append(t.marks, TraceMark{Name: name, Start: t.Now()})
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

// Now is the time since the trace began, as records and marks have it: by the wall clock, which is CUPTI's.
func (t *Trace) Now() time.Duration { return time.Duration(time.Now().UnixNano() - t.began.UnixNano()) }

// Stop waits for every device and ends the trace. Where records were lost for want of room it returns what there is, with
// [ErrOutOfMemory]; where a device is lost the marks alone, with [ErrDeviceLost]. A trace that was stopped before is [ErrClosed].
func (t *Trace) Stop() (*TraceRecords, error) {
	const op = "Trace.Stop"
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != t {
		return nil, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the trace has been stopped"}
	}
	tracing.running = nil
	r := &TraceRecords{}
	var err error
	if t.cuda {
		waits(op)
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
func (r *TraceRecords) take(op string, began time.Time) error {
	var h *ct.Trace
	if err := check(op, ct.TraceStop(&h)); err != nil {
		return err
	}
	defer ct.TraceFree(h)
	var count int64
	first := ct.TraceRecords(h, &count)
	r.Work = make([]TraceRecord, 0, int(count))
	kernels := map[uint32]string{}
	since := func(ns uint64) time.Duration { return time.Duration(int64(ns) - began.UnixNano()) }
	for _, c := range unsafe.Slice(first, int(count)) {
		w := TraceRecord{
			Kind: TraceKind(c.Kind), Copy: CopyKind(c.Copy), Pageable: c.Pageable != 0, Device: CUDA(int(c.Device)), Stream: c.Stream,
			Start: since(c.Start), End: since(c.End), Bytes: int64(c.Bytes), Blocks: c.Blocks, Thread: int(c.Thread), Launch: NotLaunched,
		}
		if c.Launched != 0 {
			w.Launch = since(c.Launched)
		}
		if w.Kind == TraceKernel {
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
		return &Error{Op: op, Kind: ErrOutOfMemory, Caller: caller(),
			Message: fmt.Sprintf("%d of %d records were lost: trace a shorter time", lost, lost+count)}
	}
	return nil
}

// nameStreams looks up the names of the streams in the trace.
func (r *TraceRecords) nameStreams() {
	r.names = map[uint64]string{}
	for _, w := range r.Work {
		if _, ok := r.names[w.Stream]; ok {
			continue
		}
		if name, ok := streamNames.Load(w.Stream); ok {
			r.names[w.Stream] = name.(string)
		} else {
			r.names[w.Stream] = fmt.Sprintf("stream %d of others", uint32(w.Stream))
		}
	}
}

// TraceRecords is what a trace has recorded.
type TraceRecords struct {
	Work  []TraceRecord // in order of Start
	Marks []TraceMark   // in order of Start
	names map[uint64]string
}

// TraceRecord is one kernel, copy or fill that a device ran. Times are since the trace began.
type TraceRecord struct {
	Kind       TraceKind
	Name       string // of a kernel
	Device     Device
	Stream     uint64        // on which it ran; see [Stream.ID] and [TraceRecords.StreamName]
	Start, End time.Duration // on the device
	Launch     time.Duration // when the host enqueued it; NotLaunched where that is not known
	Thread     int           // that enqueued it, an OS thread's number as gettid gives it; 0 where not known
	Blocks     uint32        // of a kernel
	Bytes      int64         // copied or filled
	Copy       CopyKind      // of a copy
	Pageable   bool          // the host's side of a copy was not page-locked
}

// NotLaunched is the Launch of work whose launch is not known: it was enqueued before the trace, or by the device.
const NotLaunched = time.Duration(-1 << 63)

// TraceMark is a span of the host's time; see [Trace.Mark].
type TraceMark struct {
	Name       string
	Start, End time.Duration
}

// TraceKind is the kind of a [TraceRecord].
type TraceKind uint8

// The kinds.
const (
	TraceKernel TraceKind = ct.TraceKernel
	TraceCopy   TraceKind = ct.TraceCopy
	TraceFill   TraceKind = ct.TraceFill
)

// CopyKind is between what a copy was.
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

// Title is a kernel's name, or what a copy or fill does.
func (w *TraceRecord) Title() string {
	switch {
	case w.Kind == TraceKernel:
		return w.Name
	case w.Kind == TraceFill:
		return "fill"
	case w.Pageable:
		return "copy " + w.Copy.String() + ", pageable"
	}
	return "copy " + w.Copy.String()
}

// StreamName is the name of the last [Stream] that had this number.
func (r *TraceRecords) StreamName(stream uint64) string { return r.names[stream] }

// streams are those of a device, in order of their names, the default stream first.
func (r *TraceRecords) streams(d Device) []uint64 {
	seen := map[uint64]bool{}
	var all []uint64
	for _, w := range r.Work {
		if w.Device == d && !seen[w.Stream] {
			seen[w.Stream] = true
			all = append(all, w.Stream)
		}
	}
	rank := func(stream uint64) int {
		if r.names[stream] == defaultName {
			return 0
		}
		return len(r.names[stream]) // stream 9 before stream 10
	}
	slices.SortFunc(all, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(r.names[a], r.names[b]), cmp.Compare(a, b))
	})
	return all
}

// devices are those that did any work.
func (r *TraceRecords) devices() []Device {
	var all []Device
	for _, w := range r.Work {
		if !slices.Contains(all, w.Device) {
			all = append(all, w.Device)
		}
	}
	slices.SortFunc(all, func(a, b Device) int { return cmp.Compare(a.index, b.index) })
	return all
}
