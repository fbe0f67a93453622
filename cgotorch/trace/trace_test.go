package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// handMade returns a trace with the given records and marks. Their times are in microseconds.
func handMade(work []Record, marks ...Mark) *Records {
	r := &Records{names: map[uint64]string{1: defaultStream, 2: "prefetcher copies", 9: "stream 9", 10: "stream 10"}}
	for _, w := range work {
		w.Start, w.End, w.Launch = w.Start*time.Microsecond, w.End*time.Microsecond, w.Launch*time.Microsecond
		if w.Device == cgotorch.CPU {
			w.Device = cgotorch.CUDA(0)
		}
		r.Work = append(r.Work, w)
	}
	for _, m := range marks {
		r.Marks = append(r.Marks, Mark{m.Name, m.Start * time.Microsecond, m.End * time.Microsecond})
	}
	return r
}

func kernel(stream uint64, start, end time.Duration) Record {
	return Record{Kind: Kernel, Name: "k<float, 4>", Stream: stream, Start: start, End: end, Launch: start - 1, Launched: true, Thread: 7, Blocks: 3}
}

func copied(stream uint64, start, end time.Duration) Record {
	return Record{Kind: Copy, Copy: "host to device", Stream: stream, Start: start, End: end, Launch: start - 1, Launched: true, Bytes: 64}
}

// Kernels that are chosen hide nothing of each other.
func TestRecords_Hidden(t *testing.T) {
	reduction := kernel(2, 5, 25)
	reduction.Name = "ncclDevKernel_AllReduce"
	later := reduction
	later.Start, later.End = 10, 40
	share, hidden, total := handMade([]Record{kernel(1, 0, 10), reduction, later}).Hidden(func(w *Record) bool { return strings.HasPrefix(w.Name, "nccl") })
	if hidden != 5*time.Microsecond || total != 50*time.Microsecond || share != 0.1 {
		t.Errorf("%v of %v are hidden, a share of %v", hidden, total, share)
	}
}

func TestRecords_CopyHidden(t *testing.T) {
	back := copied(2, 0, 100)
	back.Copy = "device to host"
	elsewhere := kernel(1, 0, 100)
	elsewhere.Device = cgotorch.CUDA(1)
	for name, c := range map[string]struct {
		work          []Record
		hidden, total time.Duration
	}{
		"nothing to hide":                  {[]Record{kernel(1, 0, 10), back}, 0, 0},
		"alone":                            {[]Record{copied(2, 0, 10)}, 0, 10},
		"behind one kernel":                {[]Record{kernel(1, 0, 20), copied(2, 5, 15)}, 10, 10},
		"half of it":                       {[]Record{kernel(1, 0, 10), copied(2, 5, 15)}, 5, 10},
		"kernels that overlap count once":  {[]Record{kernel(1, 0, 10), kernel(9, 4, 12), copied(2, 0, 20)}, 12, 20},
		"between two kernels":              {[]Record{kernel(1, 0, 10), copied(2, 10, 15), kernel(1, 15, 20)}, 0, 5},
		"over a gap":                       {[]Record{kernel(1, 0, 10), copied(2, 5, 25), kernel(1, 20, 30)}, 10, 20},
		"a kernel of the copies' stream":   {[]Record{copied(2, 0, 10), kernel(2, 0, 10)}, 0, 10},
		"each copy counts for itself":      {[]Record{kernel(1, 0, 10), copied(2, 0, 10), copied(9, 0, 10)}, 20, 20},
		"a kernel of another device":       {[]Record{copied(2, 0, 10), elsewhere}, 0, 10},
		"a kernel that is over, and later": {[]Record{kernel(1, 0, 4), copied(2, 5, 15), kernel(1, 15, 16)}, 0, 10},
	} {
		share, hidden, total := handMade(c.work).CopyHidden()
		if hidden != c.hidden*time.Microsecond || total != c.total*time.Microsecond {
			t.Errorf("%s: %v of %v are hidden, want %d and %d us", name, hidden, total, c.hidden, c.total)
		}
		want := 1.0
		if c.total > 0 {
			want = float64(c.hidden) / float64(c.total)
		}
		if math.Abs(share-want) > 1e-12 {
			t.Errorf("%s: the share is %v, want %v", name, share, want)
		}
	}
}

