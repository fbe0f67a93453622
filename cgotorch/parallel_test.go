package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func seed(t *testing.T) {
	t.Helper()
	must.Do(t, Seed(1))
}

func ones4(x *Exec) *Tensor { return x.Ones(Float32, 4) }

// checked runs fn under the stream checker and returns the races.
func checked(t *testing.T, fn func()) (races []string) {
	t.Helper()
	stop := Must(CheckStreams(func(r *StreamRace) { races = append(races, r.Error()) }))
	defer stop()
	fn()
	return races
}

// withoutRaces runs fn under the stream checker and fails the test if there are races.
func withoutRaces(t *testing.T, fn func()) {
	t.Helper()
	if races := checked(t, fn); len(races) > 0 {
		t.Errorf("%d races, the first: %s", len(races), races[0])
	}
}

// branchNet is a net of three branches. One of its branches has branches too.
type branchNet struct {
	s  *Stream
	ws [3]*Tensor
	in *Tensor
}

// runBranches runs branches and returns their results, as [Exec.Parallel] does.
type runBranches func(x *Exec, branches ...func(x *Exec) *Tensor) []*Tensor

func parallelBranches(x *Exec, branches ...func(x *Exec) *Tensor) []*Tensor {
	return x.Parallel(ParallelOptions{}, branches...)
}

func serialBranches(x *Exec, branches ...func(x *Exec) *Tensor) (out []*Tensor) {
	for _, b := range branches {
		out = append(out, b(x))
	}
	return out
}

// newBranchNet returns a net on a stream of its own. The net's tensors are closed when the test
// ends.
func newBranchNet(t *testing.T, d Device) *branchNet {
	t.Helper()
	n := &branchNet{s: torchtest.NewStream(t, d)}
	torchtest.DoOn(t, n.s, func(x *Exec) {
		seed(t)
		for i := range n.ws {
			n.ws[i] = x.Keep(x.Randn(Float32, 16, 16))
			must.Do(t, n.ws[i].SetRequiresGrad(true))
		}
		n.in = x.Keep(x.Randn(Float32, 8, 16))
	})
	t.Cleanup(func() { closeAll(append(n.ws[:], n.in)) })
	return n
}

func (n *branchNet) forward(x *Exec, parallel runBranches) *Tensor {
	h := x.Tanh(n.in)
	out := parallel(x,
		func(x *Exec) *Tensor { return x.Tanh(x.MM(h, n.ws[0])) },
		func(x *Exec) *Tensor {
			inner := x.MM(h, n.ws[1])
			both := parallel(x,
				func(x *Exec) *Tensor { return x.Sigmoid(inner) },
				func(x *Exec) *Tensor { return x.Mul(inner, h) })
			return x.Add(both[0], both[1])
		},
		func(x *Exec) *Tensor { return x.Dropout(x.MM(h, n.ws[2]), 0.5, true) },
	)
	h.Close()
	return x.Sum(x.Cat(out, 1))
}

// step runs forward and backward and returns the loss.
func (n *branchNet) step(t *testing.T, x *Exec, parallel runBranches) (loss *Tensor) {
	for _, w := range n.ws {
		must.Do(t, w.SetGrad(nil))
	}
	loss = n.forward(x, parallel)
	x.Backward(loss)
	return x.Detach(loss)
}

// read returns the loss and the gradients.
func (n *branchNet) read(x *Exec, loss *Tensor) (all [][]float32) {
	all = append(all, ToSlice[float32](x, loss))
	for _, w := range n.ws {
		all = append(all, ToSlice[float32](x, w.Grad()))
	}
	return all
}

// run sets the seed of the test, runs one step, and returns the loss and the gradients.
func (n *branchNet) run(t *testing.T, parallel runBranches) (all [][]float32) {
	t.Helper()
	seed(t)
	torchtest.DoOn(t, n.s, func(x *Exec) {
		all = n.read(x, n.step(t, x, parallel))
	})
	return all
}

// Parallel branches, serial branches, nested branches and branches in a graph give the same bits,
// in forward and in backward. None of them causes a race.
func TestExec_Parallel(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			n := newBranchNet(t, d)
			want := n.run(t, serialBranches)
			t.Run("eager", func(t *testing.T) {
				for i := range 3 {
					if got := n.run(t, parallelBranches); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("run %d in parallel differs from serial branches", i)
					}
				}
			})
			t.Run("no gradients", func(t *testing.T) {
				torchtest.DoOn(t, n.s, func(x *Exec) {
					seed(t)
					if loss := float32(x.Item(n.forward(x.NoGrad(), parallelBranches))); loss != want[0][0] {
						t.Errorf("without gradients %v, with them %v", loss, want[0][0])
					}
				})
			})
			t.Run("captured", func(t *testing.T) { n.runCaptured(t, want) })
		})
	})
}

