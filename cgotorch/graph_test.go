package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// captured returns a graph of fn. The graph is closed when the test ends.
func captured(t testing.TB, s *Stream, warmUp int, fn func(x *Exec)) *Graph {
	t.Helper()
	g := Must(s.Capture(func(x *Exec) error { fn(x); return nil }, warmUp))
	t.Cleanup(func() { g.Close() })
	return g
}

func launch(t testing.TB, g *Graph, s *Stream) {
	t.Helper()
	must.Do(t, g.Launch(s))
}

// kept returns n tensors that fn makes outside captures. They are closed when the test ends.
func kept(t testing.TB, s *Stream, n int, fn func(x *Exec) *Tensor) []*Tensor {
	t.Helper()
	var ts []*Tensor
	torchtest.DoOn(t, s, func(x *Exec) {
		for range n {
			ts = append(ts, x.Keep(fn(x)))
		}
	})
	t.Cleanup(func() { closeAll(ts) })
	return ts
}

// trainable returns copies of the tensors `of`. The copies require gradients. They are closed when
// the test ends.
func trainable(t testing.TB, s *Stream, of []*Tensor) []*Tensor {
	t.Helper()
	next := 0
	ts := kept(t, s, len(of), func(x *Exec) *Tensor {
		next++
		return x.Clone(of[next-1])
	})
	for _, w := range ts {
		must.Do(t, w.SetRequiresGrad(true))
	}
	return ts
}

func scalar(x *Exec) *Tensor { return x.Zeros(Float32) }

func itemOf(t testing.TB, s *Stream, of *Tensor) (v float64) {
	t.Helper()
	torchtest.DoOn(t, s, func(x *Exec) { v = x.Item(of) })
	return v
}

// A launch has the same effect as a call of the function, on any stream. On the CPU a launch
// calls the function.
func TestGraph_Launch(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		n := kept(t, s, 1, scalar)[0]
		calls := 0
		g := captured(t, s, 0, func(x *Exec) {
			calls++
			x.AddScalarInPlace(n, 1)
		})
		if got := itemOf(t, s, n); got != 0 {
			t.Errorf("after Capture it is %v: the work was run", got)
		}
		launch(t, g, s)
		launch(t, g, s)
		other := DefaultStream(d)
		e := record(t, s)
		other.Wait(e)
		e.Close()
		launch(t, g, other)
		if got := itemOf(t, other, n); got != 3 {
			t.Errorf("after 3 launches it is %v", got)
		}
		if want := map[bool]int{true: 1, false: 3}[d.IsCUDA()]; calls != want {
			t.Errorf("the function was called %d times, want %d", calls, want)
		}
		size, err := GraphSize(g)
		if want := map[bool]int64{true: 1}[d.IsCUDA()]; err != nil || size.Kernels != want || size.Nodes != want {
			t.Errorf("Size is %+v, %v", size, err)
		}
	})
}

func TestGraph_WarmUp(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		n := kept(t, s, 1, scalar)[0]
		g := captured(t, s, 2, func(x *Exec) { x.AddScalarInPlace(n, 1) })
		launch(t, g, s)
		if got := itemOf(t, s, n); got != 3 {
			t.Errorf("two warm-up runs and a launch add %v", got)
		}
	})
}

// Two graphs of one pool use the same memory. They still give right results if the program
// launches them on two streams without waits.
func TestGraph_SharedPool(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		pool := Must(NewPool(d))
		defer pool.Close("test")
		streams := []*Stream{torchtest.NewStream(t, d), torchtest.NewStream(t, d)}
		sums := kept(t, streams[0], 2, scalar)
		synchronize(t, streams[0])
		const n = 1 << 20
		var graphs []*Graph
		var memory []int64
		for i, sum := range sums {
			g := Must(CaptureInto(pool, streams[0], func(x *Exec) error {
				x.Tidy(func() *Tensor {
					ones := x.Full(Float32, float64(i+1), n)
					for range 10 {
						ones = x.Tidy(func() *Tensor { return x.SubScalar(x.AddScalar(ones, 1), 1) })
					}
					x.AddInPlace(sum, x.Mean(ones))
					return nil
				})
				return nil
			}))
			defer g.Close()
			graphs = append(graphs, g)
			bytes := Must(pool.Memory("test"))
			memory = append(memory, bytes)
		}
		if memory[0] != memory[1] || (memory[0] > 2*4*n) != d.IsCUDA() {
			t.Errorf("with one graph and with two the pool holds %v bytes", memory)
		}
		const launches = 20
		for range launches {
			launch(t, graphs[0], streams[0])
			launch(t, graphs[1], streams[1])
		}
		for i, sum := range sums {
			if got := itemOf(t, streams[i], sum); got != float64(launches*(i+1)) {
				t.Errorf("sum %d is %v", i, got)
			}
		}
	})
}

