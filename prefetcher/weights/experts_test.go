package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// smallSwitch has three sparse layers of eight experts in the encoder and three in the decoder.
const smallSwitch = `{"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4, "num_experts": 8,
	"num_layers": 6, "num_decoder_layers": 6, "num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3}`

// saveSwitch writes a model of smallSwitch. The weights are chosen so that tokens choose many
// experts.
func saveSwitch(t testing.TB, s *cgotorch.Stream) (path string) {
	t.Helper()
	folder := t.TempDir()
	path = filepath.Join(folder, "model.safetensors")
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(smallSwitch), 0o644))
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		m := must.Get(text.LoadSwitch(x, text.SwitchOptions{RandomWeights: 1}, folder))(t)
		defer nn.Close(m)
		var tensors []safetensors.Tensor
		for i, n := range nn.State(m) {
			if slices.ContainsFunc(tensors, func(t safetensors.Tensor) bool { return t.Name == n.Name }) {
				continue
			}
			y := x.NoGrad()
			if n.Tensor.Dim() == 2 { // computed and not random, so that it is the same on every device
				waves := y.Sin(y.AddScalar(y.MulScalar(y.Arange(cgotorch.Float32, 0, n.Tensor.Numel(), nil), 12.9898), i))
				y.CopyInPlace(n.Tensor, y.View(waves, n.Tensor.Shape()...))
			}
			tensors = append(tensors, safetensors.Tensor{Name: n.Name, DType: "F32", Shape: n.Tensor.Shape(), Data: cgotorch.ToBytes(x, n.Tensor)})
		}
		file, err := os.Create(path)
		if err == nil {
			err = errors.Join(safetensors.Write(file, tensors, nil), file.Close())
		}
		must.Do(t, err)
	})
	return path
}

// routeAndRun runs a layer of experts. Expert ids[i] maps row i of the tokens.
func routeAndRun[M nn.Module](x *cgotorch.Exec, e *Experts[M], layer int, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	e.Route(x, layer, ids)
	return e.Run(x, layer, tokens)
}

// expertStore opens the experts of a saved model as a store.
func expertStore(t testing.TB, path string) *Store {
	t.Helper()
	s := must.Get(OpenStore([]string{path}, StoreOptions{Units: regexp.MustCompile(`^.*\.expert_\d+`)}))(t)
	t.Cleanup(func() { must.Check(t, s.Close()) })
	return s
}

// decoding returns a model, and a cache with which the model's decoder has been started. The model
// has experts of its own only if `resident` is set.
func decoding(t testing.TB, x *cgotorch.Exec, path string, resident bool) (*text.Switch, *text.Cache) {
	t.Helper()
	m := must.Get(text.LoadSwitch(x, text.SwitchOptions{NoExperts: !resident}, path))(t)
	t.Cleanup(func() { nn.Close(m) })
	c := m.NewCache(x, text.CacheOptions{Capacity: steps + 1, Source: 4})
	t.Cleanup(func() { c.Close() })
	begin(x, m, c)
	return m, c
}

func begin(x *cgotorch.Exec, m *text.Switch, c *text.Cache) {
	m.Decoder.Start(x, c, m.Encode(x, cgotorch.FromSlice(x, []int64{7, 21, 33, 1}, 1, 4), nil), nil)
}

const steps = 6

// generated runs the steps and returns the logits of each step.
func generated(t testing.TB, s *cgotorch.Stream, c *text.Cache, step func(x *cgotorch.Exec) *cgotorch.Tensor) [][]float32 {
	t.Helper()
	var logits [][]float32
	for range steps {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			out := step(x)
			c.Next(x, out)
			logits = append(logits, cgotorch.ToSlice[float32](x, out))
		})
	}
	return logits
}

