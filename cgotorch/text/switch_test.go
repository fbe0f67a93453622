package text_test

import (
	"bytes"
	"context"
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

// The standard deviations of new weights are those of _init_weights in Hugging Face's
// transformers.
func TestLoadSwitch_RandomWeights(t *testing.T) {
	config := tiny()
	config.VocabSize, config.DModel, config.DKV, config.DFF, config.NumHeads, config.NumExperts = 100, 64, 16, 256, 4, 32
	config.TieWordEmbeddings, config.RouterBias, config.InitializerFactor = false, true, 2
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := randomSwitch(t, x, config, text.SwitchOptions{})
		defer nn.Close(m)
		for _, n := range nn.State(m) {
			want, mean := 0., 0.
			switch part := func(s string) bool { return strings.Contains(n.Name, s) }; {
			case part("layer_norm"):
				mean = 1
			case part("classifier.bias"):
			case part("shared"), part("embed_tokens"), part("lm_head"), part("classifier"):
				want = 1
			case part(".q."):
				want = 1. / 32
			case part(".mlp.wo."):
				want = 1. / 16
			default:
				want = 1. / 8
			}
			deviation := x.Item(x.Sqrt(x.Mean(x.Square(x.SubScalar(n.Tensor, 2*mean))))) / 2
			if math.Abs(deviation-want) > 0.12*want {
				t.Errorf("%s: the deviation is %.4f, want %.4f", n.Name, deviation, want)
			}
			if n.Tensor.RequiresGrad() {
				t.Errorf("%s requires a gradient", n.Name)
			}
		}
	})
}

// Equal seeds give equal weights, and the random numbers of the process stay as they are.
func TestLoadSwitch_RandomWeights_Seed(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		draw := func() []float32 {
			m := randomSwitch(t, x, tiny(), text.SwitchOptions{})
			defer nn.Close(m)
			return forward(x, m)
		}
		first := draw()
		x.Randn(cgotorch.Float32, 5)
		before := must.Get(cgotorch.GeneratorState(cgotorch.CPU))(t)
		if !slices.Equal(draw(), first) {
			t.Error("two models of one seed differ")
		}
		if after := must.Get(cgotorch.GeneratorState(cgotorch.CPU))(t); !bytes.Equal(after, before) {
			t.Error("LoadSwitch has changed the random numbers of the process")
		}
	})
}

// In bfloat16 the logits equal those of float32 up to rounding, also after nn.To.
func TestSwitch_BFloat16(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		config := tiny()
		config.NumSparseDecoderLayers, config.NumSparseEncoderLayers, config.InitializerFactor = 0, 0, 0.5
		config.NumExperts = 1 // with several experts, a small difference could change the routing
		m, half := randomSwitch(t, x, config, text.SwitchOptions{}), randomSwitch(t, x, config, text.SwitchOptions{DType: cgotorch.BFloat16})
		defer nn.Close(m)
		defer nn.Close(half)
		for i, n := range nn.State(m) {
			nn.Copy(x, nn.State(half)[i].Tensor, n.Tensor)
			nn.Copy(x, n.Tensor, nn.State(half)[i].Tensor)
		}
		want := forward(x, m)
		near := func(got []float32) {
			t.Helper()
			for i, w := range want {
				if d := math.Abs(float64(got[i] - w)); !(d < 0.05) {
					t.Fatalf("logit %d is %v, want %v", i, got[i], w)
				}
			}
		}
		near(forward(x, half))
		if c := half.NewCache(x, text.CacheOptions{}); c.Keys[0].DType() != cgotorch.BFloat16 {
			t.Errorf("the cache is %v, want bfloat16", c.Keys[0])
		} else {
			c.Close()
		}
		nn.To(x, m, nn.ToOptions{DType: cgotorch.BFloat16})
		near(forward(x, m))
	})
}

// With NoGrouped no part of Logits waits for the device.
func TestSwitch_Logits_NoWaits(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := randomSwitch(t, x, tiny(), text.SwitchOptions{NoGrouped: true})
		defer nn.Close(m)
		ids := x.RandInt(cgotorch.Int64, 0, 11, 3, 7)
		mask := x.Ones(cgotorch.Bool, 3, 7)
		m.Logits(x.NoWaits(), ids, mask, ids)
	})
}