func synchronize(t testing.TB, s *Stream) {
	t.Helper()
	must.Do(t, s.Synchronize())
}

// A captured function can use a second stream. The second stream waits for the first stream, and
// at the end the first stream waits for the second stream.
func TestGraph_ForkAndJoin(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s, side := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		out := kept(t, s, 1, func(x *Exec) *Tensor { return x.Zeros(Float32, 256, 256) })[0]
		g := captured(t, s, 1, func(x *Exec) {
			a := x.Full(Float32, 0.5, 256, 256)
			y := x.On(side)
			forked := x.Record()
			defer forked.Close()
			y.Wait(forked)
			b := y.MatMul(a, a)
			c := x.MatMul(a, a)
			joined := y.Record()
			defer joined.Close()
			x.Wait(joined)
			x.AddOut(b, c, out)
		})
		// Other work can run on the second stream. The graph does not use that stream.
		torchtest.DoOn(t, side, func(x *Exec) { torchtest.Sleep(x, time.Millisecond) })
		launch(t, g, s)
		torchtest.DoOn(t, s, func(x *Exec) {
			if got := x.Item(x.Mean(out)); got != 128 {
				t.Errorf("the mean is %v", got)
			}
		})
	})
}

// A launch draws the same random numbers as a call of the function. The numbers are the same even
// if eager work and another graph draw random numbers between the launches.
func TestGraph_Random(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		outs := kept(t, s, 2, func(x *Exec) *Tensor { return x.Zeros(Float32, 1000) })
		draw := func(i int) func(x *Exec) {
			return func(x *Exec) {
				for range i + 1 {
					x.CopyInPlace(outs[i], x.Dropout(x.Ones(Float32, 1000), 0.5, true))
				}
			}
		}
		sequence := func(step func(i int)) (seen [][]float32) {
			must.Do(t, Seed(7))
			for i := range 6 {
				step(i % 2)
				torchtest.DoOn(t, s, func(x *Exec) {
					seen = append(seen, ToSlice[float32](x, outs[i%2]), ToSlice[float32](x, x.Rand(Float32, 3)))
				})
			}
			return seen
		}
		want := sequence(func(i int) {
			torchtest.DoOn(t, s, func(x *Exec) { draw(i)(x) })
		})
		graphs := []*Graph{captured(t, s, 1, draw(0)), captured(t, s, 0, draw(1))}
		got := sequence(func(i int) { launch(t, graphs[i], s) })
		for i := range want {
			if !slices.Equal(want[i], got[i]) {
				t.Fatalf("draw %d is %v, want %v", i, got[i][:3], want[i][:3])
			}
		}
		if size, err := GraphSize(graphs[0]); err != nil || (size.Random != 0) != d.IsCUDA() {
			t.Errorf("Size is %+v, %v", size, err)
		}
	})
}

// Each launch calls the function given to EachLaunch. The captured function calls DependsOn for a
// value. If this value has changed, a launch fails.
func TestGraph_EachLaunch_DependsOn(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		ts := kept(t, s, 2, scalar)
		rate, sum := ts[0], ts[1]
		steps, momentum := 0, 0.5
		g := captured(t, s, 0, func(x *Exec) {
			x.EachLaunch(func(x *Exec) {
				steps++
				x.FillInPlace(rate, float64(steps))
			})
			used := momentum
			x.DependsOn(func() string {
				if momentum != used {
					return "the momentum has changed"
				}
				return ""
			})
			x.AddInPlace(sum, x.MulScalar(rate, momentum))
		})
		if steps != 0 {
			t.Error("Capture called what is for launches")
		}
		for range 3 {
			launch(t, g, s)
		}
		if got := itemOf(t, s, sum); got != 3 || steps != 3 {
			t.Errorf("the sum is %v after %d steps", got, steps)
		}
		momentum = 1
		err := g.Launch(s)
		if !d.IsCUDA() {
			if err != nil { // the launch calls the function, which reads the new value
				t.Error(err)
			}
			return
		}
		wantError(t, err, ErrStale, "Exec.Launch", "the momentum has changed", "capture again")
	})
}

