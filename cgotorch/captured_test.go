package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// newCaptured returns a Captured that writes to the test's log. It is closed when the test ends.
func newCaptured(t testing.TB, o CapturedOptions, fn func(x *Exec, in ...*Tensor) []*Tensor) *Captured {
	t.Helper()
	o.Log = func(text string) { t.Log(text) }
	c := NewCaptured(fn, o)
	t.Cleanup(func() { c.Close() })
	return c
}

// wantStats fails the test if c's stats differ from `want`. On the CPU every Run must have been
// eager.
func wantStats(t *testing.T, d Device, c *Captured, want CapturedStats) {
	t.Helper()
	got := c.Stats()
	if !d.IsCUDA() {
		want = CapturedStats{Eager: want.Eager + want.Launches, Why: got.Why}
		if !strings.Contains(got.Why, "CPU") {
			t.Errorf("Why is %q", got.Why)
		}
	}
	if want.Why != "" && strings.Contains(got.Why, want.Why) {
		want.Why = got.Why
	}
	if got != want {
		t.Errorf("Stats are %+v, want %+v", got, want)
	}
}

// Each Run has the same effect as a call of the function, for inputs of several shapes.
func TestCaptured_Run(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, inPlace := range []bool{false, true} {
			s := torchtest.NewStream(t, d)
			sum := kept(t, s, 1, scalar)[0]
			c := newCaptured(t, CapturedOptions{WarmUp: 2, InPlace: inPlace}, func(x *Exec, in ...*Tensor) []*Tensor {
				product := x.MatMul(in[0], in[1])
				x.AddInPlace(sum, x.Sum(product))
				return []*Tensor{product, x.AddScalar(in[0], 1)}
			})
			total := 0.0
			inputs := map[int64][]*Tensor{}
			for _, n := range []int64{2, 5} {
				inputs[n] = kept(t, s, 2, func(x *Exec) *Tensor { return x.Ones(Float32, n, n) })
			}
			for i := range 12 {
				n := int64(2)
				if i%4 == 3 {
					n = 5
				}
				var value float64
				torchtest.DoOn(t, s, func(x *Exec) {
					a, b := inputs[n][0], inputs[n][1]
					x.FillInPlace(a, i)
					out := c.Run(x, a, b)
					value = float64(i) * float64(n)
					equalAll(t, x, out[0], float32(value))
					equalAll(t, x, out[1], float32(i+1))
					total += value * float64(n*n)
				})
			}
			if got := itemOf(t, s, sum); got != total {
				t.Errorf("the sum is %v, want %v", got, total)
			}
			wantStats(t, d, c, CapturedStats{Graphs: 2, Captures: 2, Launches: 8, Eager: 4})
			if bytes, err := c.Memory(); err != nil || (bytes > 0) != d.IsCUDA() {
				t.Errorf("Memory is %d, %v", bytes, err)
			}
		}
	})
}

func equalAll(t *testing.T, x *Exec, of *Tensor, want float32) {
	t.Helper()
	for _, v := range ToSlice[float32](x, of) {
		if v != want {
			t.Errorf("a value is %v, want %v", v, want)
			return
		}
	}
}

// The Do owns the results of a Run. With InPlace the graph owns the results, and Keep fails.
// ReadAsync can read the results with InPlace.
func TestCaptured_Results(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Ones(Float32, 3) })[0]
		lends := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor { return in })
		for range 3 {
			err := s.Do(func(x *Exec) error {
				x.Keep(lends.Run(x, x.Lend(in, "batch 1"))[0]).Close()
				return nil
			})
			if s := lends.Stats(); s.Launches == 0 { // Run has returned the lent input itself, not a copy
				wantError(t, err, ErrInvalidArgument, "Exec.Keep", "batch 1")
			} else if err != nil {
				t.Error(err)
			}
		}
		both := func(x *Exec, in ...*Tensor) []*Tensor { return []*Tensor{x.Sum(in[0]), in[0]} }
		c := newCaptured(t, CapturedOptions{WarmUp: 1, InPlace: true}, both)
		copied := newCaptured(t, CapturedOptions{WarmUp: 1}, both)
		for i := range 4 {
			err := s.Do(func(x *Exec) error { x.Keep(c.Run(x, in)[0]); return nil })
			wantError(t, err, ErrInvalidArgument, "Exec.Keep", "captured function", "Clone")
			var kept *Tensor
			torchtest.DoOn(t, s, func(x *Exec) { kept = x.Keep(copied.Run(x, in)[0]) })
			if got := itemOf(t, s, kept); got != 3 {
				t.Errorf("what was kept is %v", got)
			}
			kept.Close()
			var read *HostRead
			torchtest.DoOn(t, s, func(x *Exec) { read = x.ReadAsync(c.Run(x, in)[0]) })
			if v, err := read.Item(); v != 3 || err != nil {
				t.Errorf("run %d: %v, %v", i, v, err)
			}
			read.Close()
		}
		if in.Closed() {
			t.Error("the input that was returned is closed")
		}
	})
}

