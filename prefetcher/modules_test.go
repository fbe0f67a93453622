package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

const width = 16

func moduleName(i int) string { return fmt.Sprintf("block.%d.mlp", i) }

func linearSpec(name string) ModuleSpec {
	return ModuleSpec{Name: name, Tensors: []TensorSpec{
		{Name: "weight", DType: cgotorch.Float32, Shape: []int64{width, width}},
		{Name: "bias", DType: cgotorch.Float32, Shape: []int64{width}},
	}}
}

// scalesStore has n linear layers; layer i multiplies by i+1 and adds i.
func scalesStore(t testing.TB, n int) *Store {
	t.Helper()
	var specs []ModuleSpec
	for i := range n {
		specs = append(specs, linearSpec(moduleName(i)))
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
	weight, bias := floats(t, s, moduleName(i), "weight"), floats(t, s, moduleName(i), "bias")
	clear(weight)
	for k := range width {
		weight[k*width+k] = scale
		bias[k] = offset
	}
}

func newLinear(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
	return nn.NewLinear(x, width, width, nn.LinearOptions{}), nil
}

func newModules(t testing.TB, s *Store, d cgotorch.Device, o ModulesOptions) *Modules[*nn.Linear] {
	t.Helper()
	m, err := NewModules(s, d, newLinear, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// apply runs module i on ones and checks the result.
func apply(t testing.TB, x *cgotorch.Exec, m *Modules[*nn.Linear], i int) {
	t.Helper()
	u := m.Use(x, moduleName(i))
	out := u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))
	u.Release(x)
	if got, want := x.Item(x.Mean(out)), float64(2*i+1); got != want {
		t.Errorf("module %d gives %v, want %v", i, got, want)
	}
}

// mean runs module i on ones behind a sleep.
func mean(x *cgotorch.Exec, m *Modules[*nn.Linear], i int) *cgotorch.HostRead {
	u := m.Use(x, moduleName(i))
	defer u.Release(x)
	torchtest.Sleep(x, 10*time.Millisecond)
	return x.ReadAsync(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))))
}

