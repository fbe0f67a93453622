package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

func within(t *testing.T, d time.Duration, what string, fn func()) bool {
	t.Helper()
	done := make(chan bool)
	go func() { defer close(done); fn() }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		t.Errorf("%s hangs", what)
		return false
	}
}

// Sums of tensor sizes overflow.
func TestMisuse_NewStore_Overflow(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("NewStore panics: %v", p)
		}
	}()
	var ts []TensorSpec
	for i := range 4 {
		ts = append(ts, TensorSpec{Name: fmt.Sprint(i), DType: cgotorch.Uint8, Shape: []int64{1 << 62}})
	}
	ts = append(ts, TensorSpec{Name: "small", DType: cgotorch.Uint8, Shape: []int64{64}})
	s, err := NewStore([]UnitSpec{{Name: "a", Tensors: ts}})
	if err == nil {
		s.Close()
		t.Error("a store of 16 EiB was made")
	} else {
		t.Log(err)
	}
}

// A tensor that Match leaves out gets the memory of another one.
func TestMisuse_NumBatchesTracked(t *testing.T) {
	f := func(n string) TensorSpec {
		return TensorSpec{Name: n, DType: cgotorch.Float32, Shape: []int64{4}}
	}
	s, err := NewStore([]UnitSpec{{Name: "bn", Tensors: []TensorSpec{f("weight"), f("bias"), f("running_mean"), f("running_var")}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := NewCache(s, cgotorch.CPU, func(x *cgotorch.Exec, _ string) (*nn.BatchNorm2d, error) {
		return nn.NewBatchNorm2d(x, 4, nn.BatchNorm2dOptions{}), nil
	}, CacheOptions{})
	if c != nil {
		c.Close()
	}
	if !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "num_batches_tracked") {
		t.Errorf("got %v, want an error that names num_batches_tracked", err)
	}
}

// Resident: one bad kind makes all unusable.
func TestMisuse_Resident_BadUnit(t *testing.T) {
	good, short := linearSpec("good"), linearSpec("short")
	short.Tensors = short.Tensors[:1]
	s, err := NewStore([]UnitSpec{good, short})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := NewCache(s, cgotorch.CPU, newLinear, CacheOptions{Policy: Resident})
	if err != nil {
		t.Fatalf("NewCache fails for the one bad unit: %v", err)
	}
	c.Close()
}

// Every pinned slot is as large as the largest unit.
func TestMisuse_Resident_Memory(t *testing.T) {
	specs := []UnitSpec{{Name: "embedding", Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{1 << 20}}}}}
	for i := range 50 {
		specs = append(specs, linearSpec(unitName(i)))
	}
	s, err := NewStore(specs)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := NewCache(s, cgotorch.CPU, func(x *cgotorch.Exec, name string) (any, error) {
		if name == "embedding" {
			return &struct{ Weight *cgotorch.Tensor }{x.Keep(x.Empty(cgotorch.Float32, 1<<20))}, nil
		}
		return newLinear(x, name)
	}, CacheOptions{Policy: Resident})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var device int64
	for _, slot := range c.slots {
		device += slot.memory.Numel()
	}
	if st := s.Stats(); device > 2*st.Bytes {
		t.Errorf("resident units of %d bytes take %d on the device", st.Bytes, device)
	}
}

