package prefetcher

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/torchtest"
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
)

// smallSwitch has three sparse layers of eight experts in encoder and decoder.
func smallSwitch() *text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.VocabSize, c.DModel, c.DKV, c.DFF, c.NumHeads, c.NumExperts = 50, 16, 4, 32, 4, 8
	c.NumLayers, c.NumDecoderLayers, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers = 6, 6, 3, 3
	return &c
}

// saveSwitch writes a model of smallSwitch, whose numbers are such that tokens choose many experts.
func saveSwitch(t testing.TB, s *cgotorch.Stream) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "model.safetensors")
	do(t, s, func(x *cgotorch.Exec) {
		m := text.NewSwitch(x, *smallSwitch(), text.SwitchOptions{})
		defer nn.Close(m)
		var tensors []safetensors.Tensor
		for i, n := range nn.State(m) {
			if slices.ContainsFunc(tensors, func(t safetensors.Tensor) bool { return t.Name == n.Name }) {
				continue
			}
			y := x.NoGrad()
			if n.Tensor.Dim() == 2 { // not drawn: the same on every device
				waves := y.Sin(y.AddScalar(y.MulScalar(y.Arange(cgotorch.Float32, 0, n.Tensor.Numel(), nil), 12.9898), i))
				y.CopyInPlace(n.Tensor, y.View(waves, n.Tensor.Shape()...))
			}
			tensors = append(tensors, safetensors.Tensor{Name: n.Name, DType: "F32", Shape: n.Tensor.Shape(), Data: cgotorch.ToBytes(x, n.Tensor)})
		}
		file, err := os.Create(path)
		if err == nil {
			err = errors.Join(safetensors.Write(file, tensors, nil), file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return path
}

// expertStore has the experts of a saved model.
func expertStore(t testing.TB, path string) *Store {
	t.Helper()
	s, err := OpenStore([]string{path}, StoreOptions{Modules: regexp.MustCompile(text.ExpertPattern)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// decoding is a model with a cache that has been started, without experts unless resident.
func decoding(t testing.TB, x *cgotorch.Exec, path string, resident bool) (*text.Switch, *text.Cache) {
	t.Helper()
	m, err := text.LoadSwitch(x, text.LoadOptions{SwitchOptions: text.SwitchOptions{NoExperts: !resident}, Config: smallSwitch()}, path)
	if err != nil {
		t.Fatal(err)
	}
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

// generated runs steps and returns each one's logits.
func generated(t testing.TB, s *cgotorch.Stream, c *text.Cache, step func(x *cgotorch.Exec) *cgotorch.Tensor) [][]float32 {
	t.Helper()
	var logits [][]float32
	for range steps {
		do(t, s, func(x *cgotorch.Exec) {
			out := step(x)
			c.Next(x, out)
			logits = append(logits, cgotorch.ToSlice[float32](x, out))
		})
	}
	return logits
}

// In every mode, however the experts come, the steps give the bits that they give with resident ones.
func TestExperts_Modes(t *testing.T) {
	for _, gating := range []text.Gating{text.Gated, text.Predicted, text.PreGated} {
		t.Run([]string{"gated", "predicted", "pre-gated"}[gating], func(t *testing.T) {
			onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				checkStreams(t)
				s := newStream(t, d)
				path := saveSwitch(t, s)
				var want [][]float32
				do(t, s, func(x *cgotorch.Exec) {
					m, c := decoding(t, x, path, true)
					p := m.NewPieces(x, c, text.PiecesOptions{Gating: gating})
					t.Cleanup(func() { p.Close() })
					experts := m.ResidentExperts(x)
					for range steps {
						out := p.Step(x, experts)
						if gating != text.PreGated && !slices.Equal(cgotorch.ToSlice[float32](x, m.Step(x, c)), cgotorch.ToSlice[float32](x, out)) {
							t.Error("the pieces and the whole step differ")
						}
						c.Next(x, out)
						want = append(want, cgotorch.ToSlice[float32](x, out))
					}
				})
				store := expertStore(t, path)
				for _, o := range []ModulesOptions{{Policy: Resident}, {Policy: OnDemand}, {Policy: OnDemand, Slots: 1}, {Policy: LRU}, {Policy: LFU, Slots: 4}, {Policy: NextLayer}, {Slots: 3, Pinned: store.Modules()[2:4]}} {
					for _, captured := range []bool{false, true} {
						t.Run(fmt.Sprintf("%v/%d/captured=%v", o.Policy, o.Slots, captured), func(t *testing.T) {
							var m *text.Switch
							var c *text.Cache
							var p *text.Pieces
							do(t, s, func(x *cgotorch.Exec) {
								m, c = decoding(t, x, path, true)
								p = m.NewPieces(x, c, text.PiecesOptions{Gating: gating})
							})
							t.Cleanup(func() { p.Close() })
							modules, err := NewModules(store, d, func(x *cgotorch.Exec, _ string) (*text.Dense, error) { return text.NewExpert(x, m.Config, 0), nil }, o)
							if err != nil {
								t.Fatal(err)
							}
							defer modules.Close()
							experts, err := NewExperts(modules, m.Config.ExpertNames(true), RoutesOptions{})
							if err != nil {
								t.Fatal(err)
							}
							defer experts.Close()
							if captured {
								if err := p.Capture(s); err != nil {
									t.Fatal(err)
								}
								do(t, s, func(x *cgotorch.Exec) { begin(x, m, c) })
							}
							got := generated(t, s, c, func(x *cgotorch.Exec) *cgotorch.Tensor { return p.Step(x.NoWaits(), experts) })
							for i := range want {
								if !slices.Equal(got[i], want[i]) {
									t.Errorf("step %d: other bits than with resident experts", i)
								}
							}
							layers := len(m.Config.ExpertNames(true))
							st, of := modules.Stats(), experts.Stats()
							if st.Uses() != steps*layers || of.Routes != steps*layers {
								t.Errorf("%+v %+v; want %d uses", st, of, steps*layers)
							}
							if guesses := steps * (layers - 1); gating == text.Predicted && (of.Guesses > guesses || of.Right > of.Guesses) {
								t.Errorf("%+v; want at most %d guesses", of, guesses)
							}
						})
					}
				}
			})
		})
	}
}

// Many tokens at once, more experts than slots: the encoder's layers by the same way.
func TestExperts_Layer(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		s := newStream(t, d)
		path := saveSwitch(t, s)
		store := expertStore(t, path)
		var m *text.Switch
		var want []float32
		input := func(x *cgotorch.Exec) *cgotorch.Tensor {
			return cgotorch.FromSlice(x, []int64{5, 9, 3, 17, 2, 8, 1, 4, 11, 7, 6, 1}, 2, 6)
		}
		do(t, s, func(x *cgotorch.Exec) {
			resident, _ := decoding(t, x, path, true)
			want = cgotorch.ToSlice[float32](x, resident.Encode(x, input(x), nil))
			m, _ = decoding(t, x, path, true)
		})
		modules, err := NewModules(store, d, func(x *cgotorch.Exec, _ string) (*text.Dense, error) { return text.NewExpert(x, m.Config, 0), nil }, ModulesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer modules.Close()
		experts, err := NewExperts(modules, m.Config.ExpertNames(false), RoutesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer experts.Close()
		layer := 0
		for _, block := range m.Encoder.Block {
			if block.FF.IsSparse() {
				block.FF.Sparse.Override = experts.Layer(layer)
				layer++
			}
		}
		do(t, s, func(x *cgotorch.Exec) {
			got := cgotorch.ToSlice[float32](x, m.Encode(x, input(x), nil))
			for i := range got {
				if diff := got[i] - want[i]; diff > 1e-5 || diff < -1e-5 {
					t.Fatalf("number %d is %v, with resident experts %v", i, got[i], want[i])
				}
			}
		})
	})
}

// A router may write its choice where the last one was.
func TestExperts_Route_SameMemory(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		s := newStream(t, d)
		e, err := NewExperts(newModules(t, scalesStore(t, 4), d, ModulesOptions{}), [][]string{{moduleName(0), moduleName(1), moduleName(2), moduleName(3)}}, RoutesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		var sums []*cgotorch.HostRead
		do(t, s, func(x *cgotorch.Exec) {
			ids, in := x.Zeros(cgotorch.Int64, 1), x.Ones(cgotorch.Float32, 1, width)
			for i := range 12 {
				x.FillInPlace(ids, i%4)
				sums = append(sums, x.ReadAsync(x.Mean(e.Layer(0).Forward(x, in, ids))))
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
	checkLeaks(t)
	s := newStream(t, cgotorch.CPU)
	modules := newModules(t, scalesStore(t, 4), cgotorch.CPU, ModulesOptions{})
	if _, err := NewExperts(modules, [][]string{{moduleName(1), "none"}}, RoutesOptions{}); !errors.Is(err, ErrUnknownModule) {
		t.Errorf("an unknown expert: %v", err)
	}
	e, err := NewExperts(modules, [][]string{{moduleName(0), moduleName(1)}, {moduleName(2), moduleName(3)}}, RoutesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ids := func(x *cgotorch.Exec, ids ...int64) *cgotorch.Tensor { return cgotorch.FromSlice(x, ids) }
	tokens := func(x *cgotorch.Exec, n int64) *cgotorch.Tensor { return x.Ones(cgotorch.Float32, n, width) }
	for text, fn := range map[string]func(x *cgotorch.Exec){
		"layer 2 of 2":        func(x *cgotorch.Exec) { e.Route(x, 2, ids(x, 1)) },
		"layer -1 of 2":       func(x *cgotorch.Exec) { e.Predict(x, -1, ids(x, 1)) },
		"routed to number 2":  func(x *cgotorch.Exec) { e.Layer(0).Forward(x, tokens(x, 2), ids(x, 1, 2)) },
		"has not been routed": func(x *cgotorch.Exec) { e.Run(x, 1, tokens(x, 1)) },
		"has not been run":    func(x *cgotorch.Exec) { e.Route(x, 1, ids(x, 1)); e.Route(x, 1, ids(x, 1)) },
		"want Int64":          func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Float32, 1)) },
		"there are 3 ids":     func(x *cgotorch.Exec) { e.Layer(0).Forward(x, tokens(x, 2), ids(x, 1, 0, 1)) },
		"one id for each":     func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Int64, 2, 2)) },
	} {
		err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want ErrInvalidArgument with %q", err, text)
		}
	}
	// After all that, what is asked for rightly works, and no slot is taken for good.
	do(t, s, func(x *cgotorch.Exec) {
		got := cgotorch.ToSlice[float32](x, e.Layer(1).Forward(x, tokens(x, 3), ids(x, 1, 0, 1)))
		if got[0] != 7 || got[width] != 5 || got[2*width] != 7 {
			t.Errorf("got %v, %v, %v", got[0], got[width], got[2*width])
		}
	})
	e.Close()
	err = s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, ids(x, 1)); return nil })
	if !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestRoutes(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		checkStreams(t)
		r, err := NewRoutes(d, RoutesOptions{Tokens: 8, Poll: time.Microsecond})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := newStream(t, d)
		do(t, s, func(x *cgotorch.Exec) {
			var ids []*cgotorch.Tensor
			for layer := range 20 {
				ids = append(ids, x.Full(cgotorch.Int64, layer+100, int64(layer+1)))
			}
			for range 2 { // the first time memory is page-locked for the choices of more than 8 tokens
				torchtest.Sleep(x, 20*time.Millisecond) // so that a look comes before the copy
				for layer := range 20 {
					r.Send(x, layer, ids[layer])
				}
				x = x.NoWaits()
			}
		})
		for i := range 40 {
			layer, route := i%20, <-r.C()
			if route.Layer != layer || route.Err != nil || len(route.Experts) != layer+1 || route.Experts[layer] != int64(layer+100) {
				t.Fatalf("got %+v as number %d", route, layer)
			}
		}
		do(t, s, func(x *cgotorch.Exec) { r.Send(x, 0, x.Zeros(cgotorch.Int64, 1)) })
		if err := errors.Join(r.Close(), r.Close()); err != nil { // with one that nobody receives
			t.Error(err)
		}
		if _, ok := <-r.C(); ok {
			t.Error("a choice after Close")
		}
	})
}