// A function without inputs can be captured. Later Runs do not change copies of earlier results.
func TestCaptured_NoInputs(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		n := kept(t, s, 1, scalar)[0]
		c := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, _ ...*Tensor) []*Tensor {
			return []*Tensor{x.AddScalarInPlace(n, 1)}
		})
		var all []*Tensor
		for range 5 {
			torchtest.DoOn(t, s, func(x *Exec) { all = append(all, x.Keep(x.Clone(c.Run(x)[0]))) })
		}
		for i, of := range all {
			if got := itemOf(t, s, of); got != float64(i+1) {
				t.Errorf("Run %d gives %v", i, got)
			}
		}
		closeAll(all)
		wantStats(t, d, c, CapturedStats{Graphs: 1, Captures: 1, Launches: 4, Eager: 1})
	})
}

// A captured function can accumulate gradients over several parts of a batch.
func TestCaptured_Accumulates(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		train := func(o CapturedOptions) (losses []float64) {
			s := torchtest.NewStream(t, d)
			var weights *Tensor
			torchtest.DoOn(t, s, func(x *Exec) error {
				weights = x.Keep(x.Ones(Float32, 4, 2))
				return weights.SetRequiresGrad(true)
			})
			defer weights.Close()
			in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Ones(Float32, 6, 4) })[0]
			c := newCaptured(t, o, func(x *Exec, in ...*Tensor) []*Tensor {
				mustNot(x, weights.SetGrad(nil))
				sum := x.Zeros(Float32)
				for i := range 3 {
					out := x.MatMul(x.Narrow(in[0], 0, 2*i, 2), weights)
					loss := x.Mean(x.Mul(out, out))
					x.Backward(loss)
					x.NoGrad().AddInPlace(sum, x.Detach(loss))
				}
				y := x.NoGrad()
				y.AddInPlace(weights, y.MulScalar(weights.Grad(), -0.01))
				return []*Tensor{sum}
			})
			defer c.Close()
			for range 8 {
				torchtest.DoOn(t, s, func(x *Exec) { losses = append(losses, x.Item(c.Run(x, in)[0])) })
			}
			return losses
		}
		want, got := train(CapturedOptions{Eager: true}), train(CapturedOptions{})
		if !slices.Equal(want, got) || want[7] >= want[0] {
			t.Errorf("captured %v\neager    %v", got, want)
		}
	})
}

