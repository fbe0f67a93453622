//go:build cgo && linux

package streams

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// expectation is the work that a goroutine must have run. All of this work must be on the
// goroutine's stream.
type expectation struct {
	stream  string // its name
	thread  int    // the only thread that may enqueue the work; 0 if any thread may
	kernels int    // number of operators, each of which has one kernel
	fills   int    // number of fills of `bytes` bytes; no other goroutine fills that number of bytes
	bytes   int64
}

// describe names a record's kernel or copy.
func describe(w trace.Record) string {
	return fmt.Sprintf("work of kind %d, %q", w.Kind, w.Name+w.Copy)
}

// misplaced compares a trace with the expectations and describes each difference. A difference is
// a wrong number, a wrong stream, a wrong thread, or work that belongs to no goroutine. misplaced
// does not assign work to goroutines by the stream. It assigns work by the number of blocks of a
// kernel, the number of bytes of a fill, and the thread.
func misplaced(r *trace.Records, want []expectation) (all []string) {
	type tally struct {
		kernels, fills int
		blocks         map[uint32]int
	}
	got, owners := map[string]*tally{}, map[string]*expectation{}
	threads, sizes, blocks := map[int]*expectation{}, map[int64]*expectation{}, map[uint32]string{}
	for i := range want {
		w := &want[i]
		owners[w.stream], got[w.stream] = w, &tally{blocks: map[uint32]int{}}
		if w.thread != 0 {
			threads[w.thread] = w
		}
		if w.fills > 0 {
			sizes[w.bytes] = w
		}
	}
	wrong := map[string]int{}
	for _, w := range r.Work {
		t := got[w.StreamName]
		if t == nil {
			wrong[fmt.Sprintf("%s on %s, where nobody works", describe(w), w.StreamName)]++
			continue
		}
		switch w.Kind {
		case trace.Kernel:
			t.kernels++
			t.blocks[w.Blocks]++
			if first, ok := blocks[w.Blocks]; !ok {
				blocks[w.Blocks] = w.StreamName
			} else if first != w.StreamName {
				wrong[fmt.Sprintf("kernels of %d blocks on two streams", w.Blocks)]++
			}
			if w.Thread == 0 {
				wrong["a kernel of which the launch is not in the trace"]++
			} else if of := threads[w.Thread]; of == nil || of.stream != w.StreamName {
				wrong["a kernel that another thread enqueued than the stream's own"]++
			}
		case trace.Fill:
			t.fills++
			if of := sizes[w.Bytes]; of == nil || of.stream != w.StreamName {
				wrong["a fill on another stream than its own"]++
			}
		default:
			wrong[describe(w)]++
		}
	}
	for stream, w := range owners {
		t := got[stream]
		if t.kernels != w.kernels || t.fills != w.fills {
			all = append(all, fmt.Sprintf("%s ran %d kernels and %d fills, want %d and %d", stream, t.kernels, t.fills, w.kernels, w.fills))
		}
		if len(t.blocks) > 1 {
			all = append(all, fmt.Sprintf("%s ran kernels of sizes %v, want one size", stream, t.blocks))
		}
	}
	for what, times := range wrong {
		all = append(all, fmt.Sprintf("%s, %d times", what, times))
	}
	return all
}

// witnessed runs fn in 64 goroutines, each with its own stream, with GOMAXPROCS 16. It returns
// the records of CUPTI. The function `stream` makes the streams. None is closed before the end,
// because two streams could otherwise have the same thread. The function `before` runs first and is
// not traced.
func witnessed(t *testing.T, d cgotorch.Device, stream func(i int) (*cgotorch.Stream, error), before, fn func(i int, s *cgotorch.Stream) (expectation, error)) (*trace.Records, []expectation) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	var prepared, all sync.WaitGroup
	begin, want := make(chan bool), make([]expectation, goroutines)
	prepared.Add(goroutines)
	all.Add(goroutines)
	streams := make([]*cgotorch.Stream, goroutines)
	for i := range streams {
		s := must.Get(stream(i))(t)
		defer s.Close()
		streams[i] = s
	}
	for i, s := range streams {
		go func() {
			defer all.Done()
			_, err := before(i, s)
			prepared.Done()
			<-begin
			if err == nil {
				want[i], err = fn(i, s)
			}
			want[i].stream = strings.TrimSuffix(s.String(), " of "+d.String())
			if err != nil {
				t.Errorf("goroutine %d: %v", i, err)
			}
		}()
	}
	prepared.Wait()
	must.Check(t, d.Synchronize())
	trace, err := trace.Start()
	close(begin)
	all.Wait()
	must.Do(t, err)
	r := must.Get(trace.Stop())(t)
	return r, want
}