// runCaptured compares three runs of the captured step with the loss and gradients in `want`.
func (n *branchNet) runCaptured(t *testing.T, want [][]float32) {
	seed(t)
	captured := NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor {
		return []*Tensor{n.step(t, x, parallelBranches)}
	}, CapturedOptions{WarmUp: 1})
	defer captured.Close()
	for i := range 3 {
		seed(t)
		torchtest.DoOn(t, n.s, func(x *Exec) {
			if got := n.read(x, captured.Run(x, n.in)[0]); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("captured run %d differs", i)
			}
		})
	}
	if stats := captured.Stats(); n.s.Device().IsCUDA() && stats.Launches != 2 {
		t.Errorf("not captured: %+v", stats)
	}
}

// Branches close tensors that enqueued work of the branches still has to read. Later branches get
// the freed memory. The results must still be right, and there must be no race.
func TestExec_Parallel_Memory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			for range 3 {
				torchtest.DoOn(t, s, func(x *Exec) {
					const n = 1 << 16
					for range 4 {
						a, b := x.Full(Float32, 3, n), x.Full(Float32, 4, n)
						out := x.NoGrad().Parallel(ParallelOptions{Transient: true},
							func(x *Exec) *Tensor {
								c := x.Full(Float32, 5, n)
								return x.Add(c, c)
							},
							func(x *Exec) *Tensor {
								torchtest.Sleep(x, time.Millisecond)
								c := x.Add(a, b)
								a.Close()
								return x.Add(c, c)
							},
							func(x *Exec) *Tensor {
								b.Close()
								return x.Full(Float32, 6, n) // gets b's memory if nothing keeps this memory alive
							})
						sum := x.Add(x.Add(out[0], out[1]), out[2])
						for _, o := range out {
							o.Close()
						}
						if got := x.Item(x.Mean(sum)); got != 10+14+6 {
							t.Errorf("got %v", got)
						}
					}
				})
			}
		})
	})
}

// An inner Parallel in the first branch runs on the outer Parallel's stream. The inner Parallel
// has side streams of its own. The other branches of the outer Parallel do not wait for these
// streams, so they must not take memory of these streams.
func TestExec_Parallel_InFirstBranch(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			torchtest.DoOn(t, s, func(x *Exec) {
				const n = 1 << 16
				full := func(v float64) func(x *Exec) *Tensor {
					return func(x *Exec) *Tensor { return x.Full(Float32, v, n) }
				}
				sum := func(x *Exec, branches ...func(x *Exec) *Tensor) *Tensor {
					both := x.Parallel(ParallelOptions{Transient: true}, branches...)
					torchtest.Sleep(x, time.Millisecond)
					out := x.Add(both[0], both[1])
					both[0].Close()
					both[1].Close()
					return out
				}
				x = x.NoGrad()
				for range 3 {
					got := sum(x, func(x *Exec) *Tensor {
						return sum(x, func(x *Exec) *Tensor { return sum(x, full(1), full(2)) }, full(3))
					}, full(10))
					if low, high := x.Item(x.Min(got)), x.Item(x.Max(got)); low != 16 || high != 16 {
						t.Errorf("got %v to %v, want 16", low, high)
					}
				}
			})
		})
	})
}

// The stream checker reports a branch that reads memory written by another branch.
func TestExec_Parallel_DependentBranches(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		races := checked(t, func() {
			s := torchtest.NewStream(t, d)
			torchtest.DoOn(t, s, func(x *Exec) {
				a := x.Ones(Float32, 4)
				x.Parallel(ParallelOptions{},
					func(x *Exec) *Tensor { return x.AddInPlace(a, a) },
					func(x *Exec) *Tensor { return x.Neg(a) })
			})
		})
		if len(races) != 1 || !strings.Contains(races[0], "aten::neg") {
			t.Errorf("got %q, want the race of aten::neg", races)
		}
	})
}

