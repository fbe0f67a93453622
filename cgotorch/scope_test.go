package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestDo_FreesWhatItMade(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var leaked *Tensor
		for name, end := range map[string]func(x *Exec){
			"return":  func(x *Exec) {},
			"failure": func(x *Exec) { x.MM(x.Ones(Float32, 1), x.Ones(Float32, 1)) },
			"panic":   func(x *Exec) { panic("it") },
		} {
			panicOf(func() {
				s.Do(func(x *Exec) error {
					leaked = x.Ones(Float32, 10)
					for range 50 {
						x.Add(leaked, leaked)
					}
					if got := liveTensors(); got != 51 {
						t.Errorf("%d tensors live, want 51", got)
					}
					end(x)
					return nil
				})
			})
			if got := liveTensors(); got != 0 {
				t.Errorf("%s: %d tensors are left", name, got)
			}
			if !leaked.Closed() || leaked.Shape() != nil || leaked.String() != "closed" {
				t.Errorf("%s: a tensor of the Do is open after it", name)
			}
			err := s.Do(func(x *Exec) error { x.Neg(leaked); return nil })
			wantError(t, err, ErrClosed, "aten::neg", "Keep it there", "scope_test.go")
		}
	})
}

func TestKeep(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var kept *Tensor
		torchtest.DoOn(t, s, func(x *Exec) {
			made := x.Full(Float32, 3.0, 2)
			kept = x.Keep(made)
			if kept != made || x.Keep(kept) != kept {
				t.Error("Keep returns another handle")
			}
		})
		for range 2 {
			torchtest.DoOn(t, s, func(x *Exec) { torchtest.Equal(t, x, x.Add(kept, kept), []float32{6, 6}) })
		}
		if got := liveTensors(); got != 1 {
			t.Errorf("%d tensors live, want the kept one", got)
		}
		for range 2 {
			must.Do(t, kept.Close())
		}
		wantError(t, s.Do(func(x *Exec) error { x.Add(kept, kept); return nil }), ErrClosed, "aten::add.Tensor(nil, nil)")
		wantError(t, s.Do(func(x *Exec) error { x.Keep(kept); return nil }), ErrClosed, "Exec.Keep", "the tensor is closed")
		wantError(t, s.Do(func(x *Exec) error { x.Keep(nil); return nil }), ErrInvalidArgument, "Exec.Keep", "the tensor is nil")
	})
}

func TestKeep_SurvivesAFailureOfItsDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	var kept *Tensor
	s.Do(func(x *Exec) error {
		kept = x.Keep(x.Ones(Float32, 1))
		x.MM(kept, kept)
		return nil
	})
	s.Do(func(x *Exec) error { torchtest.Equal(t, x, kept, []float32{1}); return nil })
	kept.Close()
}

func TestKeep_OfAnotherDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	s, other := torchtest.NewStream(t, CPU), torchtest.NewStream(t, CPU)
	s.Do(func(x *Exec) error {
		a := x.Ones(Float32, 1)
		together.Run(1, func(int) {
			err := other.Do(func(y *Exec) error { y.Keep(a); return nil })
			wantError(t, err, ErrMisuse, "Exec.Keep", "the tensor belongs to another Do")
		})
		torchtest.Equal(t, x, a, []float32{1})
		return nil
	})
}

func TestClose_OfAnInputLeavesTheResult(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Full(Float32, 2.0, 2, 2)
		same := x.Contiguous(a, Contiguous) // LibTorch returns `a` itself
		view := x.Transpose(a, 0, 1)
		sum := x.Add(a, a)
		a.Close()
		torchtest.Equal(t, x, same, []float32{2, 2, 2, 2}, 2, 2)
		torchtest.Equal(t, x, view, []float32{2, 2, 2, 2}, 2, 2)
		same.Close()
		view.Close()
		torchtest.Equal(t, x, sum, []float32{4, 4, 4, 4}, 2, 2)
		if got := liveTensors(); got != 1 {
			t.Errorf("%d tensors live, want 1", got)
		}
	})
}

func TestClose_OfWhatBackwardNeeds(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		p := x.Full(Float32, 2.0, 2)
		p.SetRequiresGrad(true)
		square := x.Mul(p, p)
		cube := x.Mul(square, p)
		square.Close()
		loss := x.Sum(cube)
		cube.Close()
		x.Backward(loss)
		torchtest.Equal(t, x, p.Grad(), []float32{12, 12})
	})
}