// checkMeans is the check of apply for what was read of modules 0, 1, …
func checkMeans(t *testing.T, means []*cgotorch.HostRead) {
	t.Helper()
	for i, r := range means {
		got, err := r.Item()
		if want := float64(2*i + 1); err != nil || got != want {
			t.Errorf("module %d gave %v, want %v (%v)", i, got, want, err)
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

func prefetch(t testing.TB, m *Modules[*nn.Linear], modules ...int) {
	t.Helper()
	for _, i := range modules {
		if err := m.Prefetch(context.Background(), moduleName(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// Every policy gives the same results, and counts what it is to count.
func TestModules_Policies(t *testing.T) {
	order := []int{0, 1, 2, 3, 0, 1, 2, 3, 3, 3, 0, 0}
	for _, test := range []struct {
		o                   ModulesOptions
		hits, ahead, copies int
	}{
		{ModulesOptions{Policy: Resident}, 8, 4, 4},
		{ModulesOptions{Policy: OnDemand}, 0, 0, 12},
		{ModulesOptions{Policy: LRU, Slots: 2}, 3, 0, 9},
		{ModulesOptions{Policy: LRU, Slots: 4}, 8, 0, 4},
		{ModulesOptions{Policy: LFU, Slots: 2}, 3, 0, 9},
		{ModulesOptions{Policy: NextLayer}, 3, 8, 10},
		{ModulesOptions{Policy: OnDemand, Pinned: []string{moduleName(3), moduleName(0)}}, 6, 2, 6},
	} {
		t.Run(fmt.Sprintf("%v/%d/%d pinned", test.o.Policy, test.o.Slots, len(test.o.Pinned)), func(t *testing.T) {
			onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				checkStreams(t)
				m := newModules(t, scalesStore(t, 4), d, test.o)
				do(t, newStream(t, d), func(x *cgotorch.Exec) {
					for _, i := range order {
						apply(t, x, m, i)
					}
				})
				s := m.Stats()
				if got := int(s.Bytes / m.o.SlotBytes); s.Hits != test.hits || s.Ahead != test.ahead || s.Uses() != len(order) || got != test.copies {
					t.Errorf("%+v and %d copies; want %d hits and %d ahead of %d, %d copies", s, got, test.hits, test.ahead, len(order), test.copies)
				}
			})
		})
	}
}

// What was prefetched is there, in whatever order it is used, and is not given up before.
func TestModules_Prefetch(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		m := newModules(t, scalesStore(t, 6), d, ModulesOptions{Slots: 3})
		prefetch(t, m, 2, 1, 0)
		prefetch(t, m, 4, 5) // wait for slots
		do(t, newStream(t, d), func(x *cgotorch.Exec) {
			for _, i := range []int{0, 2, 1, 5, 4} {
				apply(t, x, m, i)
			}
		})
		if s := m.Stats(); s.Ahead != 5 || s.Prefetched != 5 || s.Unused != 0 {
			t.Errorf("%+v; want 5 prefetched and used", s)
		}
	})
}

// A copy that cannot be enqueued is the error of the Use, and of that module alone.
func TestModules_Prefetch_Fails(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 3), d, ModulesOptions{Slots: 2})
		bad := m.modules[moduleName(1)].stored
		whole := bad.whole
		bad.whole = whole[:8]
		prefetch(t, m, 1, 0)
		s := newStream(t, d)
		err := s.Do(func(x *cgotorch.Exec) error { m.Use(x, moduleName(1)); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "copying module "+moduleName(1)+" to the device") {
			t.Errorf("got %v", err)
		}
		do(t, s, func(x *cgotorch.Exec) { apply(t, x, m, 0); apply(t, x, m, 2) })
		prefetch(t, m, 1, 0, 2) // the last one waits for the slot that the first one does not get
		m.Stats()
		m.mu.Lock()
		if len(m.queue) > 0 || m.modules[moduleName(2)].slot == nil {
			t.Error("a prefetch waits for a slot, and one is empty")
		}
		m.mu.Unlock()
		m.Drop(moduleName(0), moduleName(2))
		bad.whole = whole
		do(t, s, func(x *cgotorch.Exec) { apply(t, x, m, 1) })
		if st := m.Stats(); st.Prefetched != 3 || st.Ahead != 1 || st.Misses != 2 {
			t.Errorf("%+v; want 3 prefetched, 1 of them used, and 2 misses", st)
		}
	})
}

func TestNewModules_NilModule(t *testing.T) {
	build := func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, nil }
	if _, err := NewModules(scalesStore(t, 1), cgotorch.CPU, build, ModulesOptions{}); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "build has returned nil") {
		t.Errorf("got %v", err)
	}
}

func TestModules_Drop(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		m := newModules(t, scalesStore(t, 6), d, ModulesOptions{Slots: 2})
		prefetch(t, m, 0, 1, 2)
		m.Drop(moduleName(0), moduleName(5), "no module")
		do(t, newStream(t, d), func(x *cgotorch.Exec) {
			apply(t, x, m, 2)
			apply(t, x, m, 1)
		})
		if s := m.Stats(); s.Ahead != 2 || s.Prefetched != 3 || s.Unused != 1 {
			t.Errorf("%+v; want 2 of 3 prefetched used", s)
		}
	})
}