// A function that cannot be captured runs eagerly, and Stats says why. If the function fails, Run
// fails with the function's error.
func TestCaptured_FallsBack(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		in := kept(t, s, 2, func(x *Exec) *Tensor { return x.Ones(Float32, 3) })
		run := func(c *Captured, in *Tensor) error {
			return s.Do(func(x *Exec) error { c.Run(x, in); return nil })
		}
		c := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor {
			if x.Item(x.Sum(in[0])) != 3 {
				t.Error("it is not 3")
			}
			return nil
		})
		for range 3 {
			must.Do(t, run(c, in[0]))
		}
		wantStats(t, d, c, CapturedStats{Eager: 3, Why: "Exec.Item"})

		bounded := newCaptured(t, CapturedOptions{WarmUp: 1, MaxGraphs: 1}, func(x *Exec, in ...*Tensor) []*Tensor { return nil })
		for range 3 {
			for n := range 2 {
				torchtest.DoOn(t, s, func(x *Exec) { bounded.Run(x, x.Narrow(in[0], 0, 0, n+1)) })
			}
		}
		wantStats(t, d, bounded, CapturedStats{Graphs: 1, Captures: 1, Launches: 2, Eager: 4, Why: "MaxGraphs"})

		never := newCaptured(t, CapturedOptions{WarmUp: 1, Eager: true}, func(x *Exec, in ...*Tensor) []*Tensor { return nil })
		for range 2 {
			must.Do(t, run(never, in[0]))
		}
		if s := never.Stats(); s.Eager != 2 || !strings.Contains(s.Why, "Options.Eager") {
			t.Errorf("Stats are %+v", s)
		}

		must.Do(t, in[1].SetRequiresGrad(true))
		grads := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor { x.Backward(x.Sum(in[0])); return nil })
		for range 2 {
			must.Do(t, run(grads, in[1]))
		}
		wantStats(t, d, grads, CapturedStats{Eager: 2, Why: "requires a gradient"})
		torchtest.DoOn(t, s, func(x *Exec) { equalAll(t, x, in[1].Grad(), 2) })

		wrong := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor { return []*Tensor{x.MatMul(in[0], in[0].Grad())} })
		wantError(t, run(wrong, in[0]), ErrInvalidArgument, "captured_test.go")
		if err := run(c, in[0]); err != nil {
			t.Errorf("the stream does not go on: %v", err)
		}
		must.Do(t, c.Close())
		wantError(t, run(c, in[0]), ErrClosed, "the captured function is closed")
	})
}

// If the function has called DependsOn for a value, and this value changes, the graph is captured
// once more.
func TestCaptured_CapturesAgain(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		in := kept(t, s, 1, scalar)[0]
		factor := 2.0
		c := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor {
			used := factor
			x.DependsOn(func() string {
				if used != factor {
					return fmt.Sprintf("the factor has changed from %v to %v", used, factor)
				}
				return ""
			})
			return []*Tensor{x.MulScalar(in[0], factor)}
		})
		for i := range 8 {
			if i == 4 {
				factor = 3
			}
			torchtest.DoOn(t, s, func(x *Exec) {
				x.FillInPlace(in, i)
				if got := x.Item(c.Run(x, in)[0]); got != factor*float64(i) {
					t.Errorf("run %d gives %v", i, got)
				}
			})
		}
		wantStats(t, d, c, CapturedStats{Graphs: 1, Captures: 2, Updates: 1, Launches: 7, Eager: 1})
	})
}

// Training with dropout gives the same losses captured and eager, on several streams in turn. The
// losses are the same even if Recompute computes activations and their random numbers again.
func TestCaptured_Training(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		train := func(o CapturedOptions, again bool) (losses []float64) {
			must.Do(t, Seed(3))
			streams := []*Stream{torchtest.NewStream(t, d), torchtest.NewStream(t, d), DefaultStream(d)}
			var weights, images *Tensor
			torchtest.DoOn(t, streams[0], func(x *Exec) error {
				weights, images = x.Keep(x.Randn(Float32, 16, 4)), x.Keep(x.Randn(Float32, 8, 16))
				return weights.SetRequiresGrad(true)
			})
			defer weights.Close()
			defer images.Close()
			c := newCaptured(t, o, func(x *Exec, in ...*Tensor) []*Tensor {
				if err := weights.SetGrad(nil); err != nil {
					x.Fail("test", err)
				}
				layer := func(x *Exec, in *Tensor) *Tensor { return x.MatMul(x.Dropout(in, 0.3, true), weights) }
				var out *Tensor
				if again {
					out = x.Recompute(in[0], layer)
				} else {
					out = layer(x, in[0])
				}
				out = x.Dropout(out, 0.3, true)
				loss := x.Mean(x.Mul(out, out))
				x.Backward(loss)
				y := x.NoGrad()
				y.AddInPlace(weights, y.MulScalar(weights.Grad(), -0.1))
				return []*Tensor{loss}
			})
			defer c.Close()
			for i := range 12 {
				s := streams[i%3]
				torchtest.DoOn(t, s, func(x *Exec) { losses = append(losses, x.Item(c.Run(x, images)[0])) })
			}
			return losses
		}
		want := train(CapturedOptions{Eager: true}, false)
		for _, again := range []bool{false, true} {
			if got := train(CapturedOptions{}, again); !slices.Equal(got, want) {
				t.Errorf("computed again %v, captured %v\neager    %v", again, got, want)
			}
		}
		if want[11] >= want[0] {
			t.Errorf("the losses do not fall: %v", want)
		}
	})
}

