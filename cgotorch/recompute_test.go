package cgotorch_test

import (
	"bytes"
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// checkRecomputeLeaks does what torchtest.CheckLeaks does, for tests of Recompute. Once a thread
// of LibTorch has called Go, the thread counts as a goroutine until it ends. So
// checkRecomputeLeaks first runs deeply nested Recomputes, in which these threads call Go. Then
// it calls torchtest.CheckLeaks.
func checkRecomputeLeaks(t *testing.T) {
	t.Helper()
	for _, d := range torchtest.Devices() {
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *Exec) {
			in := leaf(t, x, 1, 2)
			x.Backward(x.Sum(nest(x, in, 70, func(x *Exec, in *Tensor) *Tensor { return x.Neg(in) })))
		})
	}
	torchtest.CheckLeaks(t)
}

// nest calls fn inside nested calls of Recompute, as many as `depth` says. Each of these calls adds
// 1 to the result.
func nest(x *Exec, in *Tensor, depth int, fn func(x *Exec, in *Tensor) *Tensor) *Tensor {
	if depth == 0 {
		return fn(x, in)
	}
	return x.Recompute(in, func(x *Exec, in *Tensor) *Tensor { return x.AddScalar(nest(x, in, depth-1, fn), 1) })
}

// squares returns a function that computes (in*w)^2 in two steps. The backward needs the product
// in*w.
func squares(w *Tensor) func(x *Exec, in *Tensor) *Tensor {
	return func(x *Exec, in *Tensor) *Tensor {
		product := x.Mul(in, w)
		return x.Mul(product, product)
	}
}

func TestRecompute(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		for _, wanted := range []bool{true, false} {
			torchtest.Do(t, d, func(x *Exec) {
				in, w := FromSlice(x, []float32{1, 2}), leaf(t, x, 3, 5)
				in.SetRequiresGrad(wanted)
				var calls []bool
				before := LiveHandles()
				y := x.Recompute(in, func(x *Exec, in *Tensor) *Tensor {
					calls = append(calls, x.Recomputing())
					if x.GradEnabled() != x.Recomputing() || in.RequiresGrad() != wanted && x.Recomputing() {
						t.Errorf("grad mode %v, an input that requires a gradient %v, in call %d", x.GradEnabled(), in.RequiresGrad(), len(calls))
					}
					return squares(w)(x, in)
				})
				if got := LiveHandles(); got["tensor"] != before["tensor"]+1 || got["function"] != before["function"]+1 {
					t.Errorf("after Recompute %v, before %v", got, before)
				}
				if !y.RequiresGrad() {
					t.Error("the result requires no gradient")
				}
				torchtest.Equal(t, x, y, []float32{9, 100})
				loss := x.Sum(y)
				y.Close()
				x.Backward(loss)
				torchtest.Equal(t, x, w.Grad(), []float32{6, 40})
				if wanted {
					torchtest.Equal(t, x, in.Grad(), []float32{18, 100})
				} else if in.Grad() != nil {
					t.Error("an input that requires no gradient has one")
				}
				if !slices.Equal(calls, []bool{false, true}) {
					t.Errorf("calls with Recomputing %v", calls)
				}
				if got := LiveHandles()["function"]; got != before["function"] {
					t.Errorf("%d functions after Backward, %d before", got, before["function"])
				}
			})
		}
	})
}