// If a branch fails, the stream first waits for the work of the branches. Afterwards the stream
// can still be used.
func TestExec_Parallel_Failures(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			errOwn := errors.New("own")
			for name, fail := range map[string]func(x *Exec) *Tensor{
				"operator": func(x *Exec) *Tensor { return x.MM(x.Ones(Float32, 2), x.Ones(Float32, 2)) },
				"own":      func(x *Exec) *Tensor { x.Fail("own", errOwn); return nil },
				"nil":      func(x *Exec) *Tensor { return nil },
				"nested": func(x *Exec) *Tensor {
					return x.Parallel(ParallelOptions{}, func(x *Exec) *Tensor { return x.Ones(Float32, 1) }, func(x *Exec) *Tensor { x.Fail("own", errOwn); return nil })[0]
				},
			} {
				for at := range 3 {
					shared := kept(t, s, 1, ones4)[0]
					err := s.Do(func(x *Exec) error {
						branches := make([]func(x *Exec) *Tensor, 3)
						for i := range branches {
							branches[i] = func(x *Exec) *Tensor { return x.Neg(shared) }
							if i == at {
								branches[i] = fail
							}
						}
						x.Parallel(ParallelOptions{}, branches...)
						t.Errorf("%s at %d: Parallel returned", name, at)
						return nil
					})
					if err == nil {
						t.Errorf("%s at %d: no error", name, at)
					}
					if err := s.Do(func(x *Exec) error { // runs after the branches that read the tensor `shared`
						x.AddInPlace(shared, shared)
						return nil
					}); err != nil {
						t.Errorf("%s at %d: then %v", name, at, err)
					}
					shared.Close()
				}
			}
			torchtest.DoOn(t, s, func(x *Exec) {
				defer func() { _ = recover() }()
				x.Parallel(ParallelOptions{}, func(x *Exec) *Tensor { return x.Ones(Float32, 1) }, func(x *Exec) *Tensor { panic("own") })
			})
		})
	})
}

func TestExec_Parallel_Streams(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		urgent, err := NewStream(d, StreamOptions{HighPriority: true})
		if err != nil {
			t.Fatal(err)
		}
		defer urgent.Close()
		var ran []string
		note := func(x *Exec) *Tensor {
			ran = append(ran, NameOf(x.Stream()))
			return x.Ones(Float32, 1)
		}
		torchtest.DoOn(t, s, func(x *Exec) {
			x.Parallel(ParallelOptions{Streams: []*Stream{urgent}}, note, note)
			x.Parallel(ParallelOptions{}, note, note, note)
			x.Parallel(ParallelOptions{}, note)
			if out := x.Parallel(ParallelOptions{}); len(out) != 0 {
				t.Errorf("no branches gave %v", out)
			}
		})
		want := []string{NameOf(s), NameOf(urgent), NameOf(s), NameOf(s) + ", side 1", NameOf(s) + ", side 2", NameOf(s)}
		if !slices.Equal(ran, want) {
			t.Errorf("ran on %q, want %q", ran, want)
		}
		err = s.Do(func(x *Exec) error {
			x.Parallel(ParallelOptions{Streams: []*Stream{urgent}}, note, note, note)
			return nil
		})
		wantError(t, err, ErrInvalidArgument, "Streams has 1 streams for 3 branches")
	})
}

// The kernels of different branches run at the same time on the device.
func TestExec_Parallel_Overlaps(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	const each = 5 * time.Millisecond
	sleep := func(x *Exec) *Tensor {
		torchtest.Sleep(x, each)
		return x.Ones(Float32, 1)
	}
	for range 2 {
		begin, end := &Event{}, &Event{}
		torchtest.DoOn(t, s, func(x *Exec) {
			begin = x.RecordTiming()
			x.Parallel(ParallelOptions{}, sleep, sleep, sleep, sleep)
			end = x.RecordTiming()
		})
		must.Do(t, end.Synchronize())
		ms, err := end.Elapsed(begin)
		if took := time.Duration(ms * 1e6); err != nil || took < each {
			t.Errorf("four branches of %v took %v, %v", each, took, err)
		} else if took > 3*each {
			t.Logf("four branches of %v took %v: other work was in between", each, took)
		}
		begin.Close()
		end.Close()
	}
}

