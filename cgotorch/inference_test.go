package cgotorch_test

import (
	"context"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func newInference(t testing.TB, d Device, o InferenceOptions, fn func(x *Exec, in *Tensor) *Tensor) *Inference {
	t.Helper()
	f := Must(NewInference(d, fn, o))
	t.Cleanup(func() { f.Close() })
	return f
}

// Many goroutines call Do with batches of several sizes and get right results. BatchSizes may be
// empty or set, and a batch may be larger than all BatchSizes.
func TestInference_Do(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		rounds := 100
		if testing.Short() {
			rounds = 10
		}
		weights := kept(t, DefaultStream(d), 1, func(x *Exec) *Tensor { return x.Ones(Float32, 4, 2) })[0]
		synchronize(t, DefaultStream(d))
		for _, sizes := range [][]int{nil, {4, 1}} {
			f := newInference(t, d, InferenceOptions{Streams: 3, BatchSizes: sizes}, func(x *Exec, in *Tensor) *Tensor { return x.MatMul(in, weights) })
			must.Do(t, f.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32, 4, 4) }))
			var done sync.WaitGroup
			for i := range 8 {
				done.Add(1)
				go func() {
					defer done.Done()
					for k := range rounds {
						n := 1 + (i+k)%6
						var got []float32
						var shape []int64
						err := f.Do(t.Context(), func(x *Exec, forward func(*Tensor) *Tensor) error {
							in := make([]float32, 4*n)
							for j := range in {
								in[j] = float32(100*i + k + j/4)
							}
							out := forward(FromSlice(x, in, int64(n), 4))
							got, shape = ToSlice[float32](x, out), out.Shape()
							return nil
						})
						if err != nil {
							t.Error(err)
							return
						}
						if len(shape) != 2 || shape[0] != int64(n) || len(got) != 2*n {
							t.Errorf("a batch of %d gives %v", n, shape)
							return
						}
						for j, v := range got {
							if want := float32(4 * (100*i + k + j/2)); v != want {
								t.Errorf("element %d of a batch of %d is %v, want %v", j, n, v, want)
								return
							}
						}
					}
				}()
			}
			done.Wait()
			if launches, graphs := InferenceStats(f); d.IsCUDA() && (launches == 0 || sizes != nil && graphs > 6) {
				t.Errorf("%d launches of %d graphs", launches, graphs)
			}
		}
	})
}

func TestInference_Close(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		f := newInference(t, d, InferenceOptions{Streams: 1}, func(x *Exec, in *Tensor) *Tensor { return x.AddScalar(in, 1) })
		call := func(ctx context.Context) error {
			return f.Do(ctx, func(x *Exec, forward func(*Tensor) *Tensor) error { forward(x.Ones(Float32, 1)); return nil })
		}
		began, end := make(chan struct{}), make(chan struct{})
		running := make(chan error)
		go func() {
			running <- f.Do(t.Context(), func(x *Exec, forward func(*Tensor) *Tensor) error {
				close(began)
				<-end
				forward(x.Ones(Float32, 1))
				return nil
			})
		}()
		<-began
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOwn)
		torchtest.WantError(t, call(ctx), errOwn)
		for range 2 {
			must.Do(t, f.Close())
		}
		wantError(t, call(t.Context()), ErrClosed, "Inference.Do")
		close(end)
		if err := <-running; err != nil {
			t.Errorf("the Do that ran when it was closed: %v", err)
		}
	})
}

func TestInference_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		plus := func(x *Exec, in *Tensor) *Tensor { return x.AddScalar(in, 1) }
		for _, o := range []InferenceOptions{{BatchSizes: []int{0}}, {BatchSizes: []int{8, -3}}, {BatchSizes: []int{8}, InPlace: true}} {
			_, err := NewInference(d, plus, o)
			wantError(t, err, ErrInvalidArgument, "NewInference", "BatchSizes")
		}
		f := newInference(t, d, InferenceOptions{Streams: 2}, plus)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOwn)
		for range 50 {
			torchtest.WantError(t, f.Do(ctx, func(x *Exec, _ func(*Tensor) *Tensor) error { t.Error("it ran"); return nil }), errOwn)
		}
		var done sync.WaitGroup
		for range 3 {
			done.Add(1)
			go func() {
				defer done.Done()
				if err := f.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32, 2) }); err != nil {
					t.Error(err)
				}
			}()
		}
		done.Wait()
		waits := newInference(t, d, InferenceOptions{Streams: 2}, func(x *Exec, in *Tensor) *Tensor { x.Item(in); return in })
		err := waits.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32) })
		if d.IsCUDA() {
			wantError(t, err, ErrNotCapturable, "Inference.Prepare", "Exec.Item")
		} else if err != nil {
			t.Error(err)
		}
	})
}