// With work pending that reads a slot, the slot is filled anew behind it, and the host waits for neither.
func TestModules_Reuse_InOrder(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		m := newModules(t, scalesStore(t, 8), d, ModulesOptions{Slots: 2})
		var means []*cgotorch.HostRead
		stream := newStream(t, d)
		do(t, stream, func(x *cgotorch.Exec) {
			apply(t, x, m, 0) // what is slow the first time
			for range 8 {
				means = append(means, mean(x, m, 0))
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
				u := m.Use(x, moduleName(i))
				torchtest.Sleep(x, 50*time.Millisecond)
				means = append(means, x.ReadAsync(x.Mean(u.Module.Forward(x, in))))
				u.Release(x)
				if i+1 < 8 {
					if err := m.Prefetch(context.Background(), moduleName(i+1)); err != nil {
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
func TestModules_Reuse_SeveralStreams(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		m := newModules(t, scalesStore(t, 3), d, ModulesOptions{Slots: 1})
		a, b := newStream(t, d), newStream(t, d)
		var onA, onB []*cgotorch.HostRead
		for i := range 3 {
			do(t, a, func(x *cgotorch.Exec) { onA = append(onA, mean(x, m, i)) })
			do(t, b, func(x *cgotorch.Exec) { onB = append(onB, mean(x, m, i)) })
		}
		checkMeans(t, onA)
		checkMeans(t, onB)
		if s := m.Stats(); s.Hits != 3 || s.Misses != 3 {
			t.Errorf("%+v; want 3 hits and 3 misses", s)
		}
	})
}

// A module that is released by the end of the Do alone; and one that is used twice at once.
func TestModules_EndOfDoReleases(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		m := newModules(t, scalesStore(t, 3), d, ModulesOptions{Slots: 1})
		s := newStream(t, d)
		failure := errors.New("of the program")
		var means []*cgotorch.HostRead
		for i := range 3 {
			err := s.Do(func(x *cgotorch.Exec) error {
				u := m.Use(x, moduleName(i))
				v := m.Use(x, moduleName(i))
				v.Release(x)
				v.Release(x)
				torchtest.Sleep(x, 10*time.Millisecond)
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
func TestModules_Use_WaitsForSlot(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 3), d, ModulesOptions{Slots: 1})
		a, b := newStream(t, d), newStream(t, d)
		has, done := make(chan bool), make(chan error)
		go func() {
			<-has
			done <- b.Do(func(x *cgotorch.Exec) error { apply(t, x, m, 1); return nil })
		}()
		do(t, a, func(x *cgotorch.Exec) {
			u := m.Use(x, moduleName(0))
			has <- true
			time.Sleep(20 * time.Millisecond)
			u.Release(x)
		})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s := m.Stats(); s.HostWait <= 0 || s.HostWait > 10*time.Second {
			t.Errorf("HostWait is %v", s.HostWait)
		}
		err := a.Do(func(x *cgotorch.Exec) error {
			m.Use(x, moduleName(0))
			m.Use(x, moduleName(1))
			return nil
		})
		if !errors.Is(err, ErrNoSlot) || !strings.Contains(err.Error(), moduleName(1)) {
			t.Errorf("got %v, want ErrNoSlot for %s", err, moduleName(1))
		}
	})
}

// Two Dos that each have a slot and want the other's: one of them fails, and the other goes on.
func TestModules_Use_Deadlock(t *testing.T) {
	checkLeaks(t)
	m := newModules(t, scalesStore(t, 4), cgotorch.CPU, ModulesOptions{Slots: 2})
	var both, all sync.WaitGroup
	both.Add(2)
	errs := make([]error, 2)
	for i := range 2 {
		s := newStream(t, cgotorch.CPU)
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = s.Do(func(x *cgotorch.Exec) error {
				m.Use(x, moduleName(i))
				both.Done()
				both.Wait()
				m.Use(x, moduleName(2+i))
				return nil
			})
		}()
	}
	all.Wait()
	if failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(failed) != 1 || !errors.Is(failed[0], ErrNoSlot) {
		t.Errorf("got %v, want one ErrNoSlot", failed)
	}
}

func TestModules_Prefetch_BackPressure(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 6), d, ModulesOptions{Slots: 1, InFlight: 2})
		s := newStream(t, d)
		do(t, s, func(x *cgotorch.Exec) {
			u := m.Use(x, moduleName(0))
			prefetch(t, m, 1, 2)
			ctx := context.Background()
			if err := m.Prefetch(ctx, moduleName(3)); !errors.Is(err, ErrNoSlot) {
				t.Errorf("more than InFlight: %v", err)
			}
			if err := m.Prefetch(ctx, moduleName(1)); err != nil {
				t.Errorf("one that is asked for already waits: %v", err)
			}
			u.Release(x)
			for _, i := range []int{1, 2} {
				apply(t, x, m, i)
			}
			prefetch(t, m, 3)
			apply(t, x, m, 3)
		})
	})
}