// The result of Recompute is always a new tensor. Its gradients equal the gradients without
// Recompute.
func TestRecompute_Results(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			w := leaf(t, x, 3, 5)
			for name, fn := range map[string]func(x *Exec, in *Tensor) *Tensor{
				"in itself":      func(_ *Exec, in *Tensor) *Tensor { return in },
				"an alias of in": func(x *Exec, in *Tensor) *Tensor { return x.Alias(in) },
				"a view of in":   func(x *Exec, in *Tensor) *Tensor { return x.Reshape(in, 2, 1) },
				"a leaf":         func(*Exec, *Tensor) *Tensor { return w },
				"a constant":     func(x *Exec, in *Tensor) *Tensor { return x.Ones(Float32, 2) },
				"integers":       func(x *Exec, in *Tensor) *Tensor { return x.Ones(Int64, 2) },
			} {
				var got, want [2][]float32
				for i, call := range []func(in *Tensor) *Tensor{
					func(in *Tensor) *Tensor { return fn(x, in) },
					func(in *Tensor) *Tensor { return x.Recompute(in, fn) },
				} {
					a := leaf(t, x, 1, 2)
					in := x.Mul(a, a)
					y := call(in)
					if i == 1 && (y == in || y == w) {
						t.Errorf("%s: the result is the function's own handle", name)
					}
					x.Backward(x.Add(x.Sum(y), x.Sum(in)))
					values := [2][]float32{ToSlice[float32](x, a.Grad())}
					if w.Grad() != nil {
						values[1] = ToSlice[float32](x, w.Grad())
					}
					w.SetGrad(nil)
					if i == 0 {
						want = values
					} else {
						got = values
					}
					if in.Closed() {
						t.Errorf("%s: the input is closed", name)
					}
				}
				if !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
					t.Errorf("%s: gradients %v, want %v", name, got, want)
				}
			}
		})
	})
}

func TestRecompute_WithoutGradients(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		w := leaf(t, x, 3, 5)
		before := LiveHandles()["function"]
		y := x.NoGrad().Recompute(FromSlice(x, []float32{1, 2}), squares(w))
		torchtest.Equal(t, x, y, []float32{9, 100})
		if y.RequiresGrad() || LiveHandles()["function"] != before {
			t.Error("something was recorded")
		}
	})
}

func TestRecompute_Autocast(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			w := x.Ones(Float32, 2, 2)
			w.SetRequiresGrad(true)
			var dtypes []DType
			y := x.Autocast(BFloat16).Recompute(w, func(x *Exec, in *Tensor) *Tensor {
				y := x.MM(in, w)
				dtypes = append(dtypes, y.DType())
				return y
			})
			x.Backward(x.Sum(y))
			if !slices.Equal(dtypes, []DType{BFloat16, BFloat16}) {
				t.Errorf("computed in %v", dtypes)
			}
			torchtest.Equal(t, x, w.Grad(), []float32{4, 4, 4, 4}, 2, 2)
		})
	})
}

// The second call draws the same random numbers as the first call. Later operators draw the same
// random numbers as without Recompute.
func TestRecompute_RandomNumbers(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			fn := func(x *Exec, in *Tensor) *Tensor { return x.Dropout(x.Dropout(in, 0.5, true), 0.25, true) }
			var grads, next [2][]float32
			for i, recompute := range []bool{false, true} {
				must.Do(t, Seed(7))
				in := x.Ones(Float32, 1000)
				in.SetRequiresGrad(true)
				var y *Tensor
				if recompute {
					y = x.Recompute(in, fn)
				} else {
					y = fn(x, in)
				}
				x.Dropout(y, 0.5, true)
				x.Backward(x.Sum(y))
				grads[i] = ToSlice[float32](x, in.Grad())
				next[i] = ToSlice[float32](x, x.Dropout(in, 0.5, true))
			}
			if !slices.Equal(grads[0], grads[1]) || !slices.Contains(grads[0], 0) {
				t.Error("other masks than those of the plain call")
			}
			if !slices.Equal(next[0], next[1]) {
				t.Error("the generator is not where the plain call leaves it")
			}
		})
	})
}