func TestRecords_Parallel(t *testing.T) {
	elsewhere := kernel(2, 0, 10)
	elsewhere.Device = cgotorch.CUDA(1)
	for name, c := range map[string]struct {
		work           []Record
		together, busy time.Duration
	}{
		"nothing":                    {nil, 0, 0},
		"a copy is no computing":     {[]Record{kernel(1, 0, 10), copied(2, 0, 10)}, 0, 10},
		"serial":                     {[]Record{kernel(1, 0, 10), kernel(2, 10, 20)}, 0, 20},
		"half":                       {[]Record{kernel(1, 0, 10), kernel(2, 5, 15)}, 5, 15},
		"one stream alone":           {[]Record{kernel(1, 0, 10), kernel(1, 5, 15)}, 0, 15},
		"three":                      {[]Record{kernel(1, 0, 10), kernel(2, 2, 8), kernel(9, 4, 12)}, 8, 12},
		"one over several of others": {[]Record{kernel(1, 0, 20), kernel(2, 2, 4), kernel(2, 6, 8), kernel(9, 7, 9)}, 5, 20},
		"another device":             {[]Record{kernel(1, 0, 10), elsewhere}, 0, 20},
	} {
		share, together, busy := handMade(c.work).Parallel()
		want := 0.0
		if c.busy > 0 {
			want = float64(c.together) / float64(c.busy)
		}
		if together != c.together*time.Microsecond || busy != c.busy*time.Microsecond || math.Abs(share-want) > 1e-12 {
			t.Errorf("%s: %v of %v, share %v, want %d and %d us", name, together, busy, share, c.together, c.busy)
		}
	}
}

