package weights

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestSlotModule_BuildReturnsNil(t *testing.T) {
	torchtest.CheckLeaks(t)
	build := func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, nil }
	if _, err := NewCache(scalesStore(t, 1), cgotorch.CPU, build, CacheOptions{}); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "build has returned nil") {
		t.Errorf("got %v", err)
	}
}

// A unit without the tensor num_batches_tracked of its module is refused.
func TestSlotModule_NumBatchesTracked(t *testing.T) {
	torchtest.CheckLeaks(t)
	f := func(n string) TensorSpec {
		return TensorSpec{Name: n, DType: cgotorch.Float32, Shape: []int64{4}}
	}
	s := must.Get(NewStore([]UnitSpec{{Name: "bn", Tensors: []TensorSpec{f("weight"), f("bias"), f("running_mean"), f("running_var")}}}))(t)
	defer s.Close()
	c, err := NewCache(s, cgotorch.CPU, func(x *cgotorch.Exec, _ string) (*nn.BatchNorm2d, error) {
		return nn.NewBatchNorm2d(x, 4, nn.BatchNormOptions{}), nil
	}, CacheOptions{})
	if c != nil {
		c.Close()
	}
	if !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "num_batches_tracked") {
		t.Errorf("got %v, want an error that names num_batches_tracked", err)
	}
}

// If `build` panics, or returns a closed tensor or a module by value, the store can still be
// closed.
func TestSlotModule_BuildPanics(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, build := range map[string]func(x *cgotorch.Exec, _ string) (*nn.Linear, error){
		"panic": func(x *cgotorch.Exec, _ string) (*nn.Linear, error) { panic("of the program") },
		"closed": func(x *cgotorch.Exec, n string) (*nn.Linear, error) {
			l, _ := newLinear(x, n)
			l.Weight.Close()
			return l, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := must.Get(NewStore([]UnitSpec{linearSpec("a")}))(t)
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Logf("panic: %.200v", p)
					}
				}()
				c, err := NewCache(s, cgotorch.CPU, build, CacheOptions{})
				t.Logf("%v %v", c != nil, err)
				if c != nil {
					t.Log(c.Check())
					c.Close()
				}
			}()
			if err := s.Close(); err != nil {
				t.Errorf("afterwards the store cannot be closed: %v", err)
			}
		})
	}
	t.Run("by value", func(t *testing.T) {
		s, _ := NewStore([]UnitSpec{linearSpec("a")})
		c, err := NewCache(s, cgotorch.CPU, func(x *cgotorch.Exec, n string) (nn.Linear, error) {
			l, err := newLinear(x, n)
			return *l, err
		}, CacheOptions{})
		if c != nil || !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "must return a pointer") {
			t.Errorf("got %v, %v", c, err)
		}
		must.Check(t, s.Close())
	})
}

// If `build` returns the same module for every slot, this module is refused.
func TestSlotModule_BuildReturnsOneAgain(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := scalesStore(t, 2)
	var one *nn.Linear
	c, err := NewCache(s, cgotorch.CPU, func(x *cgotorch.Exec, n string) (*nn.Linear, error) {
		if one == nil {
			one, _ = newLinear(x, n)
		}
		return one, nil
	}, CacheOptions{Slots: 2})
	if c != nil {
		c.Close()
	}
	if !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "one at each call") {
		t.Errorf("got %v, want that build must make one at each call", err)
	}
}