// In every mode, and with every policy, the steps give the same bits as with resident experts.
func TestExperts_Modes(t *testing.T) {
	for _, gating := range []string{"gated", "predicted", "pre-gated"} {
		t.Run(gating, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				s := torchtest.NewStream(t, d)
				path := saveSwitch(t, s)
				var want [][]float32
				torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
					m, c := decoding(t, x, path, true)
					p := m.NewPieces(x, c, gating)
					t.Cleanup(func() { p.Close() })
					for range steps {
						out := p.Step(x)
						if gating != "pre-gated" && !slices.Equal(cgotorch.ToSlice[float32](x, m.Step(x, c)), cgotorch.ToSlice[float32](x, out)) {
							t.Error("the pieces and the whole step differ")
						}
						c.Next(x, out)
						want = append(want, cgotorch.ToSlice[float32](x, out))
					}
				})
				store := expertStore(t, path)
				for _, o := range []CacheOptions{{Policy: Resident}, {Policy: OnDemand}, {Policy: OnDemand, Slots: 1}, {Policy: LRU}, {Policy: LFU, Slots: 4}, {Policy: NextLayer}, {Slots: 3, Pinned: store.Units()[2:4]}} {
					for _, captured := range []bool{false, true} {
						t.Run(fmt.Sprintf("%v/%d/captured=%v", o.Policy, o.Slots, captured), func(t *testing.T) {
							var m *text.Switch
							var c *text.Cache
							var p *text.Pieces
							torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
								m, c = decoding(t, x, path, true)
								p = m.NewPieces(x, c, gating)
							})
							t.Cleanup(func() { p.Close() })
							cache := must.Get(NewCache(store, d, func(x *cgotorch.Exec, _ string) (*text.Dense, error) { return text.NewExpert(x, m.Config, 0), nil }, o))(t)
							defer cache.Close()
							experts := must.Get(NewExperts(cache, m.Config.ExpertNames(true), ExpertsOptions{}))(t)
							defer experts.Close()
							m.Decoder.Experts = experts
							if captured {
								must.Do(t, p.Capture(s))
								torchtest.DoOn(t, s, func(x *cgotorch.Exec) { begin(x, m, c) })
							}
							got := generated(t, s, c, func(x *cgotorch.Exec) *cgotorch.Tensor { return p.Step(x.NoWaits()) })
							for i := range want {
								if !slices.Equal(got[i], want[i]) {
									t.Errorf("step %d: other bits than with resident experts", i)
								}
							}
							layers := len(m.Config.ExpertNames(true))
							st, of := cache.Stats(), experts.Stats()
							if st.Uses() != steps*layers || of.Routes != steps*layers {
								t.Errorf("%+v %+v; want %d uses", st, of, steps*layers)
							}
							if guesses := steps * (layers - 1); gating == "predicted" && (of.Guesses > guesses || of.Right > of.Guesses) {
								t.Errorf("%+v; want at most %d guesses", of, guesses)
							}
						})
					}
				}
			})
		})
	}
}

// A layer of the encoder has many tokens at once and more experts than slots. It gives the same
// results as with resident experts.
func TestExperts_Encoder(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		s := torchtest.NewStream(t, d)
		path := saveSwitch(t, s)
		store := expertStore(t, path)
		var m *text.Switch
		var want []float32
		input := func(x *cgotorch.Exec) *cgotorch.Tensor {
			return cgotorch.FromSlice(x, []int64{5, 9, 3, 17, 2, 8, 1, 4, 11, 7, 6, 1}, 2, 6)
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			resident, _ := decoding(t, x, path, true)
			want = cgotorch.ToSlice[float32](x, resident.Encode(x, input(x), nil))
			m, _ = decoding(t, x, path, true)
		})
		cache := must.Get(NewCache(store, d, func(x *cgotorch.Exec, _ string) (*text.Dense, error) { return text.NewExpert(x, m.Config, 0), nil }, CacheOptions{}))(t)
		defer cache.Close()
		experts := must.Get(NewExperts(cache, m.Config.ExpertNames(false), ExpertsOptions{}))(t)
		defer experts.Close()
		m.Encoder.Experts = experts
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			got := cgotorch.ToSlice[float32](x, m.Encode(x, input(x), nil))
			for i := range got {
				if diff := got[i] - want[i]; diff > 1e-5 || diff < -1e-5 {
					t.Fatalf("number %d is %v, with resident experts %v", i, got[i], want[i])
				}
			}
		})
	})
}

// A router writes its next choice into the memory of its last choice. Each layer still runs the
// expert of its own choice.
func TestExperts_Route_SameMemory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		s := torchtest.NewStream(t, d)
		e := must.Get(NewExperts(newCache(t, scalesStore(t, 4), d, CacheOptions{}), [][]string{{unitName(0), unitName(1), unitName(2), unitName(3)}}, ExpertsOptions{}))(t)
		defer e.Close()
		var sums []*cgotorch.HostRead
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			ids, in := x.Zeros(cgotorch.Int64, 1), x.Ones(cgotorch.Float32, 1, width)
			for i := range 12 {
				x.FillInPlace(ids, i%4)
				sums = append(sums, x.ReadAsync(x.Mean(routeAndRun(x, e, 0, in, ids))))
			}
		})
		for i, r := range sums {
			if got, err := r.Item(); err != nil || got != float64(2*(i%4)+1) {
				t.Errorf("choice %d gave %v (%v), want %d", i, got, err, 2*(i%4)+1)
			}
			r.Close()
		}
	})
}