// Several goroutines run captured functions with dropout, each goroutine on its own stream. Each
// goroutine gets right results from its own Captured and from a Captured that all goroutines use.
func TestCaptured_Goroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		rounds := 500
		if testing.Short() {
			rounds = 50
		}
		double := func(x *Exec, in ...*Tensor) []*Tensor {
			r := x.Dropout(in[0], 0.5, true)
			return []*Tensor{x.Mean(x.Add(r, x.Sub(x.MulScalar(in[0], 2), r)))} // twice the input, for every r
		}
		shared := newCaptured(t, CapturedOptions{}, double)
		onStreams(t, d, 4, func(i int, s *Stream) error {
			own := NewCaptured(double, CapturedOptions{})
			defer own.Close()
			for k := range rounds {
				err := s.Do(func(x *Exec) error {
					in := x.Full(Float32, float64(i+k), 128)
					for _, c := range []*Captured{own, shared} {
						if got := x.Item(c.Run(x, in)[0]); got != float64(2*(i+k)) {
							return fmt.Errorf("goroutine %d, round %d: %v", i, k, got)
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// A Run of a captured function returns while the device is busy.
func TestCaptured_Run_DoesNotWait(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Ones(Float32, 1000) })[0]
	c := newCaptured(t, CapturedOptions{}, func(x *Exec, in ...*Tensor) []*Tensor {
		return []*Tensor{x.Mean(x.Dropout(in[0], 0.5, true))}
	})
	run := func(x *Exec) { c.Run(x, in) }
	for range 6 {
		torchtest.DoOn(t, s, func(x *Exec) { run(x) })
	}
	synchronize(t, s)
	var busy *Event
	torchtest.DoOn(t, s, func(x *Exec) {
		y := x.NoWaits() // NoWaits is called before Sleep, because NoWaits opens CUPTI, which takes a while
		torchtest.Sleep(x, 500*time.Millisecond)
		busy = x.Record()
		for range 10 {
			run(y)
		}
	})
	defer busy.Close()
	if done, err := busy.Query(); done || err != nil {
		t.Errorf("the device was done: %v, %v", done, err)
	}
	synchronize(t, s)
}

// If memory is short in the capture, the function runs eagerly and gives right results.
func TestCaptured_OutOfMemory(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	in := kept(t, s, 1, scalar)[0]
	c := newCaptured(t, CapturedOptions{WarmUp: 1, Log: nil}, func(x *Exec, in ...*Tensor) []*Tensor {
		if x.Capturing() {
			x.Empty(Uint8, 1<<48)
		}
		return []*Tensor{x.AddScalar(in[0], 1)}
	})
	for range 3 {
		torchtest.DoOn(t, s, func(x *Exec) {
			if got := x.Item(c.Run(x, in)[0]); got != 1 {
				t.Errorf("it is %v", got)
			}
		})
	}
	wantStats(t, d, c, CapturedStats{Eager: 3, Why: "out of memory"})
}

// The captured function and Log may call Stats. If the captured function calls a method that
// would wait for the Run, the method fails.
func TestCaptured_Inside(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var c *Captured
		var errs []error
		c = NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor {
			c.Stats()
			_, err := c.Memory()
			errs = append(errs, err, c.Close())
			return nil
		}, CapturedOptions{WarmUp: 1, Log: func(string) { c.Stats() }})
		defer c.Close()
		for range 3 {
			torchtest.DoOn(t, s, func(x *Exec) { c.Run(x) })
		}
		for _, err := range errs {
			wantError(t, err, ErrMisuse, "inside the captured function")
		}
	})
}

// In the second call of a function given to Recompute, Run calls the captured function, and
// Capture fails. In the first call the Captured captures as usual.
func TestCaptured_InRecompute(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		w := kept(t, s, 1, func(x *Exec) *Tensor { return x.Full(Float32, 3, 4) })[0]
		must.Do(t, w.SetRequiresGrad(true))
		double := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor { return []*Tensor{x.MulScalar(in[0], 2)} })
		for range 4 {
			torchtest.DoOn(t, s, func(x *Exec) {
				mustNot(x, w.SetGrad(nil))
				x.Backward(x.Sum(x.Recompute(x.Ones(Float32, 4), func(x *Exec, in *Tensor) *Tensor {
					if x.Recomputing() {
						_, err := CaptureGraph(x, func(*Exec) error { return nil }, 0)
						wantError(t, err, ErrNotCapturable, "inside a backward")
					}
					return x.Mul(w, double.Run(x, in)[0])
				})))
				equalAll(t, x, w.Grad(), 2)
			})
		}
	})
}

