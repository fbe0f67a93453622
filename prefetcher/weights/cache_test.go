package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

const width = 16

func unitName(i int) string { return fmt.Sprintf("block.%d.mlp", i) }

func linearSpec(name string) UnitSpec {
	return UnitSpec{Name: name, Tensors: []TensorSpec{
		{Name: "weight", DType: cgotorch.Float32, Shape: []int64{width, width}},
		{Name: "bias", DType: cgotorch.Float32, Shape: []int64{width}},
	}}
}

// scalesStore has n linear layers; layer i multiplies by i+1 and adds i.
func scalesStore(t testing.TB, n int) *Store {
	t.Helper()
	var specs []UnitSpec
	for i := range n {
		specs = append(specs, linearSpec(unitName(i)))
	}
	s, err := NewStore(specs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		fillScale(t, s, i, float32(i+1), float32(i))
	}
	return s
}

func fillScale(t testing.TB, s *Store, i int, scale, offset float32) {
	weight, bias := floats(t, s, unitName(i), "weight"), floats(t, s, unitName(i), "bias")
	clear(weight)
	for k := range width {
		weight[k*width+k] = scale
		bias[k] = offset
	}
}

func newLinear(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
	return nn.NewLinear(x, width, width, nn.LinearOptions{}), nil
}

func newCache(t testing.TB, s *Store, d cgotorch.Device, o CacheOptions) *Cache[*nn.Linear] {
	t.Helper()
	c, err := NewCache(s, d, newLinear, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// apply runs unit i on ones and checks the result.
func apply(t testing.TB, x *cgotorch.Exec, c *Cache[*nn.Linear], i int) {
	t.Helper()
	u := c.Use(x, unitName(i))
	out := u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))
	u.Release(x)
	if got, want := x.Item(x.Mean(out)), float64(2*i+1); got != want {
		t.Errorf("unit %d gives %v, want %v", i, got, want)
	}
}

// mean runs unit i on ones behind a sleep.
func mean(x *cgotorch.Exec, c *Cache[*nn.Linear], i int) *cgotorch.HostRead {
	u := c.Use(x, unitName(i))
	defer u.Release(x)
	x.Sleep(10 * time.Millisecond)
	return x.ReadAsync(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))))
}

// checkMeans is the check of apply for what was read of units 0, 1, …
func checkMeans(t *testing.T, means []*cgotorch.HostRead) {
	t.Helper()
	for i, r := range means {
		got, err := r.Item()
		if want := float64(2*i + 1); err != nil || got != want {
			t.Errorf("unit %d gave %v, want %v (%v)", i, got, want, err)
		}
		r.Close()
	}
}

func do(t testing.TB, s *cgotorch.Stream, fn func(x *cgotorch.Exec)) {
	t.Helper()
	if err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil }); err != nil {
		t.Fatal(err)
	}
}

func prefetch(t testing.TB, c *Cache[*nn.Linear], units ...int) {
	t.Helper()
	for _, i := range units {
		if err := c.Prefetch(context.Background(), unitName(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// Every policy gives the same results, and counts what it is to count.
func TestCache_Policies(t *testing.T) {
	order := []int{0, 1, 2, 3, 0, 1, 2, 3, 3, 3, 0, 0}
	for _, test := range []struct {
		o                   CacheOptions
		hits, ahead, copies int
	}{
		{CacheOptions{Policy: Resident}, 8, 4, 4},
		{CacheOptions{Policy: OnDemand}, 0, 0, 12},
		{CacheOptions{Policy: LRU, Slots: 2}, 3, 0, 9},
		{CacheOptions{Policy: LRU, Slots: 4}, 8, 0, 4},
		{CacheOptions{Policy: LFU, Slots: 2}, 3, 0, 9},
		{CacheOptions{Policy: NextLayer}, 3, 8, 10},
		{CacheOptions{Policy: OnDemand, Pinned: []string{unitName(3), unitName(0)}}, 6, 2, 6},
	} {
		t.Run(fmt.Sprintf("%v/%d/%d pinned", test.o.Policy, test.o.Slots, len(test.o.Pinned)), func(t *testing.T) {
			onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				checkStreams(t)
				c := newCache(t, scalesStore(t, 4), d, test.o)
				do(t, newStream(t, d), func(x *cgotorch.Exec) {
					for _, i := range order {
						apply(t, x, c, i)
					}
				})
				s := c.Stats()
				if got := int(s.Bytes / c.o.SlotBytes); s.Hits != test.hits || s.Ahead != test.ahead || s.Uses() != len(order) || got != test.copies {
					t.Errorf("%+v and %d copies; want %d hits and %d ahead of %d, %d copies", s, got, test.hits, test.ahead, len(order), test.copies)
				}
			})
		})
	}
}

// What was prefetched is there, in whatever order it is used, and is not given up before.
func TestCache_Prefetch(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 3})
		prefetch(t, c, 2, 1, 0)
		prefetch(t, c, 4, 5) // wait for slots
		do(t, newStream(t, d), func(x *cgotorch.Exec) {
			for _, i := range []int{0, 2, 1, 5, 4} {
				apply(t, x, c, i)
			}
		})
		if s := c.Stats(); s.Ahead != 5 || s.Prefetched != 5 || s.Unused != 0 {
			t.Errorf("%+v; want 5 prefetched and used", s)
		}
	})
}