// A Choice decides after a dozen calls. For graphs it measures only warm-up runs. The CPU runs
// branches serially.
func TestExec_Parallel_Choice(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		var log []string
		choice := NewChoice(func(text string) { log = append(log, text) })
		var parallel int // number of branches in the last call that did not run on the stream s
		in := kept(t, s, 1, ones4)[0]
		defer in.Close()
		section := func(x *Exec, work func(x *Exec)) []*Tensor {
			parallel = 0
			branch := func(x *Exec) *Tensor {
				if x.Stream() != s {
					parallel++
				}
				work(x)
				return x.Neg(in)
			}
			return x.Parallel(ParallelOptions{Choice: choice, Inputs: []*Tensor{in}}, branch, branch)
		}
		sleep := func(x *Exec) { torchtest.Sleep(x, time.Millisecond) }
		for range 16 {
			torchtest.DoOn(t, s, func(x *Exec) { section(x, sleep) })
			must.Do(t, s.Synchronize())
		}
		if !d.IsCUDA() {
			if parallel != 0 || len(Decisions(choice)) != 0 {
				t.Errorf("on the CPU parallel: %v", Decisions(choice))
			}
			return
		}
		decisions := Decisions(choice)
		if parallel != 1 || len(decisions) != 1 || !decisions[0].Parallel || decisions[0].Graph {
			t.Fatalf("two sleeps run serially: %v", decisions)
		}
		if len(log) != 1 || !strings.Contains(log[0], "(float32[4]@cuda:0) with gradients, eager: parallel") {
			t.Errorf("logged %q", log)
		}
		// Work in a graph has a decision of its own. This work is so small that either way can be faster,
		// so the test accepts both decisions.
		captured := NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor { return section(x, func(*Exec) {}) }, CapturedOptions{})
		defer captured.Close()
		for range 20 {
			torchtest.DoOn(t, s, func(x *Exec) { captured.Run(x, in) })
		}
		if stats := captured.Stats(); stats.Graphs != 1 || stats.Eager != 12 {
			t.Errorf("%+v, want a graph after 12 eager runs", stats)
		}
		if decisions = Decisions(choice); len(decisions) != 2 || !decisions[1].Graph {
			t.Errorf("%v", decisions)
		}
	})
}

// A branch uses memory of a stream that takes no part in the Parallel. This memory is handed out
// again only after the use. The side streams of a stream run only work of that stream's Dos.
func TestExec_Parallel_OtherStreams(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			a, c := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
			for range 3 {
				torchtest.DoOn(t, a, func(x *Exec) {
					y := x.On(c)
					k := y.Randn(Float32, 1<<10)
					e := y.Record()
					x.Wait(e)
					e.Close()
					x.NoGrad().Parallel(ParallelOptions{}, ones4, func(x *Exec) *Tensor { return x.Tanh(k) })
					k.Close()
					y.Randn(Float32, 1<<10)
				})
				// If the program gives its own Streams, the memory of the result belongs to the stream c. Later
				// Dos of the stream c can then take this memory.
				torchtest.DoOn(t, a, func(x *Exec) {
					out := x.NoGrad().Parallel(ParallelOptions{Streams: []*Stream{c}}, ones4, func(x *Exec) *Tensor { return x.Randn(Float32, 1<<10) })
					x.Tanh(out[1])
				})
				torchtest.DoOn(t, c, func(x *Exec) { x.Randn(Float32, 1<<10) })
			}
			// The first branch uses On to go to the stream c and back to the stream a. Its inner Parallel
			// still has side streams of its own.
			torchtest.DoOn(t, a, func(x *Exec) {
				b := func(x *Exec) *Tensor { return x.Randn(Float32, 1<<10) }
				x.NoGrad().Parallel(ParallelOptions{}, func(x *Exec) *Tensor {
					y := x.On(c).On(a)
					out := y.Parallel(ParallelOptions{}, b, b)
					return y.Add(out[0], out[1])
				}, b)
			})
		})
		b := torchtest.NewStream(t, d)
		onStreams(t, d, 3, func(i int, s *Stream) error {
			for range 50 {
				if err := s.Do(func(x *Exec) error { x.On(b).Parallel(ParallelOptions{}, ones4, ones4, ones4); return nil }); err != nil {
					return err
				}
			}
			return nil
		})
		err := b.Do(func(x *Exec) error { x.Parallel(ParallelOptions{Streams: []*Stream{b}}, ones4, ones4); return nil })
		wantError(t, err, ErrInvalidArgument, "Streams")
		c := torchtest.NewStream(t, d)
		err = b.Do(func(x *Exec) error {
			x.Parallel(ParallelOptions{Streams: []*Stream{c, c}}, ones4, ones4, ones4)
			return nil
		})
		wantError(t, err, ErrInvalidArgument, "Streams")
		err = b.Do(func(x *Exec) error {
			x.Parallel(ParallelOptions{Streams: []*Stream{c}}, ones4, func(x *Exec) *Tensor {
				return x.Parallel(ParallelOptions{Streams: []*Stream{b}}, ones4, ones4)[0]
			})
			return nil
		})
		if err != nil {
			t.Errorf("%v", err)
		}
	})
}

