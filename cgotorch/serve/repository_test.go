package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func openRepository(t *testing.T, o RepositoryOptions) *Repository {
	torchtest.CheckLeaks(t)
	r := NewRepository(o)
	t.Cleanup(func() { must.Check(t, r.Close()) })
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
		var logged []string
		r, ctx := openRepository(t, RepositoryOptions{Log: func(text string) { logged = append(logged, text) }}), context.Background()
		var loaded atomic.Int64
		for _, v := range []string{"9", "10", "1"} {
			must.Do(t, r.Add("a", v, adds(d, float64(len(v)), 0, &loaded)))
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
		if last := logged[len(logged)-1]; !strings.Contains(last, "a, version 1, is loaded already; unload it first") {
			t.Error("the second load logs", last)
		}
		if v, err := first(r.Predict(ctx, "a", "", row(0))); v != 1 || err != nil {
			t.Error("the loaded version gave", v, err)
		}
		must.Check(t, r.Load(ctx, "a", ""))
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
		must.Check(t, r.Unload(ctx, "a", "10"))
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
			must.Do(t, r.Add(fmt.Sprint(i), "1", adds(d, float64(i), each, &loaded)))
			must.Do(t, r.Load(ctx, fmt.Sprint(i), ""))
		}
		together.Run(4, func(c int) {
			draw := rand.New(rand.NewPCG(3, uint64(c)))
			for range 40 {
				model := draw.IntN(10)
				v, err := first(r.Predict(ctx, fmt.Sprint(model), "", row(1)))
				if err != nil || v != float32(1+model) {
					t.Errorf("model %d gave %v, %v", model, v, err)
				}
			}
		})
		if n, bytes := loaded.Load(), r.Memory(); n != 3 || bytes < 3*each || bytes > 4*each || logged.Load() == 0 {
			t.Errorf("%d models are loaded, of %d bytes", n, bytes)
		}
		must.Do(t, r.Add("large", "1", adds(d, 0, 4*each, &loaded)))
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
		must.Do(t, errors.Join(r.Add("a", "1", adds(d, 1, 0, &loaded)), r.Load(ctx, "a", "")))
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

// An Unload whose ctx ends while it frees a version frees the idle ones behind it too.
func TestRepository_Unload_ContextEnds(t *testing.T) {
	torchtest.CheckLeaks(t)
	for range 20 { // a select chooses one of the two ends by chance
		r, always := NewRepository(RepositoryOptions{}), context.Background()
		ctx, cancel := context.WithCancel(always)
		var loaded atomic.Int64
		must.Do(t, errors.Join(r.Add("a", "1", adds(cgotorch.CPU, 1, 0, &loaded)), r.Add("a", "2", func() (*Model, error) {
			m, err := adds(cgotorch.CPU, 2, 0, &loaded)()
			m.Free = func() error { cancel(); loaded.Add(-1); return nil }
			return m, err
		}), r.Load(always, "a", "1"), r.Load(always, "a", "2")))
		unloaded := make(chan error, 1)
		go func() { unloaded <- r.Unload(ctx, "a", "") }()
		select {
		case err := <-unloaded:
			if err := errors.Join(err, r.Close()); err != nil || loaded.Load() != 0 {
				t.Fatal(err, loaded.Load())
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the Unload does not return")
		}
	}
}

func TestRepository_LoadFails(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	fails := true
	var loaded atomic.Int64
	must.Do(t, r.Add("a", "1", func() (*Model, error) {
		if fails {
			return nil, errors.New("no weights")
		}
		return adds(cgotorch.CPU, 1, 0, &loaded)()
	}))
	if err := r.Load(ctx, "a", ""); err == nil || r.List()[0].Err == nil {
		t.Error("no error", r.List()[0])
	}
	_, err := r.Predict(ctx, "a", "", row(1))
	torchtest.WantError(t, err, ErrNotLoaded)
	fails = false
	if err := r.Load(ctx, "a", ""); err != nil || !r.List()[0].Ready {
		t.Error(err, r.List()[0])
	}
	must.Check(t, r.Close())
	torchtest.WantError(t, r.Load(ctx, "a", ""), cgotorch.ErrClosed)
	_, err = r.Predict(ctx, "a", "", row(1))
	torchtest.WantError(t, err, cgotorch.ErrClosed)
}

// A model that was unloaded for its memory stays ready while there is no memory for it. After
// another failure it is not ready and not tried, until Load succeeds.
func TestRepository_Reload_Fails(t *testing.T) {
	const each = 1 << 30 // so that one model fits
	r, ctx := openRepository(t, RepositoryOptions{Memory: 2*each - 1}), context.Background()
	var loaded atomic.Int64
	var load func() error // before the load, which fails with its error
	loads := 0
	err := errors.Join(
		r.Add("a", "1", func() (*Model, error) {
			if loads++; load != nil {
				if err := load(); err != nil {
					return nil, err
				}
			}
			return adds(cgotorch.CPU, 1, each, &loaded)()
		}),
		r.Add("b", "1", adds(cgotorch.CPU, 2, each, &loaded)),
		r.Load(ctx, "a", ""), r.Load(ctx, "b", ""))
	must.Do(t, err)
	ask := func(name string) error {
		_, err := r.Predict(ctx, name, "", row(1))
		return err
	}
	want := func(when string, ready bool, failure error) {
		t.Helper()
		info := r.List()[0]
		if err := r.Ready("a", ""); info.Ready != ready || (err == nil) != ready || !errors.Is(info.Err, failure) || (info.Err == nil) != (failure == nil) {
			t.Errorf("%s: %+v, and Ready tells %v; want ready %v and %v", when, info, err, ready, failure)
		}
	}
	want("unloaded for its memory", true, nil)
	load = func() error { return fmt.Errorf("a: %w", cgotorch.ErrOutOfMemory) }
	torchtest.WantError(t, ask("a"), cgotorch.ErrOutOfMemory)
	want("without memory", true, cgotorch.ErrOutOfMemory)
	load = nil
	if err := ask("a"); err != nil {
		t.Error("when there is memory:", err)
	}
	want("loaded again", true, nil)

	must.Check(t, ask("b"))
	damaged := errors.New("no weights")
	load = func() error { return damaged }
	if err := ask("a"); !errors.Is(err, damaged) {
		t.Error(err)
	}
	want("damaged", false, damaged)
	tried := loads
	torchtest.WantError(t, ask("a"), ErrNotLoaded, "no weights")
	torchtest.WantError(t, r.Ready("a", "1"), ErrNotLoaded, "no weights")
	if loads != tried {
		t.Errorf("a damaged model was tried %d times more", loads-tried)
	}
	short, cancel := context.WithCancel(ctx)
	load = func() error { cancel(); return short.Err() }
	if err := r.Load(short, "a", ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	want("after a load that its caller has left", false, damaged)
	load = nil
	must.Check(t, errors.Join(r.Load(ctx, "a", ""), ask("a")))
	want("mended", true, nil)

	load = func() error { return damaged }
	must.Check(t, ask("b"))
	if err := ask("a"); !errors.Is(err, damaged) {
		t.Error(err)
	}
	must.Check(t, r.Unload(ctx, "a", ""))
	want("not wanted any more", false, nil)
}

// A model whose device is lost is not ready, and nothing is asked of it.
func TestRepository_DeviceLost(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	var loaded atomic.Int64
	err := errors.Join(r.Add("a", "1", adds(cgotorch.CPU, 1, 0, &loaded)), r.Load(ctx, "a", ""))
	if err == nil {
		err = r.Use(ctx, "a", "", func(m *Model) error {
			m.note(fmt.Errorf("injected: %w", cgotorch.ErrDeviceLost))
			return nil
		})
	}
	must.Do(t, err)
	<-r.Lost()
	_, err = r.Predict(ctx, "a", "", row(1))
	for _, err := range []error{err, r.Ready("a", ""), r.Ready("a", "1")} {
		torchtest.WantError(t, err, ErrNotLoaded, "injected")
		torchtest.WantError(t, err, cgotorch.ErrDeviceLost)
	}
	torchtest.WantError(t, r.Load(ctx, "a", ""), cgotorch.ErrDeviceLost, "injected")
	if info := r.List()[0]; info.Ready || !info.Loaded || !errors.Is(info.Err, cgotorch.ErrDeviceLost) {
		t.Errorf("%+v", info)
	}
}

func TestRepository_Remove(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	var loaded atomic.Int64
	must.Do(t, errors.Join(r.Add("a", "1", adds(cgotorch.CPU, 1, 0, &loaded)), r.Load(ctx, "a", "")))
	torchtest.WantError(t, r.Remove(ctx, "a", ""), ErrNotFound, `Remove: "a": no version is given`)
	torchtest.WantError(t, r.Remove(ctx, "a", "2"), ErrNotFound, `version "2"`)
	must.Check(t, r.Ready("a", "1"))
	if err := r.Remove(ctx, "a", "1"); err != nil || loaded.Load() != 0 || len(r.List()) != 0 {
		t.Error(err, loaded.Load(), r.List())
	}
	torchtest.WantError(t, r.Ready("a", ""), ErrNotFound)
}

// A Load that waits for a Remove of the same version does not load it.
func TestRepository_Remove_BesideLoad(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	var loaded atomic.Int64
	must.Do(t, r.Add("a", "1", adds(cgotorch.CPU, 1, 0, &loaded)))
	r.turn <- struct{}{} // another load
	removed, load := make(chan error), make(chan error)
	go func() { removed <- r.Remove(ctx, "a", "1") }()
	time.Sleep(20 * time.Millisecond)
	go func() { load <- r.Load(ctx, "a", "1") }()
	time.Sleep(20 * time.Millisecond)
	<-r.turn
	must.Check(t, <-removed)
	if err := <-load; err != nil { // nil if the Load had its turn first
		torchtest.WantError(t, err, ErrNotFound, `"a", version "1"`)
	}
	if n := loaded.Load(); n != 0 {
		t.Errorf("%d models are loaded that nobody can unload", n)
	}
}

// A device that is lost during a load is told, so that the process can end.
func TestRepository_LostInLoad(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	must.Do(t, r.Add("a", "1", func() (*Model, error) { return nil, cgotorch.ErrDeviceLost }))
	torchtest.WantError(t, r.Load(ctx, "a", ""), cgotorch.ErrDeviceLost)
	select {
	case <-r.Lost():
	default:
		t.Error("Lost is not closed")
	}
}

// Unload forgets why a load has failed.
func TestRepository_Unload_Failed(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	must.Do(t, r.Add("a", "1", func() (*Model, error) { return nil, errors.New("no weights") }))
	if r.Load(ctx, "a", ""); r.List()[0].Err == nil {
		t.Error("the failure is not told")
	}
	if err := r.Unload(ctx, "a", ""); err != nil || r.List()[0].Err != nil {
		t.Error(err, r.List()[0].Err)
	}
	torchtest.WantError(t, r.Unload(ctx, "a", ""), ErrNotLoaded)
}

// A version that fails to end does not keep the others loaded.
func TestRepository_Unload_AllVersions(t *testing.T) {
	r, ctx := openRepository(t, RepositoryOptions{}), context.Background()
	var loaded atomic.Int64
	failed := errors.New("a file stays")
	err := errors.Join(
		r.Add("a", "1", adds(cgotorch.CPU, 1, 0, &loaded)),
		r.Add("a", "2", func() (*Model, error) {
			m, err := adds(cgotorch.CPU, 2, 0, &loaded)()
			m.Free = func() error { loaded.Add(-1); return failed }
			return m, err
		}),
		r.Load(ctx, "a", "1"), r.Load(ctx, "a", "2"))
	must.Do(t, err)
	if err := r.Unload(ctx, "a", ""); !errors.Is(err, failed) {
		t.Errorf("Unload: %v", err)
	}
	if n := loaded.Load(); n != 0 {
		t.Errorf("%d versions are loaded", n)
	}
	torchtest.WantError(t, r.Ready("a", ""), ErrNotLoaded)
}

// A load that has begun is kept, although its context ends while it waits for room.
func TestRepository_Load_ContextEnds(t *testing.T) {
	r := openRepository(t, RepositoryOptions{Memory: 100 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	var loaded atomic.Int64
	begun := make(chan struct{})
	load := adds(cgotorch.CPU, 2, 80<<20, &loaded)
	must.Do(t, errors.Join(r.Add("a", "1", adds(cgotorch.CPU, 1, 80<<20, &loaded)), r.Load(ctx, "a", ""), r.Add("b", "1", func() (*Model, error) {
		cancel()
		close(begun)
		return load()
	})))
	failed := make(chan error, 1)
	err := r.Use(context.Background(), "a", "", func(*Model) error { // keeps the room for a moment
		go func() { failed <- r.Load(ctx, "b", "") }()
		<-begun
		time.Sleep(100 * time.Millisecond)
		return nil
	})
	must.Check(t, errors.Join(err, <-failed, r.Ready("b", "")))
}

// A panic of a load is an error, whose text has no stack: servers send it to clients.
func TestRepository_Load_Panics(t *testing.T) {
	var logged []string
	r, ctx := openRepository(t, RepositoryOptions{Log: func(text string) { logged = append(logged, text) }}), context.Background()
	var loaded atomic.Int64
	panicking := true
	must.Do(t, r.Add("a", "1", func() (*Model, error) {
		if panicking {
			panic("secret")
		}
		return adds(cgotorch.CPU, 1, 0, &loaded)()
	}))
	err := r.Load(ctx, "a", "")
	if p, ok := errors.Unwrap(err).(*panics.Panic); !ok || p.Value != "secret" || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), `the load of "a", version "1", has panicked`) {
		t.Errorf("%v, and inside it %v", err, errors.Unwrap(err))
	}
	if info := r.List()[0]; info.Ready || info.Loading || info.Err != err || len(logged) != 1 || !strings.Contains(logged[0], "repository_test.go") {
		t.Errorf("%+v, and the log is %q", info, logged)
	}
	panicking = false
	must.Check(t, r.Load(ctx, "a", ""))
}