// In the driver's own records of a million operators of 64 goroutines, each kernel ran on the
// stream that was given. The current stream of each thread is unchanged.
func TestWitness_EveryKernelOnItsStream(t *testing.T) {
	d := torchtest.CUDA(t)
	operators, perDo := 1_000_000/goroutines, 125
	if testing.Short() || os.Getenv("CGOTORCH_CHECK") != "" { // under the stream checker all goroutines wait for one lock
		operators = 1000
	}
	tensors := make([]*cgotorch.Tensor, goroutines)
	add := func(x *cgotorch.Exec, i int) { x.AddScalarInPlace(tensors[i], 1.0) }
	before := func(i int, s *cgotorch.Stream) (expectation, error) {
		return expectation{}, s.Do(func(x *cgotorch.Exec) error {
			tensors[i] = x.Keep(x.Zeros(cgotorch.Float32, int64(4096*(i+1)))) // the number of elements, and so of blocks, is different for each goroutine
			add(x, i)
			return nil
		})
	}
	defer func() {
		for _, t := range tensors {
			t.Close()
		}
	}()
	named := func(i int) (*cgotorch.Stream, error) {
		return cgotorch.NewStream(d, cgotorch.StreamOptions{Name: fmt.Sprintf("goroutine %d", i)})
	}
	r, want := witnessed(t, d, named, before, func(i int, s *cgotorch.Stream) (expectation, error) {
		w := expectation{kernels: operators}
		for done := 0; done < operators; done += perDo {
			runtime.Gosched()
			err := s.Do(func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				was, err := ambient.Current(0)
				if err != nil {
					return err
				}
				for k := range perDo {
					add(x, i)
					if k%3 == 0 {
						runtime.Gosched()
					}
					if now, err := ambient.Current(0); now != was || err != nil {
						return fmt.Errorf("the thread's current stream is %#x, and was %#x, %v", now, was, err)
					}
				}
				if w.thread == 0 {
					w.thread = syscall.Gettid()
				} else if w.thread != syscall.Gettid() {
					return errors.New("the stream has two threads")
				}
				return nil
			})
			if err != nil {
				return w, err
			}
		}
		return w, nil
	})
	if len(r.Work) != operators*goroutines {
		t.Errorf("%d records, want %d", len(r.Work), operators*goroutines)
	}
	for _, wrong := range misplaced(r, want) {
		t.Error(wrong)
	}
	err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
		for i, tensor := range tensors {
			if got := x.Item(x.Max(tensor)); got != float64(operators+1) {
				return fmt.Errorf("goroutine %d counted to %v, want %d", i, got, operators+1)
			}
		}
		return nil
	})
	if err = errors.Join(err, cgotorch.DefaultStream(d).Close()); err != nil {
		t.Error(err)
	}
}

// The same check finds the mistake of a binding that keeps a current stream. The binding sets the
// stream in one call and uses it in the next.
func TestWitness_FindsACurrentStream(t *testing.T) {
	d := torchtest.CUDA(t)
	const fills = 2000
	memory, natives := make([]*ambient.Memory, goroutines), make([]uintptr, goroutines)
	for i := range natives {
		var err error
		if natives[i], err = ambient.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	external := func(i int) (*cgotorch.Stream, error) { return cgotorch.ExternalStream(d, natives[i]) }
	before := func(i int, s *cgotorch.Stream) (w expectation, err error) {
		memory[i], err = ambient.Allocate(1024 * (i + 1))
		return w, err
	}
	defer func() {
		for _, m := range memory {
			if m != nil {
				m.Free()
			}
		}
	}()
	run := func(locked bool) (*trace.Records, []expectation) {
		return witnessed(t, d, external, before, func(i int, s *cgotorch.Stream) (expectation, error) {
			if locked {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			var err error
			for k := 0; k < fills && err == nil; k++ {
				was, _ := ambient.Current(0)
				err = ambient.SetCurrent(0, natives[i])
				runtime.Gosched()
				if err == nil {
					err = memory[i].Fill()
				}
				if locked { // otherwise another goroutine may run on the thread now
					err = errors.Join(err, ambient.SetCurrent(0, was))
				}
			}
			return expectation{fills: fills, bytes: int64(1024 * (i + 1))}, err
		})
	}
	r, want := run(false)
	if wrong := misplaced(r, want); len(wrong) == 0 {
		t.Error("nothing is on a wrong stream: the test would find nothing")
	} else {
		t.Logf("found: %v", wrong)
	}
	// On locked threads the check finds nothing. The differences above therefore come from the change
	// of threads.
	for _, m := range memory {
		m.Free()
	}
	r, want = run(true)
	for _, wrong := range misplaced(r, want) {
		t.Errorf("on locked threads: %s", wrong)
	}
}

// misplaced finds each mistake in hand-made traces.
func TestWitness_Misplaced(t *testing.T) {
	want := []expectation{{stream: "1", thread: 11, kernels: 2}, {stream: "2", thread: 12, kernels: 1}, {stream: "3", fills: 1, bytes: 64}}
	kernel := func(stream, thread int, blocks uint32) trace.Record {
		return trace.Record{Kind: trace.Kernel, Name: "add", StreamName: strconv.Itoa(stream), Thread: thread, Blocks: blocks}
	}
	fill := trace.Record{Kind: trace.Fill, StreamName: "3", Bytes: 64}
	moved := fill
	moved.StreamName = "2"
	for name, c := range map[string]struct {
		work []trace.Record
		want bool // whether the trace is wrong
	}{
		"all in place":        {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 4), fill, kernel(1, 11, 2)}, false},
		"one too few":         {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 4), fill}, true},
		"one too many":        {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 4), fill, kernel(1, 11, 2), kernel(1, 11, 2)}, true},
		"two changed streams": {[]trace.Record{kernel(1, 11, 2), kernel(2, 11, 2), fill, kernel(1, 12, 4)}, true},
		"another's thread":    {[]trace.Record{kernel(1, 11, 2), kernel(2, 11, 4), fill, kernel(1, 11, 2)}, true},
		"an unknown launch":   {[]trace.Record{kernel(1, 11, 2), kernel(2, 0, 4), fill, kernel(1, 11, 2)}, true},
		"another's size":      {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 2), fill, kernel(1, 11, 2)}, true},
		"nobody's stream":     {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 4), fill, kernel(1, 11, 2), kernel(9, 11, 2)}, true},
		"a fill elsewhere":    {[]trace.Record{kernel(1, 11, 2), kernel(2, 12, 4), moved, kernel(1, 11, 2)}, true},
	} {
		if wrong := misplaced(&trace.Records{Work: c.work}, want); (len(wrong) > 0) != c.want {
			t.Errorf("%s: found %q", name, wrong)
		}
	}
}
