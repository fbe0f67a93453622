package streams

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	. "github.com/streamtorch/streamtorch/prefetcher/weights"
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