// A copy that cannot be enqueued is the error of the Use, and of that unit alone.
func TestCache_Prefetch_Fails(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 2})
		bad := c.units[unitName(1)].storeUnit
		whole := bad.whole
		bad.whole = whole[:8]
		prefetch(t, c, 1, 0)
		s := newStream(t, d)
		err := s.Do(func(x *cgotorch.Exec) error { c.Use(x, unitName(1)); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "copying unit "+unitName(1)+" to the device") {
			t.Errorf("got %v", err)
		}
		do(t, s, func(x *cgotorch.Exec) { apply(t, x, c, 0); apply(t, x, c, 2) })
		prefetch(t, c, 1, 0, 2) // the last one waits for the slot that the first one does not get
		c.Stats()
		c.mu.Lock()
		if len(c.queue) > 0 || c.units[unitName(2)].slot == nil {
			t.Error("a prefetch waits for a slot, and one is empty")
		}
		c.mu.Unlock()
		c.Drop(unitName(0), unitName(2))
		bad.whole = whole
		do(t, s, func(x *cgotorch.Exec) { apply(t, x, c, 1) })
		if st := c.Stats(); st.Prefetched != 3 || st.Ahead != 1 || st.Misses != 2 {
			t.Errorf("%+v; want 3 prefetched, 1 of them used, and 2 misses", st)
		}
	})
}

func TestNewCache_NilModule(t *testing.T) {
	build := func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, nil }
	if _, err := NewCache(scalesStore(t, 1), cgotorch.CPU, build, CacheOptions{}); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "build has returned nil") {
		t.Errorf("got %v", err)
	}
}

func TestCache_Drop(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 2})
		prefetch(t, c, 0, 1, 2)
		c.Drop(unitName(0), unitName(5), "no unit")
		do(t, newStream(t, d), func(x *cgotorch.Exec) {
			apply(t, x, c, 2)
			apply(t, x, c, 1)
		})
		if s := c.Stats(); s.Ahead != 2 || s.Prefetched != 3 || s.Unused != 1 {
			t.Errorf("%+v; want 2 of 3 prefetched used", s)
		}
	})
}

// With work pending that reads a slot, the slot is filled anew behind it, and the host waits for neither.
func TestCache_Reuse_InOrder(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		c := newCache(t, scalesStore(t, 8), d, CacheOptions{Slots: 2})
		var means []*cgotorch.HostRead
		stream := newStream(t, d)
		do(t, stream, func(x *cgotorch.Exec) {
			apply(t, x, c, 0) // what is slow the first time
			for range 8 {
				means = append(means, mean(x, c, 0))
			}
		})
		for _, r := range means {
			r.Item()
			r.Close()
		}
		means = nil
		began := time.Now()
		do(t, stream, func(x *cgotorch.Exec) {
			in := x.Ones(cgotorch.Float32, 1, width)
			for i := range 8 {
				u := c.Use(x, unitName(i))
				x.Sleep(50 * time.Millisecond)
				means = append(means, x.ReadAsync(x.Mean(u.Module.Forward(x, in))))
				u.Release(x)
				if i+1 < 8 {
					if err := c.Prefetch(context.Background(), unitName(i+1)); err != nil {
						t.Error(err)
					}
				}
			}
			if took := time.Since(began); d.IsCUDA() && took > 200*time.Millisecond {
				t.Errorf("enqueueing took %v, with 400 ms of work pending", took)
			}
		})
		checkMeans(t, means)
	})
}