// A capture of work that cannot be captured fails with an error that names the operator. The
// stream can still be used.
func TestGraph_NotCapturable(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	ts := kept(t, s, 2, func(x *Exec) *Tensor { return x.Ones(Float32, 4) })
	outside := record(t, s)
	defer outside.Close()
	g := captured(t, s, 0, func(x *Exec) { x.AddScalarInPlace(ts[1], 1) })
	for name, test := range map[string]struct {
		fn    func(x *Exec)
		want  error
		texts []string
	}{
		"Item":      {func(x *Exec) { x.Item(x.Sum(ts[0])) }, ErrNotCapturable, []string{"Exec.Item", "behind a launch"}},
		"ToSlice":   {func(x *Exec) { ToSlice[float32](x, ts[0]) }, ErrNotCapturable, []string{"ToSlice"}},
		"FromSlice": {func(x *Exec) { FromSlice(x, []float32{1}) }, ErrNotCapturable, []string{"FromSlice"}},
		"ReadAsync": {func(x *Exec) { x.ReadAsync(ts[0]) }, ErrNotCapturable, []string{"Exec.ReadAsync"}},
		"CopyFrom":  {func(x *Exec) { CopyFrom(x, ts[0], []float32{1, 2, 3, 4}) }, ErrNotCapturable, []string{"CopyFrom", "pinned"}},
		"nonzero":   {func(x *Exec) { x.Call("aten::nonzero", ts[0]) }, ErrNotCapturable, []string{"aten::nonzero"}},
		"an event":  {func(x *Exec) { x.Wait(outside) }, ErrNotCapturable, []string{"Exec.Wait", "outside the capture"}},
		"a capture": {func(x *Exec) {
			_, err := CaptureGraph(x, func(*Exec) error { return nil }, 0)
			mustNot(x, err)
		}, ErrNotCapturable, []string{"Stream.Capture", "capture inside a capture"}},
		"a launch":        {func(x *Exec) { x.Launch(g) }, ErrNotCapturable, []string{"Exec.Launch"}},
		"no join":         {func(x *Exec) { e := x.Record(); defer e.Close(); y := x.On(other); y.Wait(e); y.AddScalar(ts[0], 1) }, ErrNotCapturable, []string{"Stream.Capture"}},
		"no fork":         {func(x *Exec) { x.On(other).AddScalar(ts[0], 1) }, ErrNotCapturable, []string{"aten::add", "no part of the capture"}},
		"the generator":   {func(x *Exec) { mustNot(x, Seed(1)) }, ErrNotCapturable, []string{"Seed", "inside a capture"}},
		"a wrong operand": {func(x *Exec) { x.MatMul(ts[0], x.Ones(Float32, 3, 3)) }, ErrInvalidArgument, []string{"aten::matmul"}},
		"an own error":    {func(x *Exec) { x.Fail("mine", errOwn) }, errOwn, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Capture(func(x *Exec) error { test.fn(x); return nil }, 0)
			wantError(t, err, test.want, append(test.texts, "graph_test.go")...)
			// The stream and the existing graph still work.
			launch(t, g, s)
			torchtest.DoOn(t, s, func(x *Exec) { x.Item(x.Sum(x.Dropout(ts[0], 0.5, true))) })
		})
	}
	wantPanic := func(name string, fn func(x *Exec)) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s does not panic", name)
			}
			launch(t, g, s)
		}()
		_, _ = s.Capture(func(x *Exec) error { fn(x); return nil }, 0)
	}
	wantPanic("a panic of the program's", func(x *Exec) { panic("mine") })
	_ = s.Do(func(outer *Exec) error {
		defer func() {
			if recover() == nil {
				t.Error("the outer Exec can be used inside a capture")
			}
		}()
		_, _ = CaptureGraph(outer, func(x *Exec) error { outer.Ones(Float32); return nil }, 0)
		return nil
	})
	launch(t, g, s)
}