// A function given to AtEnd in a branch runs after the join and after x's later work.
func TestExec_Parallel_AtEnd(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		withoutRaces(t, func() {
			s := torchtest.NewStream(t, d)
			torchtest.DoOn(t, s, func(x *Exec) {
				sum := x.Zeros(Float32, 4)
				x.NoGrad().Parallel(ParallelOptions{}, ones4, func(x *Exec) *Tensor {
					x.AtEnd(func() { x.AddInPlace(sum, x.Ones(Float32, 4)) })
					return x.Ones(Float32, 4)
				})
				x.AddInPlace(sum, x.Ones(Float32, 4))
				x.AtEnd(func() {
					if got := x.Item(x.Mean(sum)); got != 2 {
						t.Errorf("got %v, want 2", got)
					}
				})
			})
		})
	})
}

// checkBackwardIsParallel traces a launch of the step. If the step's backward does not run on
// several streams at once, it fails the test.
func checkBackwardIsParallel(t *testing.T, s *Stream, run func(x *Exec) *Tensor) {
	t.Helper()
	running := Must(trace.Start())
	torchtest.DoOn(t, s, func(x *Exec) { x.Item(run(x)) })
	r := Must(running.Stop())
	streams := map[uint64]bool{}
	var from, to time.Duration
	for _, w := range r.Work {
		if strings.Contains(w.Name, "tanh_backward") {
			if len(streams) == 0 || w.Start < from {
				from = w.Start
			}
			to = max(to, w.End)
			streams[w.Stream] = true
		}
	}
	r.Work = slices.DeleteFunc(r.Work, func(w trace.Record) bool { return w.Start < from || w.End > to })
	if share, together, busy := r.Parallel(); len(streams) < 2 || share < 0.3 {
		t.Errorf("backward ran on %d streams, %v of %v on several at once", len(streams), together, busy)
	} else {
		t.Logf("backward on %d streams: %v of %v on several at once", len(streams), together, busy)
	}
}

// A captured training step with two parallel branches gives the losses of an eager step with
// serial branches, at each launch. Its backward runs on two streams at once.
func TestExec_Parallel_TrainingStep(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		steps := 20
		if d.IsCUDA() {
			SetDeterministic(true)
			defer SetDeterministic(false)
			steps = 1000
		}
		s := torchtest.NewStream(t, d)
		in := kept(t, s, 1, func(x *Exec) *Tensor { return x.Randn(Float32, 1, 32, 14, 14) })[0]
		first := kept(t, s, 8, func(x *Exec) *Tensor { return x.MulScalar(x.Randn(Float32, 32, 32, 3, 3), 0.05) })
		// train returns the losses of the steps. It calls the function `traced`, which can trace
		// launches of the step.
		train := func(o ParallelOptions, captured bool, traced func(run func(x *Exec) *Tensor)) (losses []float64) {
			ws := trainable(t, s, first)
			step := func(x *Exec, in ...*Tensor) []*Tensor {
				branch := func(ws []*Tensor) func(x *Exec) *Tensor {
					return func(x *Exec) *Tensor {
						h := in[0]
						for _, w := range ws {
							h = x.Tanh(x.Conv2d(h, w, nil, Conv2dOptions{Padding: []int64{1, 1}}))
						}
						return h
					}
				}
				for _, w := range ws {
					must.Do(t, w.SetGrad(nil))
				}
				out := x.Parallel(o, branch(ws[:4]), branch(ws[4:]))
				sum := x.Add(out[0], out[1])
				loss := x.Mean(x.Mul(sum, sum))
				x.Backward(loss)
				for _, w := range ws {
					x.NoGrad().SubInPlace(w, x.NoGrad().MulScalar(w.Grad(), 0.01))
				}
				return []*Tensor{x.Detach(loss)}
			}
			run := func(x *Exec) *Tensor { return step(x, in)[0] }
			if captured {
				c := NewCaptured(step, CapturedOptions{WarmUp: 1})
				defer c.Close()
				run = func(x *Exec) *Tensor { return c.Run(x, in)[0] }
			}
			for range steps {
				torchtest.DoOn(t, s, func(x *Exec) { losses = append(losses, x.Item(run(x))) })
			}
			if traced != nil {
				traced(run)
			}
			return losses
		}
		want := train(ParallelOptions{Serial: true}, false, nil)
		if want[0] <= want[steps-1] {
			t.Errorf("the loss went from %v to %v", want[0], want[steps-1])
		}
		got := train(ParallelOptions{}, true, func(run func(x *Exec) *Tensor) {
			if d.IsCUDA() {
				checkBackwardIsParallel(t, s, run)
			}
		})
		if !slices.Equal(got, want) {
			t.Error("the losses of the captured step differ from the eager one's")
		}
	})
}