func TestTidy(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Ones(Float32, 2)
		var kept, inner, dropped *Tensor
		result := x.Tidy(func() *Tensor {
			kept = x.Keep(x.Add(a, a))
			dropped = x.Neg(kept)
			inner = x.Tidy(func() *Tensor {
				x.Neg(a)
				return x.Add(kept, kept)
			})
			if got := liveTensors(); got != 4 {
				t.Errorf("%d tensors live behind the inner Tidy, want 4", got)
			}
			return x.Add(inner, inner)
		})
		if got := liveTensors(); got != 3 {
			t.Errorf("%d tensors live, want a, kept and the result", got)
		}
		if !inner.Closed() || !dropped.Closed() || kept.Closed() || a.Closed() {
			t.Error("Tidy closed the wrong ones")
		}
		torchtest.Equal(t, x, result, []float32{8, 8})
		if x.Tidy(func() *Tensor { return nil }) != nil {
			t.Error("Tidy of nil is not nil")
		}
		if x.Tidy(func() *Tensor { x.Neg(a); return a }) != a || a.Closed() {
			t.Error("Tidy closed a result that was there before")
		}
		kept.Close()
	})
}

func TestTidy_Failure(t *testing.T) {
	torchtest.CheckLeaks(t)
	err := torchtest.TryDo(t, CPU, func(x *Exec) {
		x.Tidy(func() *Tensor { return x.MM(x.Ones(Float32, 1), x.Ones(Float32, 1)) })
	})
	wantError(t, err, ErrInvalidArgument, "aten::mm")
}

// Memory that was lent and then freed can be handed out again.
func TestLend_Freed(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		for range 100 {
			x.Tidy(func() *Tensor {
				x.Lend(x.Zeros(Float32, 8), "what is freed")
				return nil
			})
			x.Keep(x.Zeros(Float32, 8)).Close()
		}
	})
}

func TestLend(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var slot *Tensor
		torchtest.DoOn(t, s, func(x *Exec) { slot = x.Keep(x.Ones(Float32, 2, 2)) })
		defer slot.Close()
		for name, derive := range map[string]func(x *Exec, lent *Tensor) *Tensor{
			"itself":       func(x *Exec, lent *Tensor) *Tensor { return lent },
			"a view":       func(x *Exec, lent *Tensor) *Tensor { return x.Narrow(lent, 0, 0, 1) },
			"its view":     func(x *Exec, lent *Tensor) *Tensor { return x.Transpose(x.View(lent, 4, 1), 0, 1) },
			"an alias":     func(x *Exec, lent *Tensor) *Tensor { return x.Alias(lent) },
			"detached":     func(x *Exec, lent *Tensor) *Tensor { return x.Detach(lent) },
			"the original": func(x *Exec, lent *Tensor) *Tensor { return x.Alias(slot) },
		} {
			t.Run(name, func(t *testing.T) {
				err := s.Do(func(x *Exec) error {
					x.Keep(derive(x, x.Lend(slot, "batch 3 of epoch 2")))
					return nil
				})
				wantError(t, err, ErrInvalidArgument, "Exec.Keep", "shares the memory of batch 3 of epoch 2", "Clone it first", "scope_test.go")
			})
		}
		var clone *Tensor
		torchtest.DoOn(t, s, func(x *Exec) {
			lent := x.Lend(slot, "batch")
			clone = x.Keep(x.Clone(lent))
			torchtest.Equal(t, x, x.Add(lent, lent), []float32{2, 2, 2, 2}, 2, 2)
		})
		clone.Close()
		if err := s.Do(func(x *Exec) error { x.Keep(x.Alias(slot)).Close(); return nil }); err != nil {
			t.Errorf("a loan outlives its Do: %v", err)
		}
	})
}

// If a Do makes and closes many tensors, its list of tensors stays short.
func TestDo_ManyTensorsInOne(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		a := x.Ones(Float32, 1)
		for range 20000 {
			x.Neg(a).Close()
		}
		if got := TensorRoom(x); got > 4096 {
			t.Errorf("the Do has room for %d tensors, of which one is open", got)
		}
		mark := x.Ones(Float32, 1)
		result := x.Tidy(func() *Tensor {
			for range 20000 {
				x.Neg(a).Close()
			}
			return x.Add(a, mark)
		})
		if mark.Closed() || result.Closed() || a.Closed() {
			t.Error("Tidy closed the wrong ones")
		}
		open := make([]*Tensor, 1000)
		for i := range open {
			x.Neg(a).Close()
			open[i] = x.Neg(a)
		}
		for i, tensor := range open {
			if tensor.Closed() {
				t.Fatalf("tensor %d was closed", i)
			}
		}
		if got := liveTensors(); got != 1003 {
			t.Errorf("%d tensors live, want 1003", got)
		}
	})
}
