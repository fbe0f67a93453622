package weights

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestCache_Close(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		store := scalesStore(t, 4)
		c := newCache(t, store, d, CacheOptions{Slots: 1})
		prefetch(t, c, 2)
		if err := store.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("closing the store in use: %v", err)
		}
		s := torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(1))
			blocked := make(chan error)
			go func() {
				blocked <- torchtest.NewStream(t, d).Do(func(x *cgotorch.Exec) error { c.Use(x, unitName(2)); return nil })
			}()
			time.Sleep(10 * time.Millisecond)
			for range 2 {
				must.Check(t, c.Close())
			}
			if err := <-blocked; !errors.Is(err, cgotorch.ErrClosed) {
				t.Errorf("a Use that waits: %v", err)
			}
			if err := c.Prefetch(context.Background(), unitName(1)); !errors.Is(err, cgotorch.ErrClosed) {
				t.Errorf("Prefetch: %v", err)
			}
			if got := x.Item(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width)))); got != 3 {
				t.Errorf("the unit in use gives %v", got)
			}
		})
		for deadline := time.Now().Add(5 * time.Second); store.Close() != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the store is still in use")
			}
		}
	})
}

// Close waits for the copies, because they read the store.
func TestCache_Close_WaitsForCopies(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		store := scalesStore(t, 2)
		c := newCache(t, store, d, CacheOptions{})
		prefetch(t, c, 0, 1)
		must.Check(t, errors.Join(c.Close(), store.Close()))
	})
}

// A unit that does not fit is refused, with an error that has its name. The other units can be
// used.
func TestCache_BadUnit(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		good, short, misshapen, double, big := linearSpec("good"), linearSpec("short"), linearSpec("misshapen"), linearSpec("double"), linearSpec("big")
		short.Tensors = short.Tensors[:1]
		misshapen.Tensors[1].Shape = []int64{width + 1}
		double.Tensors[0].DType = cgotorch.Float64
		big.Tensors = append(big.Tensors, TensorSpec{Name: "more", DType: cgotorch.Float32, Shape: []int64{1000, 1000}})
		s := must.Get(NewStore([]UnitSpec{short, good, misshapen, double, big}))(t)
		t.Cleanup(func() { s.Close() })
		c := newCache(t, s, d, CacheOptions{SlotBytes: 1 << 14})
		mismatch := (*nn.LoadError)(nil)
		for name, want := range map[string]string{"short": "bias", "misshapen": "bias", "double": "float64", "big": "16384"} {
			err := c.Prefetch(context.Background(), name)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "unit "+name) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
			if (name == "short" || name == "misshapen") != errors.As(err, &mismatch) {
				t.Errorf("%s: %v", name, err)
			}
			if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: %v, want %q in it", err, want)
			}
		}
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) { c.Use(x, "good") })
	})
}

func TestNewCache_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := scalesStore(t, 2)
	broken := errors.New("broken")
	fails := func(want error, text string, build func(x *cgotorch.Exec, name string) (*nn.Linear, error), o CacheOptions) {
		t.Helper()
		c, err := NewCache(s, cgotorch.CPU, build, o)
		if err == nil {
			err = errors.Join(c.Check(), c.Close())
		}
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("got %v, want %v with %q", err, want, text)
		}
	}
	fails(ErrInvalidOptions, "Slots", newLinear, CacheOptions{Slots: -1})
	fails(ErrInvalidOptions, "Policy", newLinear, CacheOptions{Policy: 9})
	fails(ErrInvalidOptions, "InFlight", newLinear, CacheOptions{InFlight: -1})
	fails(ErrInvalidOptions, "SlotBytes", newLinear, CacheOptions{SlotBytes: -1})
	fails(ErrInvalidOptions, "100", newLinear, CacheOptions{SlotBytes: 100})
	fails(broken, "broken", func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, broken }, CacheOptions{})
	fails(nil, "", newLinear, CacheOptions{})
	fails(cgotorch.ErrInvalidArgument, "nn.NewLinear", func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
		return nn.NewLinear(x, -1, 1, nn.LinearOptions{}), nil
	}, CacheOptions{})
	if d := cgotorch.CUDA(7); true {
		if _, err := NewCache(s, d, newLinear, CacheOptions{}); !errors.Is(err, cgotorch.ErrNoDevice) {
			t.Errorf("on %v: %v", d, err)
		}
	}
}