func TestSwitch_Refuses(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor)
		want string
	}{
		{"ids of another dtype", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			m.Encode(x, x.To(ids, cgotorch.Int32), nil)
		}, "int32[2 3]"},
		{"no ids", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) { m.Encode(x, x.Narrow(ids, 1, 0, 0), nil) }, "at least one"},
		{"another mask", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) { m.Encode(x, ids, x.Narrow(ids, 1, 0, 2)) }, "mask is int64[2 2]"},
		{"another batch", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			m.Logits(x, ids, nil, x.Narrow(ids, 0, 0, 1))
		}, "want [1, source"},
		{"another dtype", func(x *cgotorch.Exec, _ *text.Switch, _ *cgotorch.Tensor) {
			randomSwitch(t, x, tiny(), text.SwitchOptions{DType: cgotorch.Float16})
		}, "DType is float16"},
		{"slots below 0", func(x *cgotorch.Exec, _ *text.Switch, _ *cgotorch.Tensor) {
			randomSwitch(t, x, tiny(), text.SwitchOptions{Slots: -1})
		}, "Slots is -1"},
		{"cache of a batch below 0", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			m.NewCache(x, text.CacheOptions{Batch: -1})
		}, "Batch is -1"},
		{"cache of another batch", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			c := m.NewCache(x, text.CacheOptions{})
			x.AtEnd(func() { c.Close() })
			m.Decoder.Start(x, c, m.Encode(x, ids, nil), nil)
		}, "want [1, source"},
		{"cache of a shorter source", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			c := m.NewCache(x, text.CacheOptions{Batch: 2, Source: 2})
			x.AtEnd(func() { c.Close() })
			m.Decoder.Start(x, c, m.Encode(x, ids, nil), nil)
		}, "has 3 tokens"},
		{"more steps than the cache", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			c := m.NewCache(x, text.CacheOptions{Batch: 2, Source: 3, Capacity: 1})
			x.AtEnd(func() { c.Close() })
			m.Decoder.Start(x, c, m.Encode(x, ids, nil), nil)
			for range 2 {
				c.Next(x, m.Step(x, c))
			}
		}, "made for 1 tokens, and all are there"},
		{"more tokens than the cache", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			c := m.NewCache(x, text.CacheOptions{Batch: 2, Source: 3, Capacity: 1})
			x.AtEnd(func() { c.Close() })
			_, err := m.Generate(context.Background(), x, ids, nil, text.SwitchGenerateOptions{Cache: c, MaxNewTokens: 5})
			cgotorch.Check(err)
		}, "made for 1 tokens, and MaxNewTokens is 5"},
		{"tokens below 0", func(x *cgotorch.Exec, m *text.Switch, ids *cgotorch.Tensor) {
			_, err := m.Generate(context.Background(), x, ids, nil, text.SwitchGenerateOptions{MaxNewTokens: -1})
			cgotorch.Check(err)
		}, "MaxNewTokens is -1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				m := randomSwitch(t, x, tiny(), text.SwitchOptions{})
				x.AtEnd(func() { nn.Close(m) })
				test.run(x, m, x.Ones(cgotorch.Int64, 2, 3))
				return nil
			}), cgotorch.ErrInvalidArgument, test.want)
		})
	}
}

// The experts give right results for widths that LibTorch's grouped product does not take. The
// results are also right after nn.To, when the weights of the experts are not adjacent any more.
func TestSwitchExperts_Forward_OddWidths(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		config := tiny()
		config.DModel, config.DFF = 6, 9
		m := randomSwitch(t, x, config, text.SwitchOptions{})
		defer nn.Close(m)
		experts := m.Encoder.Block[1].FF.Sparse.Experts
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64} {
			nn.To(x, m, nn.ToOptions{DType: dtype})
			tokens, ids := x.Randn(dtype, 40, 6), x.RandInt(cgotorch.Int64, 0, 3, 40)
			want := nn.Dispatch(x, tokens, cgotorch.ToSlice[int64](x, ids), nn.ExpertOrder(x, ids), func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
				return experts.Expert[expert].Forward(x, rows)
			})
			if !x.AllClose(experts.Forward(x, tokens, ids), want, cgotorch.ToleranceOptions{Absolute: cgotorch.Set(1e-5)}) {
				t.Errorf("%v: the experts give other results than dispatched ones", dtype)
			}
		}
	})
}