func mustNot(x *Exec, err error) {
	if err != nil {
		x.Fail("mine", err)
	}
}

func TestGraph_Close(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		n := kept(t, s, 1, scalar)[0]
		g, err := s.Capture(func(x *Exec) error { x.AddScalarInPlace(n, 1); return nil }, 0)
		if err != nil {
			t.Fatal(err)
		}
		launch(t, g, s)
		for range 2 {
			must.Do(t, g.Close())
		}
		wantError(t, g.Launch(s), ErrClosed, "Exec.Launch", "the graph is closed")
		pool := Must(NewPool(d))
		pool.Close("test")
		_, err = CaptureInto(pool, s, func(x *Exec) error { return nil })
		wantError(t, err, ErrClosed, "the pool of graphs is closed")
		wantError(t, (&Graph{}).Launch(s), ErrInvalidArgument, "not made by Capture")
	})
}

// Fills of every size and alignment are captured as kernels. These kernels write no memory
// outside the fill.
func TestGraph_Fills(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		whole := kept(t, s, 1, func(x *Exec) *Tensor { return x.Ones(Uint8, 70_000) })[0]
		want := slices.Repeat([]uint8{1}, 70_000)
		g := captured(t, s, 0, func(x *Exec) {
			for i, n := range []int{1, 3, 16, 17, 31, 32, 1000, 4096, 16_384 + 5} {
				at := 4096*i + i
				x.ZeroInPlace(x.Narrow(whole, 0, at, n))
				clear(want[at : at+n])
			}
		})
		launch(t, g, s)
		size, err := GraphSize(g)
		if err != nil || size.Fills != 0 || d.IsCUDA() && size.Kernels == 0 {
			t.Errorf("Size is %+v, %v", size, err)
		}
		torchtest.DoOn(t, s, func(x *Exec) {
			if got := ToSlice[uint8](x, whole); !slices.Equal(got, want) {
				t.Error("the fills have written something else")
			}
		})
	})
}

// If the captured function keeps a tensor, this tensor has the result of the last launch.
func TestGraph_Keep(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	n := kept(t, s, 1, scalar)[0]
	var double *Tensor
	g := captured(t, s, 0, func(x *Exec) {
		x.AddScalarInPlace(n, 1)
		double = x.Keep(x.MulScalar(n, 2))
	})
	defer func() { double.Close() }()
	for i := range 3 {
		launch(t, g, s)
		if got := itemOf(t, s, double); got != float64(2*(i+1)) {
			t.Errorf("launch %d gives %v", i, got)
		}
	}
}

// A launch returns while the device is busy.
func TestGraph_Launch_DoesNotWait(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	n := kept(t, s, 1, scalar)[0]
	g := captured(t, s, 1, func(x *Exec) { x.AddInPlace(n, x.Mean(x.Dropout(x.Ones(Float32, 100), 0.5, true))) })
	launch(t, g, s)
	synchronize(t, s)
	var busy *Event
	torchtest.DoOn(t, s, func(x *Exec) {
		y := x.NoWaits() // NoWaits is called before Sleep, because NoWaits opens CUPTI, which takes a while
		torchtest.Sleep(x, 500*time.Millisecond)
		busy = x.Record()
		for range 10 {
			y.Launch(g)
		}
	})
	defer busy.Close()
	if done, err := busy.Query(); done || err != nil {
		t.Errorf("the device was done when ten launches had returned: %v, %v", done, err)
	}
	synchronize(t, s)
}