// A panic in build, or a nil M.
func TestMisuse_Build_Panics(t *testing.T) {
	for name, build := range map[string]func(x *cgotorch.Exec, _ string) (*nn.Linear, error){
		"panic": func(x *cgotorch.Exec, _ string) (*nn.Linear, error) { panic("of the program") },
		"closed": func(x *cgotorch.Exec, n string) (*nn.Linear, error) {
			l, _ := newLinear(x, n)
			l.Weight.Close()
			return l, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewStore([]UnitSpec{linearSpec("a")})
			if err != nil {
				t.Fatal(err)
			}
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
		t.Log(err)
		if c != nil {
			t.Log(c.Check())
			c.Close()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Build returns one module again and again.
func TestMisuse_Build_SameModule(t *testing.T) {
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

// The state of a parameter with gaps would reach into the next one's.
func TestNewOffload_Strided(t *testing.T) {
	s := newStream(t, cgotorch.CPU)
	var p *cgotorch.Tensor
	do(t, s, func(x *cgotorch.Exec) { p = x.Keep(x.Narrow(x.Zeros(cgotorch.Float32, 4, 8), 1, 0, 4)) })
	defer p.Close()
	opt, err := optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*cgotorch.Tensor{p}})
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Close()
	if _, err := NewOffload(opt, cgotorch.CPU, OffloadOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "parameter 0 has gaps") {
		t.Errorf("got %v", err)
	}
}

// A unit that is prefetched while it is in use stays for its next use.
func TestMisuse_Prefetch_WhileInUse(t *testing.T) {
	for _, o := range []CacheOptions{{Policy: OnDemand, Slots: 1}, {Policy: LRU, Slots: 1}} {
		c := newCache(t, scalesStore(t, 3), cgotorch.CPU, o)
		do(t, newStream(t, cgotorch.CPU), func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			prefetch(t, c, 0) // for the next step
			u.Release(x)
			prefetch(t, c, 1) // gives 0 up, in LRU
			before := c.Stats()
			apply(t, x, c, 0)
			if c.Stats().Misses != before.Misses {
				t.Errorf("%v: what was prefetched while in use was given up before its use", o.Policy)
			}
		})
	}
}

func TestMisuse_Experts_FailedRun(t *testing.T) {
	for _, bad := range []bool{false, true} {
		c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
		e, err := NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, RoutesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := newStream(t, cgotorch.CPU)
		err = s.Do(func(x *cgotorch.Exec) error {
			ids := []int64{0, 1, 2}
			if bad {
				ids = []int64{0, 1, 7}
			}
			e.Route(x, 0, cgotorch.FromSlice(x, ids))
			rows := int64(width)
			if !bad {
				rows = 5
			}
			e.Run(x, 0, x.Ones(cgotorch.Float32, 3, rows)) // fails
			return nil
		})
		t.Log(err)
		c.mu.Lock()
		wanted := 0
		for _, s := range c.slots {
			if s.wanted {
				wanted++
			}
		}
		queued := len(c.queue)
		c.mu.Unlock()
		if wanted+queued > 0 {
			t.Errorf("bad=%v: after the Do has failed %d slots are kept for it and %d prefetches wait", bad, wanted, queued)
		}
		if bad {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			for i := 3; i < 12; i++ {
				if err := c.Prefetch(ctx, unitName(i)); err != nil {
					t.Errorf("no later prefetch gets a slot: %d: %v", i, err)
				}
			}
			cancel()
		}
		e.Close()
	}
}

// Close with a unit in use: nobody can wait for its end.
func TestMisuse_Close_InUse_ThenStore(t *testing.T) {
	specs := []UnitSpec{linearSpec("a")}
	s, _ := NewStore(specs)
	c, err := NewCache(s, cgotorch.CPU, newLinear, CacheOptions{})
	if err != nil {
		t.Fatal(err)
	}
	do(t, newStream(t, cgotorch.CPU), func(x *cgotorch.Exec) {
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

// Two Dos use one side stream: the second does not wait since the first is about to.
func TestMisuse_SharedSideStream(t *testing.T) {
	checkStreams(t)
	c := newCache(t, scalesStore(t, 2), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b, side := newStream(t, cgotorch.CPU), newStream(t, cgotorch.CPU), newStream(t, cgotorch.CPU)
	for i := range 3000 {
		prefetch(t, c, i%2)
		var all sync.WaitGroup
		for _, s := range []*cgotorch.Stream{a, b} {
			all.Add(1)
			go func() {
				defer all.Done()
				s.Do(func(x *cgotorch.Exec) error {
					y := x.On(side)
					y.NoGrad()
					u := c.Use(y, unitName(i%2))
					y.Sum(u.Module.Weight)
					u.Release(y)
					x.Wait(y.Record())
					return nil
				})
			}()
		}
		all.Wait()
		c.Drop(unitName(0), unitName(1))
	}
}

// A Send that fails gives its piece of memory back.
func TestMisuse_Send_FailedKeepsPiece(t *testing.T) {
	r, err := NewRoutes(cgotorch.CPU, RoutesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newStream(t, cgotorch.CPU)
	for i := range 200 {
		err := s.Do(func(x *cgotorch.Exec) error {
			ids := x.Zeros(cgotorch.Int64, 4, 2)
			r.Send(x, 0, x.Select(ids, 1, 0))
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if len(r.r.slabs) > 1 {
		t.Errorf("%d slabs page-locked after 200 failures", len(r.r.slabs))
	}
}

// compareNames is an order.
func TestMisuse_CompareNames_Cycle(t *testing.T) {
	a, b, c := "10", "1"+strings.Repeat("0", 21), "5"
	if compareNames(a, b) < 0 && compareNames(b, c) < 0 && compareNames(c, a) < 0 {
		t.Errorf("%s < %s < %s < %s", a, b, c, a)
	}
}

func TestMisuse_Store_BytesAfterClose(t *testing.T) {
	s, _ := NewStore([]UnitSpec{linearSpec("a")})
	s.Close()
	if b, err := s.Bytes("a", "weight"); err == nil {
		t.Errorf("%v and no error", b)
	}
}

func TestMisuse_Release_OtherDo(t *testing.T) {
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b := newStream(t, cgotorch.CPU), newStream(t, cgotorch.CPU)
	var u *Use[*nn.Linear]
	has, released, end := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		a.Do(func(x *cgotorch.Exec) error { u = c.Use(x, unitName(0)); has <- true; <-released; return nil })
		close(end)
	}()
	<-has
	err := b.Do(func(x *cgotorch.Exec) error { u.Release(x); return nil })
	released <- true
	<-end
	if err == nil {
		t.Errorf("Release in another Do is accepted; users now %v", c.slots[0].users)
	}
}

func TestMisuse_UseFailed_Counts(t *testing.T) {
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	newStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		c.Use(x, unitName(0))
		c.Use(x, unitName(1))
		return nil
	})
	if s := c.Stats(); s.Uses() != 1 {
		t.Errorf("%d uses, of which one was refused and began no copy", s.Uses())
	}
}

// The write of a changed unit is not ordered with readers of other streams that have released it.
func TestMisuse_ReleaseChanged_Readers(t *testing.T) {
	checkStreams(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b := newStream(t, cgotorch.CPU), newStream(t, cgotorch.CPU)
	do(t, a, func(x *cgotorch.Exec) {
		u := c.Use(x, unitName(0))
		x.NoGrad().Sum(u.Module.Weight)
		u.Release(x)
	})
	do(t, b, func(x *cgotorch.Exec) {
		u := c.UseToChange(x, unitName(0))
		x.NoGrad().FillInPlace(u.Module.Weight, 3)
		u.ReleaseChanged(x)
	})
}

// Two Cache of one store.
func TestMisuse_ReleaseChanged_TwoCaches(t *testing.T) {
	checkStreams(t)
	st := scalesStore(t, 3)
	c := newCache(t, st, cgotorch.CPU, CacheOptions{Slots: 1})
	n := newCache(t, st, cgotorch.CPU, CacheOptions{Slots: 1})
	prefetch(t, n, 1)
	err := newStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error { c.UseToChange(x, unitName(0)); return nil })
	if !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
}

func TestMisuse_Predict_Grows(t *testing.T) {
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 2})
	e, err := NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, RoutesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := newStream(t, cgotorch.CPU)
	for range 300 {
		do(t, s, func(x *cgotorch.Exec) { e.Predict(x, 0, cgotorch.FromSlice(x, []int64{1})) })
	}
	time.Sleep(50 * time.Millisecond)
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.guessed[place{s, 0}]); n > 3 {
		t.Errorf("%d guesses are remembered at a layer of 3 experts", n)
	}
}

func TestMisuse_LateBackward(t *testing.T) {
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	for what, evict := range map[string]func(x *cgotorch.Exec){
		"a Use":      func(x *cgotorch.Exec) { c.Use(x, unitName(1)).Release(x) },
		"a Prefetch": func(*cgotorch.Exec) { prefetch(t, c, 1) }, // whose copy is enqueued later, and counts as a write all the same
	} {
		for range 100 {
			err := newStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
				in := x.Ones(cgotorch.Float32, 1, width)
				in.SetRequiresGrad(true)
				u := c.Use(x, unitName(0))
				out := x.Sum(u.Module.Forward(x, in))
				u.Release(x)
				evict(x)
				x.Backward(out)
				return nil
			})
			if err == nil {
				t.Fatalf("backward read the unit that %s has brought", what)
			}
		}
	}
}

func TestMisuse_Pieces_FailedCapture(t *testing.T) {
	s := newStream(t, cgotorch.CPU)
	path := saveSwitch(t, s)
	var m *text.Switch
	var c *text.Cache
	var p *text.Pieces
	do(t, s, func(x *cgotorch.Exec) {
		m, c = decoding(t, x, path, true)
		p = m.NewPieces(x, c, text.PiecesOptions{})
	})
	defer p.Close()
	// the router of the second sparse layer is broken for the time of the capture
	var w **cgotorch.Tensor
	seen := 0
	for _, b := range m.Decoder.Block {
		if b.FF.IsSparse() {
			if seen == 1 {
				w = &b.FF.Sparse.Router.Classifier.Weight
			}
			seen++
		}
	}
	good := *w
	do(t, s, func(x *cgotorch.Exec) { *w = x.Keep(x.Zeros(cgotorch.Float32, 3, 3)) })
	bad := *w
	err := p.Capture(s)
	*w = good
	bad.Close()
	t.Log(err)
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("Step after a Capture that failed panics: %.120v", r)
		}
	}()
	do(t, s, func(x *cgotorch.Exec) { begin(x, m, c); p.Step(x, m.ResidentExperts(x)) })
}

