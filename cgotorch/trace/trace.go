// Package trace records the work of CUDA devices: each kernel, copy and fill. A record has the
// stream, the times, and the thread that enqueued the work. The driver makes the records, so they
// do not depend on what cgotorch knows of its streams. Package trace also records marks of the
// host's time. [Records.WriteChrome] writes a trace for ui.perfetto.dev.
package trace

import (
	"cmp"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// maxRecords is the largest number of records of a trace. A full trace takes about 850 MB of host
// memory, in the core and in Go. A trace of 10^6 operators has fewer records.
const maxRecords = 4 << 20

const defaultStream = "default stream" // the name of every default stream

// Trace is a running trace. CUPTI reports to it what the CUDA devices run.
type Trace struct {
	cuda  bool
	began time.Time

	mu      sync.Mutex
	marks   []Mark
	stopped bool
}

// Start begins a trace. It is process-wide: it records every kernel, copy and fill of every CUDA
// device until [Trace.Stop]. Start does not wait. Without CUDA the trace has only the spans of
// [Trace.Mark]. During a trace each operator takes some microseconds longer.
//
// Start fails with [cgotorch.ErrMisuse] while another trace runs. It fails with
// [cgotorch.ErrUnsupported] if CUPTI is absent, or if another tool such as Nsight or
// torch.profiler uses CUPTI.
func Start() (*Trace, error) {
	const op = "trace.Start"
	if err := inside.Core.Ready(); err != nil {
		return nil, err
	}
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != nil {
		return nil, &cgotorch.Error{Op: op, Kind: cgotorch.ErrMisuse, Caller: inside.Core.Caller(), Message: "a trace is running already: stop it first"}
	}
	t := &Trace{cuda: true, began: time.Now()}
	if err := inside.Core.Check(op, ct.TraceStart(maxRecords)); errors.Is(err, cgotorch.ErrNoDevice) {
		t.cuda = false
	} else if err != nil {
		return nil, err
	}
	tracing.running = t
	return t, nil
}

// tracing.running is the trace that runs, or nil.
var tracing struct {
	sync.Mutex
	running *Trace
}

// Mark begins a span of the host's time, such as a training step. The function that Mark returns
// ends the span. Work that any goroutine enqueues during the span belongs to the span. A span may
// lie inside another span. The trace shows a span on the host and on each stream that has work of
// the span. The end of the trace ends open spans. A span that begins later is not recorded.
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

// Now returns the time since the trace began, in the clock of records and marks. This is the wall
// clock, as in CUPTI.
func (t *Trace) Now() time.Duration { return time.Duration(time.Now().UnixNano() - t.began.UnixNano()) }

// Stop waits for every device, ends the trace and returns its records. If records were lost
// because the trace was full, Stop returns the other records and fails with
// [cgotorch.ErrOutOfMemory]. If a device is lost, Stop returns the marks only and fails with
// [cgotorch.ErrDeviceLost]. For a stopped trace it fails with [cgotorch.ErrClosed].
func (t *Trace) Stop() (*Records, error) {
	const op = "Trace.Stop"
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.running != t {
		return nil, &cgotorch.Error{Op: op, Kind: cgotorch.ErrClosed, Caller: inside.Core.Caller(), Message: "the trace has been stopped"}
	}
	tracing.running = nil
	r := &Records{}
	var err error
	if t.cuda {
		inside.Core.Waits(op)
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

// take reads the records of the work from the core. `began` is the time at which the trace began.
func (r *Records) take(op string, began time.Time) error {
	var h *ct.Trace
	if err := inside.Core.Check(op, ct.TraceStop(&h)); err != nil {
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
			Kind: Kind(c.Kind), Pageable: c.Pageable != 0, Device: cgotorch.CUDA(int(c.Device)), Stream: c.Stream,
			Start: since(c.Start), End: since(c.End), Bytes: int64(c.Bytes), Blocks: c.Blocks, Thread: int(c.Thread), Launched: c.Launched != 0,
		}
		if c.Launched != 0 {
			w.Launch = since(c.Launched)
		}
		if w.Kind == Copy {
			w.Copy = ends(c.Copy)
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
		return &cgotorch.Error{Op: op, Kind: cgotorch.ErrOutOfMemory, Caller: inside.Core.Caller(),
			Message: fmt.Sprintf("%d of %d records were lost: trace a shorter time", lost, lost+count)}
	}
	return nil
}

// nameStreams sets the names of all streams in the trace.
func (r *Records) nameStreams() {
	r.names = map[uint64]string{}
	for i := range r.Work {
		w := &r.Work[i]
		name, ok := r.names[w.Stream]
		if !ok {
			if name, ok = inside.Core.StreamName(w.Stream); !ok {
				name = fmt.Sprintf("stream %d of others", uint32(w.Stream))
			}
			r.names[w.Stream] = name
		}
		w.StreamName = name
	}
}

// Records are the results of a trace.
type Records struct {
	Work  []Record // in order of Start
	Marks []Mark   // in order of Start
	names map[uint64]string
}

// Record is one kernel, copy or fill that a device ran. Times are counted from the start of the
// trace.
type Record struct {
	Kind       Kind
	Name       string // name of a kernel; empty for a copy or fill
	Device     cgotorch.Device
	Stream     uint64        // a later stream may get the number of a closed one
	StreamName string        // if several streams had this number one after another, the name of the last one
	Start, End time.Duration // on the device
	Launch     time.Duration // when the host enqueued the work, if Launched is set
	// Launched says that the trace knows Launch. Otherwise the work was enqueued before the trace
	// began, or by the device.
	Launched bool
	// Thread is the number of the OS thread that enqueued the work, as gettid returns it. 0 means
	// that the thread is not known.
	Thread   int
	Blocks   uint32 // number of blocks of a kernel
	Bytes    int64  // number of bytes copied or filled
	Copy     string // of a copy: "host to device", "device to host" and so on
	Pageable bool   // the host memory of the copy was not page-locked
}

// Mark is a span of the host's time. [Trace.Mark] makes it.
type Mark struct {
	Name       string
	Start, End time.Duration
}

// Kind is the kind of a [Record].
type Kind uint8

// These are the kinds of records.
const (
	Kernel Kind = ct.TraceKernel
	Copy   Kind = ct.TraceCopy
	Fill   Kind = ct.TraceFill
)

// ends are the words of Record.Copy.
func ends(kind uint8) string {
	switch kind {
	case ct.CopyHostToDevice:
		return hostToDevice
	case ct.CopyDeviceToHost:
		return "device to host"
	case ct.CopyDeviceToDevice:
		return "device to device"
	case ct.CopyPeer:
		return "device to another device"
	}
	return "other"
}

const hostToDevice = "host to device"

// title returns the name of a kernel. For a copy or fill it returns the kind.
func (w *Record) title() string {
	switch {
	case w.Kind == Kernel:
		return w.Name
	case w.Kind == Fill:
		return "fill"
	case w.Pageable:
		return "copy " + w.Copy + ", pageable"
	}
	return "copy " + w.Copy
}

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
		return len(r.names[stream]) // so that stream 9 comes before stream 10
	}
	slices.SortFunc(all, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(r.names[a], r.names[b]), cmp.Compare(a, b))
	})
	return all
}

// devices returns the devices that did any work, in the order of their indices.
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