// Several streams read one slot; all of them are waited for.
func TestCache_Reuse_SeveralStreams(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		a, b := newStream(t, d), newStream(t, d)
		var onA, onB []*cgotorch.HostRead
		for i := range 3 {
			do(t, a, func(x *cgotorch.Exec) { onA = append(onA, mean(x, c, i)) })
			do(t, b, func(x *cgotorch.Exec) { onB = append(onB, mean(x, c, i)) })
		}
		checkMeans(t, onA)
		checkMeans(t, onB)
		if s := c.Stats(); s.Hits != 3 || s.Misses != 3 {
			t.Errorf("%+v; want 3 hits and 3 misses", s)
		}
	})
}

// A unit that is released by the end of the Do alone; and one that is used twice at once.
func TestCache_EndOfDoReleases(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		s := newStream(t, d)
		failure := errors.New("of the program")
		var means []*cgotorch.HostRead
		for i := range 3 {
			err := s.Do(func(x *cgotorch.Exec) error {
				u := c.Use(x, unitName(i))
				v := c.Use(x, unitName(i))
				v.Release(x)
				v.Release(x)
				x.Sleep(10 * time.Millisecond)
				means = append(means, x.ReadAsync(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width)))))
				return failure
			})
			if !errors.Is(err, failure) {
				t.Error(err)
			}
		}
		checkMeans(t, means)
	})
}

// Where all slots are in use, a Use of another Do waits for one; where none can become free it fails.
func TestCache_Use_WaitsForSlot(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		a, b := newStream(t, d), newStream(t, d)
		has, done := make(chan bool), make(chan error)
		go func() {
			<-has
			done <- b.Do(func(x *cgotorch.Exec) error { apply(t, x, c, 1); return nil })
		}()
		do(t, a, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			has <- true
			time.Sleep(20 * time.Millisecond)
			u.Release(x)
		})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.HostWait <= 0 || s.HostWait > 10*time.Second {
			t.Errorf("HostWait is %v", s.HostWait)
		}
		err := a.Do(func(x *cgotorch.Exec) error {
			c.Use(x, unitName(0))
			c.Use(x, unitName(1))
			return nil
		})
		if !errors.Is(err, ErrNoSlot) || !strings.Contains(err.Error(), unitName(1)) {
			t.Errorf("got %v, want ErrNoSlot for %s", err, unitName(1))
		}
	})
}

// Two Dos that each have a slot and want the other's: one of them fails, and the other goes on.
func TestCache_Use_Deadlock(t *testing.T) {
	checkLeaks(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	var both, all sync.WaitGroup
	both.Add(2)
	errs := make([]error, 2)
	for i := range 2 {
		s := newStream(t, cgotorch.CPU)
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = s.Do(func(x *cgotorch.Exec) error {
				c.Use(x, unitName(i))
				both.Done()
				both.Wait()
				c.Use(x, unitName(2+i))
				return nil
			})
		}()
	}
	all.Wait()
	if failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(failed) != 1 || !errors.Is(failed[0], ErrNoSlot) {
		t.Errorf("got %v, want one ErrNoSlot", failed)
	}
}

func TestCache_Prefetch_BackPressure(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 1, InFlight: 2})
		s := newStream(t, d)
		do(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			prefetch(t, c, 1, 2)
			ctx := context.Background()
			if err := c.Prefetch(ctx, unitName(3)); !errors.Is(err, ErrNoSlot) {
				t.Errorf("more than InFlight: %v", err)
			}
			if err := c.Prefetch(ctx, unitName(1)); err != nil {
				t.Errorf("one that is asked for already waits: %v", err)
			}
			u.Release(x)
			for _, i := range []int{1, 2} {
				apply(t, x, c, i)
			}
			prefetch(t, c, 3)
			apply(t, x, c, 3)
		})
	})
}

// Copies that the device has not come to hold a Prefetch up, until ctx ends.
func TestCache_Prefetch_Cancelled(t *testing.T) {
	if len(devices()) < 2 {
		t.Skip("on the CPU no copy is pending")
	}
	checkLeaks(t)
	d := cgotorch.CUDA(0)
	c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 2, InFlight: 2})
	cause := errors.New("the caller has left")
	do(t, newStream(t, d), func(x *cgotorch.Exec) {
		for i := range 2 {
			u := c.Use(x, unitName(i))
			x.Sleep(100 * time.Millisecond)
			u.Release(x)
		}
		prefetch(t, c, 2, 3)
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { time.Sleep(10 * time.Millisecond); cancel(cause) }()
		if err := c.Prefetch(ctx, unitName(4)); !errors.Is(err, cause) || !strings.Contains(err.Error(), unitName(4)) {
			t.Errorf("got %v, want the cause", err)
		}
		for i := 2; i < 5; i++ {
			apply(t, x, c, i)
		}
	})
}