// Copies that the device has not come to hold a Prefetch up, until ctx ends.
func TestModules_Prefetch_Cancelled(t *testing.T) {
	if len(devices()) < 2 {
		t.Skip("on the CPU no copy is pending")
	}
	checkLeaks(t)
	d := cgotorch.CUDA(0)
	m := newModules(t, scalesStore(t, 6), d, ModulesOptions{Slots: 2, InFlight: 2})
	cause := errors.New("the caller has left")
	do(t, newStream(t, d), func(x *cgotorch.Exec) {
		for i := range 2 {
			u := m.Use(x, moduleName(i))
			torchtest.Sleep(x, 100*time.Millisecond)
			u.Release(x)
		}
		prefetch(t, m, 2, 3)
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { time.Sleep(10 * time.Millisecond); cancel(cause) }()
		if err := m.Prefetch(ctx, moduleName(4)); !errors.Is(err, cause) || !strings.Contains(err.Error(), moduleName(4)) {
			t.Errorf("got %v, want the cause", err)
		}
		for i := 2; i < 5; i++ {
			apply(t, x, m, i)
		}
	})
}

func TestModules_Close(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		store := scalesStore(t, 4)
		m := newModules(t, store, d, ModulesOptions{Slots: 1})
		prefetch(t, m, 2)
		if err := store.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("closing the store in use: %v", err)
		}
		s := newStream(t, d)
		do(t, s, func(x *cgotorch.Exec) {
			u := m.Use(x, moduleName(1))
			blocked := make(chan error)
			go func() {
				blocked <- newStream(t, d).Do(func(x *cgotorch.Exec) error { m.Use(x, moduleName(2)); return nil })
			}()
			time.Sleep(10 * time.Millisecond)
			for range 2 {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := <-blocked; !errors.Is(err, ErrClosed) {
				t.Errorf("a Use that waits: %v", err)
			}
			if err := m.Prefetch(context.Background(), moduleName(1)); !errors.Is(err, ErrClosed) {
				t.Errorf("Prefetch: %v", err)
			}
			if got := x.Item(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width)))); got != 3 {
				t.Errorf("the module in use gives %v", got)
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
func TestModules_Close_WaitsForCopies(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		store := scalesStore(t, 2)
		m := newModules(t, store, d, ModulesOptions{})
		prefetch(t, m, 0, 1)
		if err := errors.Join(m.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestModules_Use_Refused(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 2), d, ModulesOptions{})
		s := newStream(t, d)
		fails := func(want error, text string, fn func(x *cgotorch.Exec)) {
			t.Helper()
			if err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil }); !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("got %v, want %v with %q", err, want, text)
			}
		}
		fails(ErrUnknownModule, `"block.7.mlp"`, func(x *cgotorch.Exec) { m.Use(x, moduleName(7)) })
		fails(cgotorch.ErrInvalidArgument, "shares the memory of block.1.mlp", func(x *cgotorch.Exec) {
			x.Keep(x.Narrow(m.Use(x, moduleName(1)).Module.Weight, 0, 0, 1))
		})
		fails(nil, "", func(x *cgotorch.Exec) { apply(t, x, m, 1) })
		if err := m.Prefetch(context.Background(), "nothing"); !errors.Is(err, ErrUnknownModule) {
			t.Error(err)
		}
		if !d.IsCUDA() {
			return // where a graph is a function that is called
		}
		_, err := s.Capture(func(x *cgotorch.Exec) error { m.Use(x, moduleName(1)); return nil }, cgotorch.CaptureOptions{})
		if !errors.Is(err, cgotorch.ErrNotCapturable) {
			t.Errorf("in a capture: %v", err)
		}
	})
}

