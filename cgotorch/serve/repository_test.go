package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func openRepository(t *testing.T, o RepositoryOptions) *Repository {
	torchtest.CheckLeaks(t)
	r := NewRepository(o)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// adds returns a load function of a model that adds a number, and counts what is loaded.
func adds(d cgotorch.Device, number float64, weights int64, loaded *atomic.Int64) func() (*Model, error) {
	return func() (*Model, error) {
		b, err := New(d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			return []*tensor{x.AddScalar(in[0], number)}
		}, Options{Inputs: vector, BatchSizes: []int{1, 4}})
		if err != nil {
			return nil, err
		}
		loaded.Add(1)
		return &Model{Batcher: b, Weights: weights, Free: func() error { loaded.Add(-1); return nil }}, nil
	}
}

func first(out []Array, err error) (float32, error) {
	if err != nil {
		return 0, err
	}
	v, err := Elements[float32](out[0])
	return v[0], err
}

func TestRepository_Versions(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
		var loaded atomic.Int64
		for _, v := range []string{"9", "10", "1"} {
			if err := r.Add("a", v, adds(d, float64(len(v)), 0, &loaded)); err != nil {
				t.Fatal(err)
			}
		}
		torchtest.WantError(t, r.Add("a", "9", adds(d, 0, 0, &loaded)), cgotorch.ErrInvalidArgument, `version "9"`)
		_, err := r.Predict(ctx, "b", "")
		torchtest.WantError(t, err, ErrNotFound, `"b"`)
		_, err = r.Predict(ctx, "a", "")
		torchtest.WantError(t, err, ErrNotLoaded, `"a"`)
		_, err = r.Predict(ctx, "a", "11")
		torchtest.WantError(t, err, ErrNotFound, `version "11"`)
		if err := errors.Join(r.Load(ctx, "a", "1"), r.Load(ctx, "a", "1")); err != nil || loaded.Load() != 1 {
			t.Error(err, loaded.Load())
		}
		if v, err := first(r.Predict(ctx, "a", "", row(0))); v != 1 || err != nil {
			t.Error("the loaded version gave", v, err)
		}
		if err := r.Load(ctx, "a", ""); err != nil {
			t.Error(err)
		}
		if v, err := first(r.Predict(ctx, "a", "", row(0))); v != 2 || err != nil {
			t.Error("the last version gave", v, err)
		}
		var versions []string
		for _, m := range r.List() {
			versions = append(versions, fmt.Sprint(m.Version, " ", m.Ready, " ", m.Loaded))
		}
		if want := []string{"1 true true", "9 false false", "10 true true"}; !slices.Equal(versions, want) {
			t.Errorf("%v, want %v", versions, want)
		}
		if err := r.Unload(ctx, "a", "10"); err != nil {
			t.Error(err)
		}
		if v, err := first(r.Predict(ctx, "a", "", row(0))); v != 1 || err != nil {
			t.Error("after the unload", v, err)
		}
		if err := r.Unload(ctx, "a", ""); err != nil || loaded.Load() != 0 {
			t.Error(err, loaded.Load())
		}
		torchtest.WantError(t, r.Unload(ctx, "a", ""), ErrNotLoaded)
	})
}

// Ten models share the memory of three. Each answer is right.
func TestRepository_Memory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const each = 1 << 30 // so that the graphs and inputs do not matter
		var logged atomic.Int64
		r, ctx := openRepository(t, RepositoryOptions{Memory: 4*each - 1, Log: func(string) { logged.Add(1) }}), context.Background()
		var loaded atomic.Int64
		for i := range 10 {
			if err := r.Add(fmt.Sprint(i), "1", adds(d, float64(i), each, &loaded)); err != nil {
				t.Fatal(err)
			}
			if err := r.Load(ctx, fmt.Sprint(i), ""); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for c := range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				draw := rand.New(rand.NewPCG(3, uint64(c)))
				for range 40 {
					model := draw.IntN(10)
					v, err := first(r.Predict(ctx, fmt.Sprint(model), "", row(1)))
					if err != nil || v != float32(1+model) {
						t.Errorf("model %d gave %v, %v", model, v, err)
					}
				}
			}()
		}
		all.Wait()
		if n, bytes := loaded.Load(), r.Memory(); n != 3 || bytes < 3*each || bytes > 4*each || logged.Load() == 0 {
			t.Errorf("%d models are loaded, of %d bytes", n, bytes)
		}
		if err := r.Add("large", "1", adds(d, 0, 4*each, &loaded)); err != nil {
			t.Fatal(err)
		}
		torchtest.WantError(t, r.Load(ctx, "large", ""), cgotorch.ErrOutOfMemory, "RepositoryOptions.Memory")
		if i := slices.IndexFunc(r.List(), func(m ModelInfo) bool { return m.Name == "large" }); r.List()[i].Ready || r.List()[i].Err == nil || loaded.Load() != 3 {
			t.Errorf("%+v, %d models are loaded", r.List()[i], loaded.Load())
		}
	})
}

// A model that is used is unloaded when its last use has ended, and not before.
func TestRepository_Unload_InUse(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
		var loaded atomic.Int64
		if err := errors.Join(r.Add("a", "1", adds(d, 1, 0, &loaded)), r.Load(ctx, "a", "")); err != nil {
			t.Fatal(err)
		}
		using, leave, used := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			used <- r.Use(ctx, "a", "", func(m *Model) error {
				close(using)
				<-leave
				_, err := m.Predict(ctx, row(1))
				return err
			})
		}()
		<-using
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if err := r.Unload(short, "a", ""); !errors.Is(err, context.DeadlineExceeded) || loaded.Load() != 1 {
			t.Errorf("an unload of a used model: %v", err)
		}
		if _, err := r.Predict(ctx, "a", "", row(1)); err != nil {
			t.Error("after the unload has failed:", err)
		}
		unloaded := make(chan error)
		go func() { unloaded <- r.Unload(ctx, "a", "") }()
		close(leave)
		if err := errors.Join(<-used, <-unloaded); err != nil || loaded.Load() != 0 {
			t.Error(err, loaded.Load())
		}
	})
}

func TestRepository_LoadFails(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	fails := true
	var loaded atomic.Int64
	if err := r.Add("a", "1", func() (*Model, error) {
		if fails {
			return nil, errors.New("no weights")
		}
		return adds(cgotorch.CPU, 1, 0, &loaded)()
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Load(ctx, "a", ""); err == nil || r.List()[0].Err == nil {
		t.Error("no error", r.List()[0])
	}
	_, err := r.Predict(ctx, "a", "", row(1))
	torchtest.WantError(t, err, ErrNotLoaded)
	fails = false
	if err := r.Load(ctx, "a", ""); err != nil || !r.List()[0].Ready {
		t.Error(err, r.List()[0])
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	torchtest.WantError(t, r.Load(ctx, "a", ""), cgotorch.ErrClosed)
	_, err = r.Predict(ctx, "a", "", row(1))
	torchtest.WantError(t, err, cgotorch.ErrClosed)
}