// Prepare calls the function until the Choices in the function are decided.
func TestInference_Prepare_Choice(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		choice := NewChoice(nil)
		f := newInference(t, d, InferenceOptions{Streams: 2}, func(x *Exec, in *Tensor) *Tensor {
			branch := func(x *Exec) *Tensor { return x.Tanh(x.MM(in, in)) }
			out := x.Parallel(ParallelOptions{Choice: choice, Inputs: []*Tensor{in}}, branch, branch)
			return x.Add(out[0], out[1])
		})
		must.Do(t, f.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32, 16, 16) }))
		if launches, _ := InferenceStats(f); d.IsCUDA() && (launches == 0 || len(Decisions(choice)) == 0) {
			t.Errorf("%d launches, decisions %v", launches, Decisions(choice))
		}
	})
}

// On the CPU, where nothing is captured, Prepare calls the function WarmUp times a stream.
func TestInference_Prepare_Calls(t *testing.T) {
	torchtest.CheckLeaks(t)
	calls := 0
	f := newInference(t, CPU, InferenceOptions{Streams: 2, WarmUp: 3}, func(x *Exec, in *Tensor) *Tensor {
		calls++
		return x.AddScalar(in, 1)
	})
	if err := f.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32, 2) }); err != nil || calls != 6 {
		t.Errorf("%d calls, want 6 (%v)", calls, err)
	}
}

// A Do inside a Do fails at once, also with free streams. So does Prepare.
func TestInference_Do_InsideADo(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, streams := range []int{1, 2} {
		f := newInference(t, CPU, InferenceOptions{Streams: streams}, func(x *Exec, in *Tensor) *Tensor { return x.Alias(in) })
		err := f.Do(t.Context(), func(x *Exec, _ func(in *Tensor) *Tensor) error {
			wantError(t, f.Prepare(t.Context(), func(x *Exec) *Tensor { return x.Ones(Float32, 1) }), ErrMisuse, "Inference.Prepare", "inside a Do", "inference_test.go:")
			return f.Do(t.Context(), func(x *Exec, _ func(in *Tensor) *Tensor) error { return nil })
		})
		wantError(t, err, ErrMisuse, "Inference.Do", "inside a Do", "inference_test.go:")
	}
}

// Dos that wait for goroutines that wait for a free stream fail, if there is no other stream. With
// another stream they end well.
func TestInference_Do_WaitsForItsOwnGoroutine(t *testing.T) {
	impatient(t)
	torchtest.CheckLeaks(t)
	for _, test := range []struct{ streams, dos, failed int }{{1, 1, 1}, {2, 1, 0}, {2, 2, 1}} {
		f := newInference(t, CPU, InferenceOptions{Streams: test.streams}, func(x *Exec, in *Tensor) *Tensor { return x.Alias(in) })
		inner := make(chan error, test.dos)
		var inside, ended sync.WaitGroup
		inside.Add(test.dos)
		for range test.dos {
			ended.Add(1)
			go func() {
				defer ended.Done()
				if err := f.Do(t.Context(), func(x *Exec, _ func(in *Tensor) *Tensor) error {
					inside.Done()
					inside.Wait()
					done := make(chan error)
					go func() {
						done <- f.Do(t.Context(), func(x *Exec, _ func(in *Tensor) *Tensor) error { return nil })
					}()
					inner <- <-done
					return nil
				}); err != nil {
					t.Error(err)
				}
			}()
		}
		ended.Wait()
		failed := 0
		for range test.dos {
			if err := <-inner; err != nil {
				failed++
				wantError(t, err, ErrMisuse, "Inference.Do", "whose Do waits for this goroutine", "inference_test.go:")
			}
		}
		if failed < test.failed || test.failed == 0 && failed > 0 {
			t.Errorf("%d streams, %d Dos: %d inner Dos failed, want %d", test.streams, test.dos, failed, test.failed)
		}
	}
}

func TestNewInference_Refuses(t *testing.T) {
	_, err := NewInference(CPU, nil, InferenceOptions{})
	wantError(t, err, ErrInvalidArgument, "NewInference", "fn is nil")
	_, err = NewInference(CPU, func(x *Exec, in *Tensor) *Tensor { return in }, InferenceOptions{Streams: 1 << 40})
	wantError(t, err, ErrInvalidArgument, "NewInference", "at most 1024")
}