// If the second call cannot draw the same random numbers as the first, the Backward fails. It
// does not return wrong gradients.
func TestRecompute_RandomNumbersOfOthers(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		state := func() []byte {
			s := Must(GeneratorState(d))
			return s
		}
		var before []byte
		err := torchtest.TryDo(t, d, func(x *Exec) {
			in := leaf(t, x, 1, 2)
			y := x.Recompute(in, func(x *Exec, in *Tensor) *Tensor {
				if x.Recomputing() {
					x.Dropout(in, 0.5, true)
				}
				return x.Dropout(in, 0.5, true)
			})
			before = state()
			x.Backward(x.Sum(y))
		})
		wantError(t, err, ErrInvalidArgument, "Exec.Backward", "other random numbers", d.String(), "recompute_test.go")
		if !bytes.Equal(state(), before) {
			t.Error("the generator was not put back")
		}
		torchtest.Do(t, d, func(x *Exec) { // fn draws only in its first call, as if another stream had drawn then: the Backward must not fail
			in := leaf(t, x, 1, 2)
			y := x.Recompute(in, func(x *Exec, in *Tensor) *Tensor {
				if !x.Recomputing() {
					x.Dropout(in, 0.5, true)
				}
				return x.Mul(in, in)
			})
			x.Backward(x.Sum(y))
			torchtest.Equal(t, x, in.Grad(), []float32{2, 4})
		})
	})
}

// A deep nest of Recomputes works, although LibTorch uses threads of its own for more than 60
// nested backwards.
func TestRecompute_Nested(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		for _, depth := range []int{2, 70} {
			torchtest.Do(t, d, func(x *Exec) {
				threads := map[uint64]bool{}
				in := leaf(t, x, 1, 2)
				y := nest(x, in, depth, func(x *Exec, in *Tensor) *Tensor {
					threads[Thread(x)] = true
					return x.Mul(in, in)
				})
				torchtest.Equal(t, x, y, []float32{1 + float32(depth), 4 + float32(depth)})
				x.Backward(x.Sum(y))
				torchtest.Equal(t, x, in.Grad(), []float32{2, 4})
				for thread := range threads {
					if IsWorker(thread) && thread != Thread(x) {
						t.Error("a thread of LibTorch's is taken for a stream's")
					}
				}
				if depth == 70 && len(threads) < 2 {
					t.Error("everything ran on one thread")
				}
			})
		}
	})
}

func TestRecompute_BackwardTwice(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		err := torchtest.TryDo(t, d, func(x *Exec) {
			w := leaf(t, x, 3, 5)
			loss := x.Sum(x.Recompute(x.Ones(Float32, 2), squares(w)))
			x.BackwardWith(BackwardOptions{RetainGraph: true}, loss)
			x.Backward(loss)
			torchtest.Equal(t, x, w.Grad(), []float32{12, 20})
			x.Backward(loss)
		})
		wantError(t, err, ErrInvalidArgument, "Exec.Backward(float32[]", "a second time", "recompute_test.go")
		err = torchtest.TryDo(t, d, func(x *Exec) { // no other node saves a tensor, so the node of Recompute refuses the second backward
			w := leaf(t, x, 3, 5)
			y := x.Recompute(x.Ones(Float32, 2), squares(w))
			o := BackwardOptions{Grads: []*Tensor{x.Ones(Float32, 2)}}
			x.BackwardWith(o, y)
			x.BackwardWith(o, y)
		})
		wantError(t, err, ErrInvalidArgument, "Exec.Backward(float32[2]", "a second time")
	})
}

// A kept loss can be differentiated in a later Do of another stream.
func TestRecompute_InALaterDo(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		var loss, w *Tensor
		var made *Event
		torchtest.DoOn(t, a, func(x *Exec) {
			w = x.Keep(leaf(t, x, 3, 5))
			loss = x.Keep(x.Sum(x.Recompute(x.Ones(Float32, 2), squares(w))))
			made = x.Record()
		})
		defer made.Close()
		torchtest.DoOn(t, b, func(x *Exec) {
			x.Wait(made)
			x.Backward(loss)
			torchtest.Equal(t, x, w.Grad(), []float32{6, 10})
		})
		loss.Close()
		w.Close()
	})
}