func TestCache_Close(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		store := scalesStore(t, 4)
		c := newCache(t, store, d, CacheOptions{Slots: 1})
		prefetch(t, c, 2)
		if err := store.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("closing the store in use: %v", err)
		}
		s := newStream(t, d)
		do(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(1))
			blocked := make(chan error)
			go func() {
				blocked <- newStream(t, d).Do(func(x *cgotorch.Exec) error { c.Use(x, unitName(2)); return nil })
			}()
			time.Sleep(10 * time.Millisecond)
			for range 2 {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := <-blocked; !errors.Is(err, ErrClosed) {
				t.Errorf("a Use that waits: %v", err)
			}
			if err := c.Prefetch(context.Background(), unitName(1)); !errors.Is(err, ErrClosed) {
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

// The copies read the store: Close waits for them.
func TestCache_Close_WaitsForCopies(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		store := scalesStore(t, 2)
		c := newCache(t, store, d, CacheOptions{})
		prefetch(t, c, 0, 1)
		if err := errors.Join(c.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestCache_Use_Refused(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 2), d, CacheOptions{})
		s := newStream(t, d)
		fails := func(want error, text string, fn func(x *cgotorch.Exec)) {
			t.Helper()
			if err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil }); !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("got %v, want %v with %q", err, want, text)
			}
		}
		fails(ErrUnknownUnit, `"block.7.mlp"`, func(x *cgotorch.Exec) { c.Use(x, unitName(7)) })
		fails(cgotorch.ErrInvalidArgument, "shares the memory of block.1.mlp", func(x *cgotorch.Exec) {
			x.Keep(x.Narrow(c.Use(x, unitName(1)).Module.Weight, 0, 0, 1))
		})
		fails(nil, "", func(x *cgotorch.Exec) { apply(t, x, c, 1) })
		if err := c.Prefetch(context.Background(), "nothing"); !errors.Is(err, ErrUnknownUnit) {
			t.Error(err)
		}
		if !d.IsCUDA() {
			return // where a graph is a function that is called
		}
		_, err := s.Capture(func(x *cgotorch.Exec) error { c.Use(x, unitName(1)); return nil }, cgotorch.CaptureOptions{})
		if !errors.Is(err, cgotorch.ErrNotCapturable) {
			t.Errorf("in a capture: %v", err)
		}
	})
}

// A unit that does not fit is refused by name; the others can be used.
func TestCache_BadUnit(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		good, short, misshapen, double, big := linearSpec("good"), linearSpec("short"), linearSpec("misshapen"), linearSpec("double"), linearSpec("big")
		short.Tensors = short.Tensors[:1]
		misshapen.Tensors[1].Shape = []int64{width + 1}
		double.Tensors[0].DType = cgotorch.Float64
		big.Tensors = append(big.Tensors, TensorSpec{Name: "more", DType: cgotorch.Float32, Shape: []int64{1000, 1000}})
		s, err := NewStore([]UnitSpec{short, good, misshapen, double, big})
		if err != nil {
			t.Fatal(err)
		}
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
		do(t, newStream(t, d), func(x *cgotorch.Exec) { c.Use(x, "good") })
	})
}

func TestNewCache_Refused(t *testing.T) {
	checkLeaks(t)
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
	fails(ErrInvalidOptions, "leave it 0", newLinear, CacheOptions{Policy: Resident, Slots: 1})
	fails(ErrUnknownUnit, "else", newLinear, CacheOptions{Pinned: []string{"else"}})
	fails(ErrInvalidOptions, "twice", newLinear, CacheOptions{Pinned: []string{unitName(1), unitName(1)}})
	fails(ErrInvalidOptions, "100", newLinear, CacheOptions{SlotBytes: 100, Pinned: []string{unitName(1)}})
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
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		s := scalesStore(t, 2)
		_, err := NewCache(s, d, newLinear, CacheOptions{Slots: 3, SlotBytes: 1 << 50})
		if !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), "3 slots of 1125899906842624 bytes") {
			t.Errorf("got %v", err)
		}
		c := newCache(t, s, d, CacheOptions{})
		do(t, newStream(t, d), func(x *cgotorch.Exec) { apply(t, x, c, 1) })
	})
}