// A mark's span on a stream lasts from the first start to the last end of its kernels. Kernels
// belong to the mark in which the host enqueued them.
func TestRecords_Spans(t *testing.T) {
	late := kernel(1, 50, 60)
	late.Launch = 5 // the host enqueues this kernel long before it runs
	unknown := kernel(1, 0, 90)
	r := handMade([]Record{kernel(1, 3, 8), late, kernel(9, 4, 6), copied(2, 3, 9), kernel(1, 70, 80), unknown},
		Mark{"step 0", 1, 10}, Mark{"step 1", 60, 71}, Mark{"nothing", 90, 99})
	r.Work[5].Launched = false
	type part struct {
		name       string
		stream     uint64
		start, end time.Duration
	}
	var got []part
	for _, s := range r.spans() {
		got = append(got, part{s.mark.Name, s.stream, s.start / time.Microsecond, s.end / time.Microsecond})
	}
	want := []part{{"step 0", 1, 3, 60}, {"step 0", 9, 4, 6}, {"step 1", 1, 70, 80}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLanes(t *testing.T) {
	for name, c := range map[string]struct {
		all  []interval
		want []int
	}{
		"none":                {nil, []int{}},
		"apart":               {[]interval{{0, 1}, {1, 2}, {5, 6}}, []int{0, 0, 0}},
		"one in another":      {[]interval{{0, 10}, {2, 3}, {3, 10}}, []int{0, 0, 0}},
		"half in another":     {[]interval{{0, 10}, {5, 15}, {10, 20}}, []int{0, 1, 0}},
		"the same twice":      {[]interval{{0, 10}, {0, 10}}, []int{0, 0}},
		"the inner one first": {[]interval{{2, 3}, {0, 10}}, []int{0, 0}},
	} {
		if got := assignRows(c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: rows %v, want %v", name, got, c.want)
		}
	}
}

func TestRecords_WriteChrome(t *testing.T) {
	fill := Record{Kind: Fill, Stream: 10, Start: 1, End: 2, Launch: 0, Bytes: 8}
	r := handMade([]Record{kernel(10, 1, 2), kernel(9, 1, 2), copied(2, 3, 5), kernel(1, 2, 30000000), fill},
		Mark{`step "0"`, 0, 4}, Mark{"step 1", 4, 9})
	var out bytes.Buffer
	if err := r.WriteChrome(&out); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Name     string   `json:"name"`
			Phase    string   `json:"ph"`
			Process  int      `json:"pid"`
			Row      int      `json:"tid"`
			Time     *float64 `json:"ts"`
			Duration *float64 `json:"dur"`
			Args     struct {
				Name     string  `json:"name"`
				Enqueued float64 `json:"enqueued"`
			} `json:"args"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(out.Bytes(), &file); err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	rows, events := map[int]string{}, map[string][]string{}
	for _, e := range file.TraceEvents {
		switch {
		case e.Name == "thread_name" && e.Process == 2:
			rows[e.Row] = e.Args.Name
		case e.Phase == "X":
			if e.Time == nil || e.Duration == nil {
				t.Fatalf("%s has no time", e.Name)
			}
			where := "host"
			if e.Process == 2 {
				where = rows[e.Row]
			}
			events[where] = append(events[where], e.Name)
		}
	}
	for i, want := range []string{"default stream: marks", "default stream", "stream 9: marks", "stream 9", "stream 10: marks", "stream 10", "prefetcher copies"} {
		if rows[i+1] != want {
			t.Errorf("row %d is %q, want %q", i+1, rows[i+1], want)
		}
	}
	for where, want := range map[string][]string{
		"host": {`step "0"`, "step 1"}, "default stream": {"k<float, 4>"}, "default stream: marks": {`step "0"`},
		"prefetcher copies": {"copy host to device"}, "stream 10": {"k<float, 4>", "fill"},
	} {
		if !slices.Equal(events[where], want) {
			t.Errorf("%s has %q, want %q", where, events[where], want)
		}
	}
	if text := out.String(); !bytes.Contains(out.Bytes(), []byte(`"dur":29999998.000`)) {
		t.Errorf("a long kernel's time is not exact:\n%s", text)
	}
	full := errors.New("full")
	if err := r.WriteChrome(failing{full}); !errors.Is(err, full) {
		t.Errorf("a writer that fails gives %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Work on the CPU is not recorded, so this trace has marks only. A second Start fails while a
// trace runs.
func TestTrace_Marks(t *testing.T) {
	torchtest.CheckLeaks(t)
	trace, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start()
	torchtest.WantError(t, err, cgotorch.ErrMisuse, "a trace is running already", "trace_test.go")
	end := trace.Mark("first")
	time.Sleep(2 * time.Millisecond)
	end()
	end()
	open := trace.Mark("open")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) { x.Ones(cgotorch.Float32, 4) })
	r, err := trace.Stop()
	if err != nil {
		t.Fatal(err)
	}
	open()
	if len(r.Marks) != 2 || r.Marks[0].Name != "first" || r.Marks[0].End-r.Marks[0].Start < time.Millisecond || r.Marks[1].End < r.Marks[1].Start || r.Marks[1].End == 0 {
		t.Errorf("marks %v", r.Marks)
	}
	if len(r.Work) != 0 {
		t.Errorf("the cgotorch.CPU's work is in the trace: %v", r.Work[0])
	}
	if share, _, total := r.CopyHidden(); share != 1 || total != 0 {
		t.Errorf("%v of %v is hidden of nothing", share, total)
	}
	_, err = trace.Stop()
	torchtest.WantError(t, err, cgotorch.ErrClosed, "the trace has been stopped")
	again, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Stop(); err != nil {
		t.Error(err)
	}
}

// A record of a kernel or a copy has the stream, the size and the thread.
func TestTrace_OnCUDA(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	before, err := cgotorch.NewStream(d, cgotorch.StreamOptions{Name: "made before"})
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	var a, b *cgotorch.Tensor
	err = before.Do(func(x *cgotorch.Exec) error {
		a, b = x.Keep(x.Ones(cgotorch.Float32, 1<<16)), x.Keep(x.Ones(cgotorch.Float32, 1<<16))
		return nil
	})
	defer a.Close()
	defer b.Close()
	if err = errors.Join(err, d.Synchronize()); err != nil {
		t.Fatal(err)
	}
	trace, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	during, err := cgotorch.NewStream(d, cgotorch.StreamOptions{Name: "made during"})
	if err != nil {
		t.Fatal(err)
	}
	defer during.Close()
	end := trace.Mark("adds")
	for _, s := range []*cgotorch.Stream{before, during} {
		if err := s.Do(func(x *cgotorch.Exec) error {
			x.AddScalarInPlace(map[*cgotorch.Stream]*cgotorch.Tensor{before: a, during: b}[s], 1.0)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if err := during.Do(func(x *cgotorch.Exec) error { cgotorch.FromSlice(x, make([]uint8, 12345)); return nil }); err != nil {
		t.Fatal(err)
	}
	r, err := trace.Stop()
	if err != nil {
		t.Fatal(err)
	}
	kernels, copies := map[string]int{}, 0
	for _, w := range r.Work {
		if w.End < w.Start || w.Device != d {
			t.Errorf("%+v", w)
		}
		switch w.Kind {
		case Kernel:
			kernels[w.StreamName]++
			if w.Name == "" || w.Blocks == 0 || w.Thread == 0 || !w.Launched {
				t.Errorf("%+v", w)
			}
		case Copy:
			copies++
			if w.Bytes != 12345 || w.Copy != "host to device" || !w.Pageable || w.StreamName != "made during" {
				t.Errorf("%+v", w)
			}
		}
	}
	if len(kernels) != 2 || kernels["made before"] != 1 || kernels["made during"] != 1 || copies != 1 {
		t.Errorf("kernels %v and %d copies", kernels, copies)
	}
	if spans := r.spans(); len(spans) != 2 || spans[0].mark.Name != "adds" {
		t.Errorf("spans %v", spans)
	}
}

func TestStream_Names(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		s := cgotorch.DefaultStream(d)
		if got, want := s.String(), "default stream of "+d.String(); got != want {
			t.Errorf("the default stream is %q, want %q", got, want)
		}
		named, err := cgotorch.NewStream(d, cgotorch.StreamOptions{Name: "copies"})
		if err != nil {
			t.Fatal(err)
		}
		defer named.Close()
		if got, want := named.String(), "copies of "+d.String(); got != want {
			t.Errorf("the stream is %q, want %q", got, want)
		}
		a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		if a.String() == b.String() {
			t.Errorf("two streams are called %v", a)
		}
	})
}