func TestExperts_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, cgotorch.CPU)
	cache := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{})
	if _, err := NewExperts(cache, [][]string{{unitName(1), "none"}}, ExpertsOptions{}); !errors.Is(err, ErrUnknownUnit) {
		t.Errorf("an unknown expert: %v", err)
	}
	e, err := NewExperts(cache, [][]string{{unitName(0), unitName(1)}, {unitName(2), unitName(3)}}, ExpertsOptions{})
	must.Do(t, err)
	defer e.Close()
	ids := func(x *cgotorch.Exec, ids ...int64) *cgotorch.Tensor { return cgotorch.FromSlice(x, ids) }
	tokens := func(x *cgotorch.Exec, n int64) *cgotorch.Tensor { return x.Ones(cgotorch.Float32, n, width) }
	for text, fn := range map[string]func(x *cgotorch.Exec){
		"layer 2 of 2":        func(x *cgotorch.Exec) { e.Route(x, 2, ids(x, 1)) },
		"layer -1 of 2":       func(x *cgotorch.Exec) { e.Predict(x, -1, ids(x, 1)) },
		"routed to number 2":  func(x *cgotorch.Exec) { routeAndRun(x, e, 0, tokens(x, 2), ids(x, 1, 2)) },
		"has not been routed": func(x *cgotorch.Exec) { e.Run(x, 1, tokens(x, 1)) },
		"has not been run":    func(x *cgotorch.Exec) { e.Route(x, 1, ids(x, 1)); e.Route(x, 1, ids(x, 1)) },
		"want Int64":          func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Float32, 1)) },
		"there are 3 ids":     func(x *cgotorch.Exec) { routeAndRun(x, e, 0, tokens(x, 2), ids(x, 1, 0, 1)) },
		"one id for each":     func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Int64, 2, 2)) },
	} {
		err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want ErrInvalidArgument with %q", err, text)
		}
	}
	// After all these failures a right call works, and no slot is lost.
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		got := cgotorch.ToSlice[float32](x, routeAndRun(x, e, 1, tokens(x, 3), ids(x, 1, 0, 1)))
		if got[0] != 7 || got[width] != 5 || got[2*width] != 7 {
			t.Errorf("got %v, %v, %v", got[0], got[width], got[2*width])
		}
	})
	e.Close()
	err = s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, ids(x, 1)); return nil })
	if !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestExperts_FailedRun(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, bad := range []bool{false, true} {
		c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
		e, err := NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{})
		must.Do(t, err)
		s := torchtest.NewStream(t, cgotorch.CPU)
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

func TestExperts_Predict_Grows(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{}))(t)
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 300 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { e.Predict(x, 0, cgotorch.FromSlice(x, []int64{1})) })
	}
	time.Sleep(50 * time.Millisecond)
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.guessed[place{s, 0}]); n > 3 {
		t.Errorf("%d guesses are remembered at a layer of 3 experts", n)
	}
}

func TestExperts_Pieces_FailedCapture(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, cgotorch.CPU)
	path := saveSwitch(t, s)
	var m *text.Switch
	var c *text.Cache
	var p *text.Pieces
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		m, c = decoding(t, x, path, true)
		p = m.NewPieces(x, c, "gated")
	})
	defer p.Close()
	// Capture fails, because the router of the second sparse layer has a wrong shape at that time.
	// The Step after that does not panic.
	var w **cgotorch.Tensor
	seen := 0
	for _, b := range m.Decoder.Block {
		if b.FF.Sparse != nil {
			if seen == 1 {
				w = &b.FF.Sparse.Router.Classifier.Weight
			}
			seen++
		}
	}
	good := *w
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { *w = x.Keep(x.Zeros(cgotorch.Float32, 3, 3)) })
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
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { begin(x, m, c); p.Step(x) })
}

// The guesses of a Do that fails do not keep slots: see also TestExperts_FailedRun.
func TestExperts_GuessOfFailedDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{}))(t)
	defer e.Close()
	torchtest.NewStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		e.Predict(x, 0, cgotorch.FromSlice(x, []int64{0, 1}))
		return errors.New("of the program")
	})
	time.Sleep(20 * time.Millisecond)
	if c.slots[0].wanted || c.slots[1].wanted {
		t.Error("guesses of a Do that has failed keep all slots")
	}
}

// Layers run in two branches while a third branch uses a unit. The copies of the ids, on the side
// stream, cause no race.
func TestExperts_InBranches(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1)}, {unitName(2), unitName(3)}}, ExpertsOptions{}))(t)
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 20 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			x = x.NoGrad()
			in := x.Ones(cgotorch.Float32, 4, width)
			x.Parallel(cgotorch.ParallelOptions{},
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return routeAndRun(x, e, 0, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return routeAndRun(x, e, 1, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor { // released only by the end of the Do
					return x.Sum(c.Use(x, unitName(0)).Module.Weight)
				},
			)
		})
	}
}

// If a Do ends after Route and without Run, a later Do can route the same layer again.
func TestExperts_SameLayerTwice(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e, _ := NewExperts(c, [][]string{{unitName(0), unitName(1)}}, ExpertsOptions{})
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 3 {
		must.Check(t, s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, cgotorch.FromSlice(x, []int64{0})); return nil }))
	}
	if len(e.open) > 0 {
		t.Error(e.open)
	}
}