func TestNewCache_OutOfMemory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		s := scalesStore(t, 2)
		_, err := NewCache(s, d, newLinear, CacheOptions{Slots: 3, SlotBytes: 1 << 50})
		if !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), "3 slots of 1125899906842624 bytes") {
			t.Errorf("got %v", err)
		}
		c := newCache(t, s, d, CacheOptions{})
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) { apply(t, x, c, 1) })
	})
}

// The units of a store with more bytes than the device has left can be used one after another.
func TestCache_LargerThanDevice(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if !d.IsCUDA() {
			t.Skip("the CPU's memory is the host's")
		}
		s := torchtest.NewStream(t, d)
		var ballast []*cgotorch.Tensor
		defer func() {
			for _, b := range ballast {
				b.Close()
			}
			must.Check(t, d.ReleaseCachedMemory())
		}()
		const count, side = 16, 8192                  // 4 GiB in all
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { // a kernel's first launch takes memory of CUDA's, which there is now
			x.Item(x.Sum(x.Zeros(cgotorch.Float32, side, side)))
		})
		var err error
		for err == nil {
			err = s.Do(func(x *cgotorch.Exec) error {
				ballast = append(ballast, x.Keep(x.Empty(cgotorch.Uint8, 1<<30)))
				return nil
			})
		}
		if !errors.Is(err, cgotorch.ErrOutOfMemory) {
			t.Fatal(err)
		}
		last := len(ballast) - 1
		ballast[last].Close()
		ballast = ballast[:last]
		if err := errors.Join(s.Synchronize(), d.ReleaseCachedMemory()); err != nil { // less than 2 GiB are left on the device
			t.Fatal(err)
		}
		var specs []UnitSpec
		for i := range count {
			specs = append(specs, UnitSpec{Name: unitName(i), Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{side, side}}}})
		}
		store := must.Get(NewStore(specs))(t)
		defer store.Close()
		for i := range count {
			weight := floats(t, store, unitName(i), "weight")
			weight[0], weight[len(weight)-1] = float32(i), 1
		}
		build := func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
			return &nn.Linear{Weight: x.Keep(x.Empty(cgotorch.Float32, side, side))}, nil
		}
		if _, err := NewCache(store, d, build, CacheOptions{Slots: count}); !errors.Is(err, cgotorch.ErrOutOfMemory) {
			t.Errorf("all at once: %v", err)
		}
		c := must.Get(NewCache(store, d, build, CacheOptions{Policy: NextLayer}))(t)
		defer c.Close()
		var sums []*cgotorch.HostRead
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			for i := range 2 * count {
				u := c.Use(x, unitName(i%count))
				sums = append(sums, x.ReadAsync(x.Sum(u.Module.Weight)))
				u.Release(x)
			}
		})
		for i, r := range sums {
			if got, err := r.Item(); err != nil || got != float64(i%count+1) {
				t.Errorf("unit %d gives %v (%v)", i%count, got, err)
			}
			r.Close()
		}
	})
}

// A graph that still runs when the Cache is closed reads the unit of its slot.
func TestCache_Close_BehindGraph(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		store := scalesStore(t, 2)
		s := torchtest.NewStream(t, d)
		var in, mean *cgotorch.Tensor
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			in, mean = x.Keep(x.Ones(cgotorch.Float32, 1, width)), x.Keep(x.Zeros(cgotorch.Float32))
			x.Mean(x.MatMul(in, x.Ones(cgotorch.Float32, width, width))) // the first product of a process is slow
		})
		defer in.Close()
		defer mean.Close()
		c := newCache(t, store, d, CacheOptions{Slots: 1})
		linear := must.Get(c.At(0, unitName(0)))(t)
		graph := must.Get(s.Capture(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			x.CopyInPlace(mean, x.Mean(linear.Forward(x, in)))
			return nil
		}, 0))(t)
		defer graph.Close()
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			torchtest.Sleep(x, 300*time.Millisecond)
			x.Launch(graph)
			u.Release(x)
		})
		must.Do(t, c.Close())
		for range 4 { // one of them reuses the Cache's copy stream, whose pool got the slot's memory
			torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
				for range 1000 {
					x.Full(cgotorch.Float32, 9.0, width, width+1)
				}
			})
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			if got := x.Item(mean); got != 1 {
				t.Errorf("the graph read a unit that gives %v, want 1", got)
			}
		})
	})
}