func TestRecompute_AfterItsStreamIsClosed(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		s := Must(NewStream(d, StreamOptions{}))
		var loss *Tensor
		torchtest.DoOn(t, s, func(x *Exec) {
			w := leaf(t, x, 3, 5)
			loss = x.Keep(x.Sum(x.Recompute(x.Ones(Float32, 2), squares(w))))
			x.Keep(w).Close()
		})
		s.Synchronize()
		s.Close()
		wantError(t, torchtest.NewStream(t, d).Do(func(x *Exec) error { x.Backward(loss); return nil }), ErrClosed, "Exec.Backward", "the stream is closed")
		loss.Close()
	})
}

func TestRecompute_GraphFreedWithoutBackward(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		before := LiveHandles()["function"]
		var kept *Tensor
		torchtest.Do(t, d, func(x *Exec) {
			w := leaf(t, x, 3, 5)
			x.Recompute(x.Ones(Float32, 2), squares(w))
			kept = x.Keep(x.Recompute(x.Ones(Float32, 2), squares(w)))
		})
		if got := LiveHandles()["function"]; got != before+1 {
			t.Errorf("%d functions behind the Do, %d before", got, before)
		}
		freed := make(chan struct{})
		go func() { kept.Close(); close(freed) }()
		<-freed
		if got := LiveHandles()["function"]; got != before {
			t.Errorf("%d functions behind Close, %d before", got, before)
		}
	})
}

// failingAgain returns a function that calls the function `fail` in its second call.
func failingAgain(fail func(x *Exec, in *Tensor)) func(x *Exec, in *Tensor) *Tensor {
	return func(x *Exec, in *Tensor) *Tensor {
		if x.Recomputing() {
			x.Neg(in)
			fail(x, in)
		}
		return x.Mul(in, in)
	}
}

var errOwn = errors.New("an error of the program's own")

func TestRecompute_Failures(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		for name, c := range map[string]struct {
			fail func(x *Exec, in *Tensor)
			want error
			text string
		}{
			"operator":  {func(x *Exec, in *Tensor) { x.MM(in, in) }, ErrInvalidArgument, "aten::mm(float32[2]"},
			"recovered": {func(x *Exec, in *Tensor) { _ = failureOf(func() { x.MM(in, in) }) }, ErrInvalidArgument, "aten::mm"},
			"own error": {func(x *Exec, in *Tensor) { x.Fail("own", errOwn) }, errOwn, "own at "},
			"at end":    {func(x *Exec, in *Tensor) { x.AtEnd(func() {}) }, ErrUnsupported, "Exec.AtEnd"},
			"a Do": {func(x *Exec, in *Tensor) {
				if err := x.Stream().Do(func(*Exec) error { return nil }); err != nil {
					x.Fail("own", err)
				}
			}, ErrMisuse, "a Do inside a Do"},
			"in place": {func(x *Exec, in *Tensor) { x.NegInPlace(in) }, ErrInvalidArgument, "place"},
			"memory":   {func(x *Exec, in *Tensor) { x.Zeros(Float32, 1<<50) }, ErrOutOfMemory, "aten::zeros"},
			"nested Backward": {func(x *Exec, in *Tensor) {
				x.Backward(x.Sum(x.Recompute(in, failingAgain(func(x *Exec, in *Tensor) { x.MM(in, in) }))))
			}, ErrInvalidArgument, "aten::mm"},
		} {
			for _, depth := range []int{1, 2, 65} {
				t.Run(fmt.Sprintf("%s/depth=%d", name, depth), func(t *testing.T) {
					before := LiveHandles()["function"]
					err := torchtest.TryDo(t, d, func(x *Exec) {
						in := leaf(t, x, 1, 2)
						x.Backward(x.Sum(nest(x, in, depth, failingAgain(c.fail))))
						t.Error("Backward returned")
					})
					wantError(t, err, c.want, "cgotorch: Exec.Backward", "recompute_test.go", c.text)
					// On CUDA a thread of LibTorch's may free the function a moment later.
					if !eventually(func() bool { return LiveHandles()["function"] == before }) {
						t.Errorf("%d functions after the failure, %d before", LiveHandles()["function"], before)
					}
					// The thread can still be used as before.
					torchtest.Do(t, d, func(x *Exec) {
						in := leaf(t, x, 1, 2)
						x.Backward(x.Sum(x.Recompute(in, squares(in))))
						torchtest.Equal(t, x, in.Grad(), []float32{4, 32})
					})
				})
			}
		}
	})
}