func save(t *testing.T, name string, tensors ...safetensors.Tensor) string {
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(f, tensors, nil); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return path
}

// Map page-locks and keeps files of which no tensor is used.
func TestMisuse_Map_UnusedShard(t *testing.T) {
	w := func(n string, k int) safetensors.Tensor {
		return safetensors.Tensor{Name: n, DType: "F32", Shape: []int64{int64(k)}, Data: make([]byte, 4*k)}
	}
	a := save(t, "a.safetensors", w("x.0.w", 4))
	b := save(t, "b.safetensors", w("head", 1<<20))
	s, err := OpenStore([]string{a, b}, StoreOptions{Units: regexp.MustCompile(`^x\.\d`), Map: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st := s.Stats(); st.Memory > 1<<20 {
		t.Errorf("%+v: a file without any unit is mapped, and will be page-locked", st)
	}
}

func TestMisuse_CheckText(t *testing.T) {
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

// A Use that could go on, since its unit is there now, counts as stuck until its goroutine has run.
func TestMisuse_FalseDeadlock(t *testing.T) {
	m := newCache(t, scalesStore(t, 5), cgotorch.CPU, CacheOptions{Slots: 2})
	a, c := newStream(t, cgotorch.CPU), newStream(t, cgotorch.CPU)
	failed := 0
	for range 200 {
		has, hasC := make(chan bool), make(chan bool)
		var errA, errC error
		var all sync.WaitGroup
		all.Add(2)
		go func() {
			defer all.Done()
			errA = a.Do(func(x *cgotorch.Exec) error {
				m.Use(x, unitName(0))
				close(has)
				<-hasC
				m.Use(x, unitName(3)) // waits, and can have it as soon as c has it
				return nil
			})
		}()
		go func() {
			defer all.Done()
			errC = c.Do(func(x *cgotorch.Exec) error {
				<-has
				u := m.Use(x, unitName(1))
				close(hasC)
				for waits := false; !waits; {
					m.mu.Lock()
					waits = m.waiting[a] != nil
					m.mu.Unlock()
				}
				u.Release(x)
				m.Use(x, unitName(3)) // the one that a waits for
				m.Use(x, unitName(4)) // there is a slot when a has ended
				return nil
			})
		}()
		all.Wait()
		if errA != nil || errC != nil {
			failed++
			if failed == 1 {
				t.Log(errors.Join(errA, errC))
			}
		}
	}
	if failed > 0 {
		t.Errorf("%d of 200 failed with ErrNoSlot, and no one was stuck", failed)
	}
}

// A Do whose Use is refused lets the guess stay; see also Experts_FailedRun.
func TestMisuse_GuessOfFailedDo(t *testing.T) {
	c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
	e, err := NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, RoutesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	newStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		e.Predict(x, 0, cgotorch.FromSlice(x, []int64{0, 1}))
		return errors.New("of the program")
	})
	time.Sleep(20 * time.Millisecond)
	if c.slots[0].wanted || c.slots[1].wanted {
		t.Error("guesses of a Do that has failed keep all slots")
	}
}

// Route reads the ids beside the stream; Layer.Forward in branches.
func TestMisuse_Experts_InBranches(t *testing.T) {
	checkStreams(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e, err := NewExperts(c, [][]string{{unitName(0), unitName(1)}, {unitName(2), unitName(3)}}, RoutesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := newStream(t, cgotorch.CPU)
	for range 20 {
		err := s.Do(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			in := x.Ones(cgotorch.Float32, 4, width)
			x.Parallel(
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return e.Layer(0).Forward(x, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return e.Layer(1).Forward(x, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor { // not released by itself
					return x.Sum(c.Use(x, unitName(0)).Module.Weight)
				},
			)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The same layer in two branches of one Do is one place.
func TestMisuse_Experts_SameLayerTwice(t *testing.T) {
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e, _ := NewExperts(c, [][]string{{unitName(0), unitName(1)}}, RoutesOptions{})
	defer e.Close()
	s := newStream(t, cgotorch.CPU)
	// Route without Run, then again in a later Do
	for range 3 {
		if err := s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, cgotorch.FromSlice(x, []int64{0})); return nil }); err != nil {
			t.Error(err)
		}
	}
	if len(e.open) > 0 {
		t.Error(e.open)
	}
}

// A Use that overtakes a queued prefetch shortens the queue, and wakes nobody.
func TestMisuse_Dequeue_LostWakeUp(t *testing.T) {
	c := newCache(t, scalesStore(t, 6), cgotorch.CPU, CacheOptions{Slots: 2, InFlight: 1})
	s := newStream(t, cgotorch.CPU)
	do(t, s, func(x *cgotorch.Exec) {
		c.Use(x, unitName(0))
		prefetch(t, c, 1) // has the other slot
		prefetch(t, c, 2) // is queued: InFlight is reached
		done := make(chan error, 1)
		go func() { done <- c.Prefetch(context.Background(), unitName(3)) }()
		time.Sleep(20 * time.Millisecond)
		c.Use(x, unitName(2)) // overtakes: nothing is in flight any more
		select {
		case <-done:
		case <-time.After(500 * time.Millisecond):
			again, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			t.Errorf("Prefetch still waits; one that is called now returns %v at once", c.Prefetch(again, unitName(4)))
		}
	})
}