// A store with more bytes than the device has left.
func TestCache_LargerThanDevice(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if !d.IsCUDA() {
			t.Skip("the CPU's memory is the host's")
		}
		s := newStream(t, d)
		var ballast []*cgotorch.Tensor
		defer func() {
			for _, b := range ballast {
				b.Close()
			}
			if err := d.ReleaseCachedMemory(); err != nil {
				t.Error(err)
			}
		}()
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
		if err := errors.Join(s.Synchronize(), d.ReleaseCachedMemory()); err != nil { // less than 2 GiB are left
			t.Fatal(err)
		}
		const count, side = 16, 8192 // 4 GiB
		var specs []UnitSpec
		for i := range count {
			specs = append(specs, UnitSpec{Name: unitName(i), Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{side, side}}}})
		}
		store, err := NewStore(specs)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for i := range count {
			weight := floats(t, store, unitName(i), "weight")
			weight[0], weight[len(weight)-1] = float32(i), 1
		}
		build := func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
			return &nn.Linear{Weight: x.Keep(x.Empty(cgotorch.Float32, side, side))}, nil
		}
		if _, err := NewCache(store, d, build, CacheOptions{Policy: Resident}); !errors.Is(err, cgotorch.ErrOutOfMemory) {
			t.Errorf("all at once: %v", err)
		}
		c, err := NewCache(store, d, build, CacheOptions{Policy: NextLayer})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var sums []*cgotorch.HostRead
		do(t, s, func(x *cgotorch.Exec) {
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

// A graph that is under way when the Cache are closed still reads what its slot held.
func TestCache_Close_BehindGraph(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		store := scalesStore(t, 2)
		s := newStream(t, d)
		var in, mean *cgotorch.Tensor
		do(t, s, func(x *cgotorch.Exec) {
			in, mean = x.Keep(x.Ones(cgotorch.Float32, 1, width)), x.Keep(x.Zeros(cgotorch.Float32))
			x.Mean(x.MatMul(in, x.Ones(cgotorch.Float32, width, width))) // what is slow the first time
		})
		defer in.Close()
		defer mean.Close()
		c := newCache(t, store, d, CacheOptions{Slots: 1})
		linear, err := c.At(0, unitName(0))
		if err != nil {
			t.Fatal(err)
		}
		graph, err := s.Capture(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			x.CopyInPlace(mean, x.Mean(linear.Forward(x, in)))
			return nil
		}, cgotorch.CaptureOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer graph.Close()
		do(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			x.Sleep(300 * time.Millisecond)
			x.Launch(graph)
			u.Release(x)
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for range 4 { // one of which is the stream that the Cache had, whose memory the slot was
			do(t, newStream(t, d), func(x *cgotorch.Exec) {
				for range 1000 {
					x.Full(cgotorch.Float32, 9.0, width, width+1)
				}
			})
		}
		do(t, s, func(x *cgotorch.Exec) {
			if got := x.Item(mean); got != 1 {
				t.Errorf("the graph read a unit that gives %v, want 1", got)
			}
		})
	})
}

// A graph that is captured with the unit of a slot reads what the slot holds at each launch.
func TestCache_At_InGraph(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 5), d, CacheOptions{Slots: 2})
		s := newStream(t, d)
		in, means := (*cgotorch.Tensor)(nil), make([]*cgotorch.Tensor, c.Slots())
		do(t, s, func(x *cgotorch.Exec) {
			in = x.Keep(x.Ones(cgotorch.Float32, 1, width))
			for k := range means {
				means[k] = x.Keep(x.Zeros(cgotorch.Float32))
			}
			apply(t, x, c, 0)
		})
		defer in.Close()
		graphs := make([]*cgotorch.Graph, c.Slots())
		for k := range graphs {
			defer means[k].Close()
			linear, err := c.At(k, unitName(0))
			if err != nil {
				t.Fatal(err)
			}
			graphs[k], err = s.Capture(func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				x.CopyInPlace(means[k], x.Mean(linear.Forward(x, in)))
				return nil
			}, cgotorch.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer graphs[k].Close()
		}
		do(t, s, func(x *cgotorch.Exec) {
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

// Many goroutines with few slots: every result is right, and nothing is left.
func TestCache_ManyGoroutines(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 7), d, CacheOptions{Slots: 2, InFlight: 3})
		var all sync.WaitGroup
		for g := range 8 {
			s := newStream(t, d)
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range 20 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
					_ = c.Prefetch(ctx, unitName((i*g)%7))
					cancel()
					do(t, s, func(x *cgotorch.Exec) { apply(t, x, c, (i*g)%7) })
					c.Drop(unitName(i % 7))
				}
			}()
		}
		all.Wait()
		if s := c.Stats(); s.Uses() != 160 {
			t.Errorf("%+v; want 160 uses", s)
		}
	})
}