func TestRecompute_FirstCallFails(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		for text, fn := range map[string]func(x *Exec, in *Tensor) *Tensor{
			"aten::mm":              func(x *Exec, in *Tensor) *Tensor { return x.MM(in, in) },
			"the tensor is nil":     func(x *Exec, in *Tensor) *Tensor { return nil },
			"the tensor is closed":  func(x *Exec, in *Tensor) *Tensor { y := x.Neg(in); y.Close(); return y },
			"has written its input": func(x *Exec, in *Tensor) *Tensor { return x.NegInPlace(in) },
		} {
			err := torchtest.TryDo(t, d, func(x *Exec) { x.Recompute(x.Ones(Float32, 2), fn) })
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "recompute_test.go") {
				t.Errorf("got error %v, want %q in it", err, text)
			}
		}
	})
}

func TestRecompute_OtherShapeTheSecondTime(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		y := x.Recompute(leaf(t, x, 1, 2), func(x *Exec, in *Tensor) *Tensor {
			if x.Recomputing() {
				return x.Sum(in)
			}
			return x.Neg(in)
		})
		x.Backward(x.Sum(y))
	})
	wantError(t, err, ErrInvalidArgument, "Exec.Backward", "what was computed again is Float[]", "Float[2] on cpu the first time")
}

func TestRecompute_InputWrittenSince(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		in, w := x.Ones(Float32, 2), leaf(t, x, 3, 5)
		loss := x.Sum(x.Recompute(in, squares(w)))
		x.FillInPlace(in, 2.0)
		x.Backward(loss)
	})
	wantError(t, err, ErrInvalidArgument, "Exec.Backward", "modified by an inplace operation")
}

func TestRecompute_Gradients(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		in := leaf(t, x, 1, 2)
		x.Gradients([]*Tensor{x.Sum(x.Recompute(in, squares(in)))}, []*Tensor{in}, GradientOptions{})
	})
	wantError(t, err, ErrUnsupported, "Exec.Gradients", "computed again")
}

// A panic in the second call is raised in the caller of Do, with its value and its first stack.
func TestRecompute_Panic(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		p, ok := panicOf(func() {
			s.Do(func(x *Exec) error {
				in := leaf(t, x, 1, 2)
				x.Backward(x.Sum(x.Recompute(in, failingAgain(panics))))
				return nil
			})
		}).(*Panic)
		if !ok || p.Value != errOwn || !strings.Contains(string(p.Stack), "cgotorch_test.panics") {
			t.Errorf("got %v", p)
		}
		torchtest.DoOn(t, s, func(x *Exec) {})
	})
}

func panics(*Exec, *Tensor) { panic(errOwn) }

// Goexit in the second call ends the caller of Do. It does not unwind through the stack of C++.
func TestRecompute_Goexit(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var deferred, returned bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Do(func(x *Exec) error {
				defer func() { deferred = true }()
				in := leaf(t, x, 1, 2)
				x.Backward(x.Sum(x.Recompute(in, failingAgain(func(*Exec, *Tensor) { runtime.Goexit() }))))
				return nil
			})
			returned = true
		}()
		within(t, func() { <-ended })
		if !deferred || returned {
			t.Errorf("the Do's deferred function ran: %v; Do returned: %v", deferred, returned)
		}
		torchtest.Do(t, d, func(x *Exec) {
			in := leaf(t, x, 1, 2)
			x.Backward(x.Sum(x.Recompute(in, squares(in))))
			torchtest.Equal(t, x, in.Grad(), []float32{4, 32})
		})
	})
}