// The function has called DependsOn for a value that changes at each Run. Then a few captures are
// tried, and afterwards no more. If a capture fails because of an error of the function, a later
// Run captures again.
func TestCaptured_TriesAgain(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	run := func(c *Captured, times int) {
		t.Helper()
		for range times {
			torchtest.DoOn(t, s, func(x *Exec) { c.Run(x) })
		}
	}
	now := 0
	restless := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, _ ...*Tensor) []*Tensor {
		used := now
		x.DependsOn(func() string {
			if now++; now > used {
				return "it has changed"
			}
			return ""
		})
		return []*Tensor{x.Ones(Float32)}
	})
	run(restless, 20)
	if got := restless.Stats(); got.Captures > 5 || got.Graphs != 0 || !strings.Contains(got.Why, "it has changed") {
		t.Errorf("Stats are %+v", got)
	}
	failing := true
	c := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, _ ...*Tensor) []*Tensor {
		if x.Capturing() && failing {
			failing = false
			x.MatMul(x.Ones(Float32, 2, 2), x.Ones(Float32, 3, 3))
		}
		return []*Tensor{x.Ones(Float32)}
	})
	run(c, 5)
	if got := c.Stats(); got.Captures != 1 || got.Launches != 3 || got.Eager != 2 {
		t.Errorf("Stats are %+v", got)
	}
}

// If an input does not lie on the device of the graph, the function runs eagerly.
func TestCaptured_InputOnTheCPU(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s, host := torchtest.NewStream(t, d), torchtest.NewStream(t, CPU)
	in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Ones(Float32, 4) })[0]
	factor := kept(t, host, 1, scalar)[0]
	c := newCaptured(t, CapturedOptions{WarmUp: 1}, func(x *Exec, in ...*Tensor) []*Tensor { return []*Tensor{x.Mul(in[0], in[1])} })
	for i := range 4 {
		torchtest.DoOn(t, host, func(x *Exec) { x.FillInPlace(factor, i) })
		torchtest.DoOn(t, s, func(x *Exec) { equalAll(t, x, c.Run(x, in, factor)[0], float32(i)) })
	}
	wantStats(t, d, c, CapturedStats{Eager: 4, Why: "input 1 lies on cpu"})
}

// Some goroutines capture. Other goroutines run backwards through a Recompute of a function with
// dropout. No goroutine deadlocks. A backward may fail only because another stream has drawn
// random numbers.
func TestCaptured_BesideRecompute(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		rounds := 30
		if testing.Short() {
			rounds = 5
		}
		onStreams(t, d, 4, func(i int, s *Stream) error { return backwards(s, rounds, i%2 == 0) })
	})
}

// backwards runs a step `rounds` times. Each step has a backward. If `capture` is true, each step
// is captured and launched. Otherwise the step contains a Recompute and runs eagerly.
func backwards(s *Stream, rounds int, capture bool) error {
	var w *Tensor
	if err := s.Do(func(x *Exec) error { w = x.Keep(x.Ones(Float32, 64, 64)); return w.SetRequiresGrad(true) }); err != nil {
		return err
	}
	defer w.Close()
	step := func(x *Exec) error {
		Check(w.SetGrad(nil))
		in := x.Ones(Float32, 64, 64)
		if capture {
			x.Backward(x.Sum(x.Dropout(x.MatMul(in, w), 0.5, true)))
			return nil
		}
		x.Backward(x.Sum(x.Recompute(in, func(x *Exec, in *Tensor) *Tensor { return x.Mul(w, x.Dropout(in, 0.5, true)) })))
		return nil
	}
	for range rounds {
		if !capture {
			if err := s.Do(step); err != nil && !strings.Contains(err.Error(), "another stream drew") {
				return err
			}
			continue
		}
		g, err := s.Capture(step, 1)
		if err != nil {
			return err
		}
		if err := g.Launch(s); err != nil {
			return err
		}
		g.Close()
	}
	return s.Synchronize()
}
