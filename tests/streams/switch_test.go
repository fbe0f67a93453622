package streams

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		defer m.Close()
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

// decoding returns a model, and a cache with which the model's decoder has been started.
func decoding(t testing.TB, x *cgotorch.Exec, path string, o text.SwitchOptions) (*text.Switch, *text.Cache) {
	t.Helper()
	m := must.Get(text.LoadSwitch(x, o, path))(t)
	t.Cleanup(func() { must.Check(t, m.Close()) })
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
			logits = append(logits, cgotorch.ToSlice[float32](x, x.To(out, cgotorch.Float32)))
			c.Next(x, out)
		})
	}
	return logits
}

// near reports whether numbers are equal up to a share of the largest one.
func near(got, want []float32, share float64) bool {
	most, off := 0., 0.
	for i, w := range want {
		most, off = max(most, math.Abs(float64(w))), max(off, math.Abs(float64(got[i]-w)))
	}
	return len(got) == len(want) && off <= share*most
}

// With experts in slots the steps give what they give with all experts on the device: in float32
// the same bits. In bfloat16 a step does not wait, and is captured. Experts that change between two
// steps leave no old expert in a slot.
func TestSwitch_Slots(t *testing.T) {
	for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
		for _, slots := range []int{1, 3, 7} {
			for _, captured := range []bool{false, true} {
				if captured && dtype == cgotorch.Float32 {
					continue
				}
				t.Run(fmt.Sprintf("%v/slots=%d/captured=%v", dtype, slots, captured), func(t *testing.T) {
					torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) { testSlots(t, d, dtype, slots, captured) })
				})
			}
		}
	}
}

func testSlots(t *testing.T, d cgotorch.Device, dtype cgotorch.DType, slots int, captured bool) {
	torchtest.CheckStreams(t)
	torchtest.NoTF32(t)
	s := torchtest.NewStream(t, d)
	path := saveSwitch(t, s)
	var resident, held *text.Switch
	var c, other *text.Cache
	var logits *cgotorch.Tensor
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		resident, c = decoding(t, x, path, text.SwitchOptions{DType: dtype})
		held, other = decoding(t, x, path, text.SwitchOptions{DType: dtype, Slots: slots})
		logits = x.Keep(x.Zeros(dtype, 1, int64(held.Config.VocabSize)))
	})
	defer logits.Close()
	step := func(x *cgotorch.Exec) *cgotorch.Tensor {
		if dtype == cgotorch.BFloat16 && d.IsCUDA() { // on the CPU token_experts checks the picks
			x = x.NoWaits()
		}
		return held.Step(x, other)
	}
	if captured {
		graph := must.Get(s.Capture(func(x *cgotorch.Exec) error {
			x.CopyInPlace(logits, held.Step(x, other))
			return nil
		}, 1))(t)
		defer graph.Close()
		step = func(x *cgotorch.Exec) *cgotorch.Tensor { x.Launch(graph); return x.Alias(logits) }
	}
	share := map[cgotorch.DType]float64{cgotorch.BFloat16: 0.03}[dtype]
	for round := range 3 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { begin(x, resident, c); begin(x, held, other) })
		want := generated(t, s, c, func(x *cgotorch.Exec) *cgotorch.Tensor { return resident.Step(x, c) })
		got := generated(t, s, other, step)
		for i := range want {
			if !near(got[i], want[i], share) {
				t.Errorf("round %d, step %d: other logits than with all experts on the device", round, i)
			}
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			for _, m := range []*text.Switch{resident, held} {
				for _, n := range nn.State(m) {
					if round == 0 && strings.Contains(n.Name, "decoder") && strings.Contains(n.Name, "expert_") {
						nn.Copy(x.NoGrad(), n.Tensor, x.MulScalar(n.Tensor, -1))
					}
				}
			}
		})
	}
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		stats, layers := held.ExpertStats(x), 3
		if n := stats.Hits + stats.Misses; n < int64(3*steps*layers) || stats.Misses == 0 || (slots > 1 && stats.Hits == 0) {
			t.Errorf("%+v; want at least %d picks", stats, 3*steps*layers)
		}
		if dtype == cgotorch.Float32 && stats.Fetched != stats.Misses || dtype != cgotorch.Float32 && stats.Fetched != 0 {
			t.Errorf("%+v: in float32 the copy engine brings what misses, and else kernels", stats)
		}
	})
}

// The encoder, and more tokens at once than run one after another, read the experts that they
// choose where they lie. The logits are those of a model whose experts are on the device.
func TestSwitch_Slots_ManyTokens(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		torchtest.NoTF32(t)
		s := torchtest.NewStream(t, d)
		path := saveSwitch(t, s)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			resident, _ := decoding(t, x, path, text.SwitchOptions{NoGrouped: true})
			held, _ := decoding(t, x, path, text.SwitchOptions{NoGrouped: true, Slots: 2})
			ids := cgotorch.FromSlice(x, []int64{5, 9, 3, 17, 2, 8, 1, 4, 11, 7, 6, 1}, 2, 6)
			for _, ids := range []*cgotorch.Tensor{ids, x.Repeat(ids, 2, 50)} {
				want := cgotorch.ToSlice[float32](x, resident.Logits(x, ids, nil, ids))
				if got := cgotorch.ToSlice[float32](x, held.Logits(x, ids, nil, ids)); !near(got, want, 1e-5) {
					t.Errorf("%v: other logits than with all experts on the device", ids)
				}
			}
		})
	})
}

// A step in float32 waits for each choice, so it cannot be captured, and says so.
func TestSwitch_Slots_NotCaptured(t *testing.T) {
	torchtest.CUDA(t)
	s := torchtest.NewStream(t, cgotorch.CUDA(0))
	path := saveSwitch(t, s)
	var m *text.Switch
	var c *text.Cache
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { m, c = decoding(t, x, path, text.SwitchOptions{Slots: 2}) })
	g, err := s.Capture(func(x *cgotorch.Exec) error { m.Step(x, c); return nil }, 1)
	torchtest.WantError(t, errors.Join(err, g.Close()), cgotorch.ErrNotCapturable)
}