// A module that does not fit is refused by name; the others can be used.
func TestModules_BadModule(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		good, short, misshapen, double, big := linearSpec("good"), linearSpec("short"), linearSpec("misshapen"), linearSpec("double"), linearSpec("big")
		short.Tensors = short.Tensors[:1]
		misshapen.Tensors[1].Shape = []int64{width + 1}
		double.Tensors[0].DType = cgotorch.Float64
		big.Tensors = append(big.Tensors, TensorSpec{Name: "more", DType: cgotorch.Float32, Shape: []int64{1000, 1000}})
		s, err := NewStore([]ModuleSpec{short, good, misshapen, double, big})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		m := newModules(t, s, d, ModulesOptions{SlotBytes: 1 << 14})
		mismatch := (*nn.LoadError)(nil)
		for name, want := range map[string]string{"short": "bias", "misshapen": "bias", "double": "float64", "big": "16384"} {
			err := m.Prefetch(context.Background(), name)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "module "+name) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
			if (name == "short" || name == "misshapen") != errors.As(err, &mismatch) {
				t.Errorf("%s: %v", name, err)
			}
			if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: %v, want %q in it", err, want)
			}
		}
		do(t, newStream(t, d), func(x *cgotorch.Exec) { m.Use(x, "good") })
	})
}

func TestNewModules_Refused(t *testing.T) {
	checkLeaks(t)
	s := scalesStore(t, 2)
	broken := errors.New("broken")
	fails := func(want error, text string, build func(x *cgotorch.Exec, name string) (*nn.Linear, error), o ModulesOptions) {
		t.Helper()
		m, err := NewModules(s, cgotorch.CPU, build, o)
		if err == nil {
			err = errors.Join(m.Check(), m.Close())
		}
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("got %v, want %v with %q", err, want, text)
		}
	}
	fails(ErrInvalidOptions, "Slots", newLinear, ModulesOptions{Slots: -1})
	fails(ErrInvalidOptions, "Policy", newLinear, ModulesOptions{Policy: 9})
	fails(ErrInvalidOptions, "InFlight", newLinear, ModulesOptions{InFlight: -1})
	fails(ErrInvalidOptions, "SlotBytes", newLinear, ModulesOptions{SlotBytes: -1})
	fails(ErrInvalidOptions, "leave it 0", newLinear, ModulesOptions{Policy: Resident, Slots: 1})
	fails(ErrUnknownModule, "else", newLinear, ModulesOptions{Pinned: []string{"else"}})
	fails(ErrInvalidOptions, "twice", newLinear, ModulesOptions{Pinned: []string{moduleName(1), moduleName(1)}})
	fails(ErrInvalidOptions, "100", newLinear, ModulesOptions{SlotBytes: 100, Pinned: []string{moduleName(1)}})
	fails(broken, "broken", func(*cgotorch.Exec, string) (*nn.Linear, error) { return nil, broken }, ModulesOptions{})
	fails(nil, "", newLinear, ModulesOptions{})
	fails(cgotorch.ErrInvalidArgument, "nn.NewLinear", func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
		return nn.NewLinear(x, -1, 1, nn.LinearOptions{}), nil
	}, ModulesOptions{})
	if d := cgotorch.CUDA(7); true {
		if _, err := NewModules(s, d, newLinear, ModulesOptions{}); !errors.Is(err, cgotorch.ErrNoDevice) {
			t.Errorf("on %v: %v", d, err)
		}
	}
}

func TestNewModules_OutOfMemory(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		s := scalesStore(t, 2)
		_, err := NewModules(s, d, newLinear, ModulesOptions{Slots: 3, SlotBytes: 1 << 50})
		if !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), "3 slots of 1125899906842624 bytes") {
			t.Errorf("got %v", err)
		}
		m := newModules(t, s, d, ModulesOptions{})
		do(t, newStream(t, d), func(x *cgotorch.Exec) { apply(t, x, m, 1) })
	})
}