// A graph that is captured with the module of a slot reads the unit that the slot holds at each
// launch.
func TestCache_At_InGraph(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 5), d, CacheOptions{Slots: 2})
		s := torchtest.NewStream(t, d)
		in, means := (*cgotorch.Tensor)(nil), make([]*cgotorch.Tensor, 2)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			in = x.Keep(x.Ones(cgotorch.Float32, 1, width))
			for k := range means {
				means[k] = x.Keep(x.Zeros(cgotorch.Float32))
			}
			apply(t, x, c, 0)
		})
		defer in.Close()
		graphs := make([]*cgotorch.Graph, 2)
		for k := range graphs {
			defer means[k].Close()
			linear, err := c.At(k, unitName(0))
			must.Do(t, err)
			graphs[k], err = s.Capture(func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				x.CopyInPlace(means[k], x.Mean(linear.Forward(x, in)))
				return nil
			}, 0)
			must.Do(t, err)
			defer graphs[k].Close()
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			for _, i := range []int{3, 1, 4, 1, 0, 2} {
				u := c.Use(x, unitName(i))
				x.Launch(graphs[u.Slot])
				u.Release(x)
				if got, want := x.Item(means[u.Slot]), float64(2*i+1); got != want {
					t.Errorf("unit %d gives %v, want %v", i, got, want)
				}
			}
		})
		if _, err := c.At(2, unitName(0)); !errors.Is(err, ErrNoSlot) {
			t.Errorf("a slot that is not there: %v", err)
		}
	})
}

// With many goroutines and few slots every result is right, and no handle is left.
func TestCache_ManyGoroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 7), d, CacheOptions{Slots: 2, InFlight: 3})
		var all sync.WaitGroup
		for g := range 8 {
			s := torchtest.NewStream(t, d)
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range 20 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
					_ = c.Prefetch(ctx, unitName((i*g)%7))
					cancel()
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) { apply(t, x, c, (i*g)%7) })
				}
			}()
		}
		all.Wait()
		if s := c.Stats(); s.Hits+s.Ahead+s.Misses != 160 {
			t.Errorf("%+v; want 160 uses", s)
		}
	})
}

// If a unit is in use, Close returns at once. A second Close, after the release, waits until
// everything is freed.
func TestCache_Close_InUse_ThenStore(t *testing.T) {
	torchtest.CheckLeaks(t)
	specs := []UnitSpec{linearSpec("a")}
	s, _ := NewStore(specs)
	c := must.Get(NewCache(s, cgotorch.CPU, newLinear, CacheOptions{}))(t)
	torchtest.DoOn(t, torchtest.NewStream(t, cgotorch.CPU), func(x *cgotorch.Exec) {
		c.Use(x, "a")
		c.Close()
	})
	c.Close()
	if err := s.Close(); err != nil {
		t.Errorf("the Do has ended and Cache.Close has returned twice: %v", err)
		time.Sleep(100 * time.Millisecond)
		s.Close()
	}
}

func TestCache_Check(t *testing.T) {
	torchtest.CheckLeaks(t)
	a, b := linearSpec("good.0"), linearSpec("bad.0")
	b.Tensors = b.Tensors[:1]
	s, _ := NewStore([]UnitSpec{a, b})
	defer s.Close()
	c := newCache(t, s, cgotorch.CPU, CacheOptions{})
	if err := c.Check(); !strings.Contains(err.Error(), "bad.0") {
		t.Errorf("Check names no unit: %v", err)
	}
	c.Close()
}