// Captures and launches in several goroutines give right results while all goroutines draw random
// numbers.
func TestGraph_Goroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		rounds := 20
		if testing.Short() {
			rounds = 4
		}
		onStreams(t, d, 6, func(i int, s *Stream) error {
			for range rounds {
				if err := captureOnce(s, i%2 == 0); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// captureOnce runs a step five times. Each step adds 2 to the tensor n, which is 0 at first, and
// uses random numbers that cancel out. If n is not 10 at the end, captureOnce fails. If `inGraph`
// is true, one run is a warm-up run and four runs are launches of a graph.
func captureOnce(s *Stream, inGraph bool) error {
	var n *Tensor
	if err := s.Do(func(x *Exec) error { n = x.Keep(x.Zeros(Float32)); return nil }); err != nil {
		return err
	}
	defer n.Close()
	step := func(x *Exec) error {
		random := x.Dropout(x.Ones(Float32, 64), 0.5, true) // each element is 0 or 2
		x.AddInPlace(n, x.Mean(x.Add(random, x.AddScalar(x.Neg(random), 2))))
		slab := Must(NewHostSlab(CPU, 4096))
		if s.Device().IsCUDA() {
			Check(slab.Pin())
		}
		return slab.Close()
	}
	if inGraph {
		g, err := s.Capture(step, 1)
		if err != nil {
			return err
		}
		defer g.Close()
		for range 4 {
			if err := g.Launch(s); err != nil {
				return err
			}
		}
	} else {
		for range 5 {
			if err := s.Do(step); err != nil {
				return err
			}
		}
	}
	return s.Do(func(x *Exec) error {
		if got := x.Item(n); got != 10 {
			return errors.New("the sum is not 10")
		}
		return nil
	})
}

// A launch of a graph can call a function of the program. In this function, Close of the graph
// fails, because it would wait for the launch. In a function given to EachLaunch, a launch fails
// too. A captured function has the modes and lent tensors of the Exec that captures it.
func TestGraph_Inside(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		n := kept(t, s, 1, scalar)[0]
		var g *Graph
		var inside []error
		ask := func() { inside = append(inside, g.Close()) }
		g = captured(t, s, 0, func(x *Exec) {
			x.AddScalarInPlace(n, 1)
			if !d.IsCUDA() {
				ask()
			}
			x.EachLaunch(func(*Exec) { ask() })
		})
		launch(t, g, s)
		if len(inside) == 0 {
			t.Error("nothing was asked")
		}
		for _, err := range inside {
			wantError(t, err, ErrMisuse, "inside the captured function")
		}

		second := captured(t, s, 0, func(x *Exec) { x.EachLaunch(func(x *Exec) { x.Launch(g) }) })
		wantError(t, second.Launch(s), ErrNotCapturable, "Exec.Launch", "EachLaunch")

		var grad []bool
		torchtest.DoOn(t, s, func(x *Exec) error {
			modes, err := CaptureGraph(x.NoGrad(), func(y *Exec) error { grad = append(grad, y.GradEnabled()); return nil }, 1)
			if err != nil {
				return err
			}
			defer modes.Close()
			x.Launch(modes)
			if len(grad) != 2 || grad[0] || grad[1] {
				t.Errorf("with gradients: %v", grad)
			}
			lent := x.Lend(n, "batch 1")
			_, err = CaptureGraph(x, func(y *Exec) error { y.Keep(y.Alias(lent)); return nil }, 1)
			wantError(t, err, ErrInvalidArgument, "Exec.Keep", "batch 1")
			_, err = CaptureGraph(x, nil, 0)
			wantError(t, err, ErrInvalidArgument, "the function is nil")
			return nil
		})
	})
}

// Keep fails in a capture if the pool has another graph. After that graph is closed, Keep
// succeeds.
func TestGraph_Keep_SharedPool(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	pool, err := NewPool(d)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close("test")
	var keeps []*Tensor
	keep := func(x *Exec) error { keeps = append(keeps, x.Keep(x.Ones(Float32, 8))); return nil }
	defer func() { closeAll(keeps) }()
	g := Must(CaptureInto(pool, s, keep))
	_, err = CaptureInto(pool, s, keep)
	wantError(t, err, ErrNotCapturable, "Exec.Keep", "other graphs of the pool")
	g.Close()
	again := Must(CaptureInto(pool, s, keep))
	launch(t, again, s)
	again.Close()
}

// A pool's streams are free for new owners when the pool's last graph is closed. If the graph
// still runs then, work of the new owners begins behind it.
func TestGraph_CloseGivesStreamsBehindLaunches(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	g := captured(t, s, 1, func(x *Exec) { torchtest.Sleep(x, 300*time.Millisecond) })
	launch(t, g, s)
	g.Close()
	event := record(t, torchtest.NewStream(t, d)) // the stream of the pool
	defer event.Close()
	isBusy(t, event, "a stream of the closed pool does not wait for the graph")
	synchronize(t, s)
}