// The second call runs on the stream of the first call. This stream first waits for the work
// before the Backward, so the stream checker finds no race. The test has two more cases, with
// `early` or `third` set. In these two cases the checker must find a race.
func TestRecompute_CheckStreams(t *testing.T) {
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		for name, c := range map[string]struct {
			early bool // a tensor that fn reads is written by another stream, which does not wait for the first call
			third bool // the second call uses a third stream, without a wait
			want  bool
		}{
			"ordered":         {},
			"written early":   {early: true, want: true},
			"on other stream": {third: true, want: true},
		} {
			checkRecomputeLeaks(t)
			var found []*StreamRace
			stop := Must(CheckStreams(func(r *StreamRace) { found = append(found, r) }))
			other, third := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
			torchtest.Do(t, d, func(x *Exec) {
				w, b := leaf(t, x, 3, 5), x.Ones(Float32, 2)
				y := x.On(other)
				made := x.Record()
				y.Wait(made)
				out := y.Recompute(w, func(x *Exec, in *Tensor) *Tensor {
					if x.Stream() != other {
						t.Error("the function runs on another stream")
					}
					square := squares(w)(x, in)
					if c.third && x.Recomputing() {
						x.On(third).NoGrad().Neg(square)
					}
					return x.Add(square, b)
				})
				done := y.Record()
				if c.early {
					x.NoGrad().FillInPlace(b, 1).Close()
				}
				x.Wait(done)
				if !c.early {
					x.NoGrad().FillInPlace(b, 1).Close()
				}
				made.Close()
				done.Close()
				x.Backward(x.Sum(out))
			})
			for _, s := range []*Stream{other, third} {
				must.Do(t, s.Synchronize())
			}
			stop()
			if got := len(found) > 0; got != c.want {
				t.Errorf("%s: races %v", name, found)
			}
		}
	})
}

// Under NoWaits, a wait in the second call counts as a wait of the Backward.
func TestRecompute_NoWaits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, waits := range []bool{false, true} {
		err := torchtest.TryDo(t, CPU, func(x *Exec) {
			x = x.NoWaits()
			in := x.Ones(Float32, 2)
			in.SetRequiresGrad(true)
			y := x.Recompute(in, func(x *Exec, in *Tensor) *Tensor {
				if waits && x.Recomputing() {
					x.Item(x.Sum(in))
				}
				return x.Mul(in, in)
			})
			x.Backward(x.Sum(y))
		})
		if waits {
			wantError(t, err, ErrWaited, "Exec.Backward", "aten::_local_scalar_dense")
		} else if err != nil {
			t.Error(err)
		}
	}
}

// Keep refuses lent memory in the second call too.
func TestRecompute_Lent(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		in := x.Lend(x.Ones(Float32, 2), "a batch")
		w := leaf(t, x, 3, 5)
		x.Backward(x.Sum(x.Recompute(in, func(x *Exec, in *Tensor) *Tensor {
			if x.Recomputing() {
				x.Keep(x.Alias(in))
			}
			return x.Mul(in, w)
		})))
	})
	wantError(t, err, ErrInvalidArgument, "Exec.Keep", "a batch")
}

// Dos of several streams run at the same time, and each Do runs several backwards. All gradients
// must be right.
func TestRecompute_OnSeveralStreams(t *testing.T) {
	checkRecomputeLeaks(t)
	torchtest.ForEachDevice(t, func(t *testing.T, d Device) {
		together.Run(4, func(int) {
			torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *Exec) {
				for range 50 {
					in := leaf(t, x, 1, 2)
					x.Backward(x.Sum(x.Recompute(x.Recompute(in, squares(in)), squares(in))))
					torchtest.Equal(t, x, in.Grad(), []float32{10, 10 * 512})
				}
			})
		})
	})
}