// A store with more bytes than the device has left.
func TestModules_LargerThanDevice(t *testing.T) {
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
		var specs []ModuleSpec
		for i := range count {
			specs = append(specs, ModuleSpec{Name: moduleName(i), Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{side, side}}}})
		}
		store, err := NewStore(specs)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for i := range count {
			weight := floats(t, store, moduleName(i), "weight")
			weight[0], weight[len(weight)-1] = float32(i), 1
		}
		build := func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
			return &nn.Linear{Weight: x.Keep(x.Empty(cgotorch.Float32, side, side))}, nil
		}
		if _, err := NewModules(store, d, build, ModulesOptions{Policy: Resident}); !errors.Is(err, cgotorch.ErrOutOfMemory) {
			t.Errorf("all at once: %v", err)
		}
		m, err := NewModules(store, d, build, ModulesOptions{Policy: NextLayer})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		var sums []*cgotorch.HostRead
		do(t, s, func(x *cgotorch.Exec) {
			for i := range 2 * count {
				u := m.Use(x, moduleName(i%count))
				sums = append(sums, x.ReadAsync(x.Sum(u.Module.Weight)))
				u.Release(x)
			}
		})
		for i, r := range sums {
			if got, err := r.Item(); err != nil || got != float64(i%count+1) {
				t.Errorf("module %d gives %v (%v)", i%count, got, err)
			}
			r.Close()
		}
	})
}

// A graph that is under way when the Modules are closed still reads what its slot held.
func TestModules_Close_BehindGraph(t *testing.T) {
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
		m := newModules(t, store, d, ModulesOptions{Slots: 1})
		linear, err := m.At(0, moduleName(0))
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
			u := m.Use(x, moduleName(0))
			torchtest.Sleep(x, 300*time.Millisecond)
			x.Launch(graph)
			u.Release(x)
		})
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		for range 4 { // one of which is the stream that the Modules had, whose memory the slot was
			do(t, newStream(t, d), func(x *cgotorch.Exec) {
				for range 1000 {
					x.Full(cgotorch.Float32, 9.0, width, width+1)
				}
			})
		}
		do(t, s, func(x *cgotorch.Exec) {
			if got := x.Item(mean); got != 1 {
				t.Errorf("the graph read a module that gives %v, want 1", got)
			}
		})
	})
}

// A graph that is captured with the module of a slot reads what the slot holds at each launch.
func TestModules_At_InGraph(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 5), d, ModulesOptions{Slots: 2})
		s := newStream(t, d)
		in, means := (*cgotorch.Tensor)(nil), make([]*cgotorch.Tensor, m.Slots())
		do(t, s, func(x *cgotorch.Exec) {
			in = x.Keep(x.Ones(cgotorch.Float32, 1, width))
			for k := range means {
				means[k] = x.Keep(x.Zeros(cgotorch.Float32))
			}
			apply(t, x, m, 0)
		})
		defer in.Close()
		graphs := make([]*cgotorch.Graph, m.Slots())
		for k := range graphs {
			defer means[k].Close()
			linear, err := m.At(k, moduleName(0))
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
				u := m.Use(x, moduleName(i))
				x.Launch(graphs[u.Slot])
				u.Release(x)
				if got, want := x.Item(means[u.Slot]), float64(2*i+1); got != want {
					t.Errorf("module %d gives %v, want %v", i, got, want)
				}
			}
		})
		if _, err := m.At(2, moduleName(0)); !errors.Is(err, ErrNoSlot) {
			t.Errorf("a slot that is not there: %v", err)
		}
	})
}

// Many goroutines with few slots: every result is right, and nothing is left.
func TestModules_ManyGoroutines(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		m := newModules(t, scalesStore(t, 7), d, ModulesOptions{Slots: 2, InFlight: 3})
		var all sync.WaitGroup
		for g := range 8 {
			s := newStream(t, d)
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range 20 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
					_ = m.Prefetch(ctx, moduleName((i*g)%7))
					cancel()
					do(t, s, func(x *cgotorch.Exec) { apply(t, x, m, (i*g)%7) })
					m.Drop(moduleName(i % 7))
				}
			}()
		}
		all.Wait()
		if s := m.Stats(); s.Uses() != 160 {
			t.Errorf("%+v; want 160 uses", s)
		}
	})
}
