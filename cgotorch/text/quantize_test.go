package text_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// narrowed returns what a number becomes between -most and most.
func narrowed(form string, v float64) float64 {
	if form == "int8" {
		return math.RoundToEven(v)
	}
	best := 0.0
	for code := range 255 {
		if got := float64(float8(code)); code != 127 && (math.Abs(got-v) < math.Abs(best-v) || (math.Abs(got-v) == math.Abs(best-v) && code%2 == 0)) {
			best = got
		}
	}
	return best
}

// Weights that become int8 or fp8 are those of a model whose rows were rounded by hand, and a token
// alone gives what a prompt gives.
func TestOpen_Quantize(t *testing.T) {
	torchtest.CheckLeaks(t)
	prompt := []int64{5, 7, 300, 2, 9}
	for _, name := range []string{"llama", "qwen2", "gemma3", "olmo2", "gptoss"} {
		for form, most := range map[string]float64{"int8": 127, "fp8": 448} {
			t.Run(name+"/"+form, func(t *testing.T) {
				plain := tokenModel(t, name)
				m := must.Get(text.Open(torchtest.Device(), plain.Folder(), text.Options{RandomWeights: 7, DType: plain.DType(), Quantize: form}))(t)
				defer m.Close()
				if name == "gemma3" { // its head is the embedding, which is not rounded for tokens
					steps(t, m, prompt)
					return
				}
				var changed, all float64
				var want, got []float32
				ids := func(x *cgotorch.Exec) *cgotorch.Tensor { return cgotorch.FromSlice(x, prompt, 1, int64(len(prompt))) }
				must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					for _, n := range plain.Weights {
						isHead := n.Name == "lm_head.weight"
						if !strings.Contains(n.Name, "_proj.weight") && !isHead {
							continue
						}
						data, row := cgotorch.ToSlice[float32](x, x.To(n.Tensor, cgotorch.Float32)), int(n.Tensor.Shape()[1])
						for at := 0; at < len(data); at += row {
							scale := float32(0)
							for _, v := range data[at : at+row] {
								scale = max(scale, float32(math.Abs(float64(v))))
							}
							scale /= float32(most)
							for i, v := range data[at : at+row] {
								narrow := float32(narrowed(form, float64(v/scale))) * scale
								changed += math.Pow(float64(narrow-v), 2)
								all += float64(v) * float64(v)
								data[at+i] = narrow
							}
						}
						nn.Copy(x, n.Tensor, cgotorch.FromSlice(x, data, n.Tensor.Shape()...))
					}
					want, got = float32s(x, plain.Forward(x, ids(x))), float32s(x, m.Forward(x, ids(x)))
					return nil
				}))
				if e := math.Sqrt(changed / all); math.Abs(m.QuantizationError()-e) > 1e-3*e {
					t.Errorf("QuantizationError is %v, want %v", m.QuantizationError(), e)
				}
				tolerance := 1e-5
				if torchtest.Device().IsCUDA() {
					tolerance = 0.03
				}
				if d := distance(got, want); !(d < tolerance) {
					t.Errorf("logits are %v from those of rounded weights", d)
				}
				steps(t, m, prompt)
			})
		}
	}
}

func float32s(x *cgotorch.Exec, t *cgotorch.Tensor) []float32 { return cgotorch.ToSlice[float32](x, t) }

// distance is that of two vectors, relative to the length of the second.
func distance(got, want []float32) float64 {
	var apart, length float64
	for i := range want {
		apart += math.Pow(float64(got[i]-want[i]), 2)
		length += math.Pow(float64(want[i]), 2)
	}
	return math.Sqrt(apart / length)
}

// steps compares tokens one by one, by the layers of prompts and by the kernels of a token.
func steps(t *testing.T, m *text.Model, prompt []int64) {
	t.Helper()
	tolerance := 1e-4
	if torchtest.Device().IsCUDA() {
		tolerance = 0.04
	}
	o := text.GenerateOptions{MaxTokens: 12, Greedy: true, IgnoreEnd: true}
	m.Edge("")
	c := m.NewConversation()
	answer, _ := tokensOf(t, c, prompt, o)
	c.Close()
	o.Greedy = false
	want := logsOf(t, m, prompt, answer, o)
	var first []float64
	for _, edge := range []string{"full", "early", "wait"} {
		m.Edge(edge)
		got := logsOf(t, m, prompt, answer, o)
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Errorf("edges %s give other log probabilities than full ones", edge)
		}
		if d := medianDistance(got, want); d > tolerance {
			t.Errorf("edges %s: log probabilities are %v, and LibTorch's layers give %v", edge, got, want)
		}
	}
}

// A model whose weights became narrow is neither saved nor trained, and says why.
func TestOpen_QuantizeRefused(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, quantizedLlama+"}", text.Options{Quantize: "int8"})
	d := cgotorch.DefaultStream(torchtest.Device())
	err := d.Do(func(x *cgotorch.Exec) error { return m.Save(x, t.TempDir()) })
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "int8", "Options.Quantize")
	err = d.Do(func(x *cgotorch.Exec) error {
		m.Forward(x, cgotorch.FromSlice(x, []int64{1, 2}, 1, 2))
		return nil
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "int8", "NoGrad")
	_, err = text.Open(torchtest.Device(), t.TempDir(), text.Options{Quantize: "int3"})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "int3", "int4")

	folder := savedModel(t, quantizedLlama+"}")
	bad := must.Get(text.Open(torchtest.Device(), folder, text.Options{}))(t)
	must.Do(t, d.Do(func(x *cgotorch.Exec) error {
		nn.Constant(x.NoGrad(), bad.Weights[2].Tensor, math.NaN())
		return bad.Save(x, folder)
	}))
	must.Do(t, bad.Close())
	_, err = text.Open(torchtest.Device(), folder, text.Options{Quantize: "fp8"})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "NaN", "fp8")
}
