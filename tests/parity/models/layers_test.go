package models_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

type layerFixture struct {
	State         []stateEntry
	Input         []int64 // the shape
	Output        shaped
	Gradients     []digest
	InputGradient *digest   `json:"input_gradient"`
	Buffers       []float64 // for each buffer the sum of the magnitudes, after the step
}

const layerSeed = 20 // the seed in make.py

// The map `layers` has the same layers as LAYERS in make.py.
var layers = map[string]func(x *cgotorch.Exec) nn.Module{
	"linear":         func(x *cgotorch.Exec) nn.Module { return nn.NewLinear(x, 5, 3, nn.LinearOptions{}) },
	"linear_no_bias": func(x *cgotorch.Exec) nn.Module { return nn.NewLinear(x, 5, 3, nn.LinearOptions{NoBias: true}) },

	"linear_truncated": func(x *cgotorch.Exec) nn.Module {
		m := nn.NewLinear(x, 5, 3, nn.LinearOptions{})
		nn.TruncatedNormal(x, m.Weight, 0.2, 1.5, -1, 0.75)
		return m
	},

	"conv2d": func(x *cgotorch.Exec) nn.Module { return nn.NewConv2d(x, 3, 4, nn.Square(3), nn.Conv2dOptions{}) },
	"conv2d_rectangular": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConv2d(x, 3, 4, nn.Size{3, 5}, nn.Conv2dOptions{Stride: nn.Size{2, 1}, Padding: nn.Size{1, 2}})
	},
	"conv2d_dilated": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConv2d(x, 2, 3, nn.Square(3), nn.Conv2dOptions{Dilation: nn.Size{2, 1}, NoBias: true})
	},
	"conv2d_groups": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConv2d(x, 6, 9, nn.Square(3), nn.Conv2dOptions{Groups: 3, Padding: nn.Square(1)})
	},
	"conv2d_depthwise": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConv2d(x, 4, 8, nn.Square(3), nn.Conv2dOptions{Groups: 4, Stride: nn.Square(2)})
	},
	"conv2d_reflect":   paddedConv("reflect", 0),
	"conv2d_replicate": paddedConv("replicate", 0),
	"conv2d_circular":  paddedConv("circular", 2),

	"conv_transpose2d": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConvTranspose2d(x, 3, 4, nn.Square(3), nn.ConvTranspose2dOptions{})
	},
	"conv_transpose2d_options": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConvTranspose2d(x, 4, 6, nn.Size{3, 2}, nn.ConvTranspose2dOptions{
			Stride: nn.Size{2, 3}, Padding: nn.Size{1, 0}, OutputPadding: nn.Size{1, 2}, Groups: 2, Dilation: nn.Size{2, 1},
		})
	},
	"conv_transpose2d_no_bias": func(x *cgotorch.Exec) nn.Module {
		return nn.NewConvTranspose2d(x, 3, 4, nn.Square(2), nn.ConvTranspose2dOptions{Stride: nn.Square(2), NoBias: true})
	},

	"batch_norm2d":               batchNorm(nn.BatchNormOptions{}, true),
	"batch_norm2d_eval":          batchNorm(nn.BatchNormOptions{}, false),
	"batch_norm2d_options":       batchNorm(nn.BatchNormOptions{Eps: cgotorch.Set(0.1), Momentum: cgotorch.Set(0.3)}, true),
	"batch_norm2d_momentum_zero": batchNorm(nn.BatchNormOptions{Momentum: cgotorch.Set(0.0)}, true),
	"batch_norm2d_cumulative":    batchNorm(nn.BatchNormOptions{CumulativeAverage: true}, true),
	"batch_norm2d_no_affine":     batchNorm(nn.BatchNormOptions{NoAffine: true}, true),
	"batch_norm2d_no_statistics": batchNorm(nn.BatchNormOptions{NoStatistics: true}, false),

	"layer_norm":           layerNorm(nn.LayerNormOptions{}, 6),
	"layer_norm_two":       layerNorm(nn.LayerNormOptions{Eps: cgotorch.Set(0.1)}, 3, 6),
	"layer_norm_no_affine": layerNorm(nn.LayerNormOptions{NoAffine: true}, 6),
	"layer_norm_no_bias":   layerNorm(nn.LayerNormOptions{NoBias: true}, 6),

	"embedding":               embedding(nn.EmbeddingOptions{}),
	"embedding_padding":       embedding(nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(-6)}),
	"embedding_padding_first": embedding(nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(0)}),

	"relu": is(&nn.ReLU{}),
	"relu_in_place": func(x *cgotorch.Exec) nn.Module {
		return nn.NewSequential(nn.NewLinear(x, 5, 3, nn.LinearOptions{}), &nn.ReLU{InPlace: true})
	},
	"relu6": func(x *cgotorch.Exec) nn.Module {
		return nn.NewSequential(nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{}), &nn.ReLU6{})
	},
	"silu":                       is(&nn.SiLU{}),
	"multihead_attention":        attention(nn.AttentionOptions{}),
	"multihead_attention_causal": attention(nn.AttentionOptions{Causal: true}),
	"stochastic_depth":           is(&nn.StochasticDepth{P: 0.4}),

	"leaky_relu":       is(&nn.LeakyReLU{}),
	"leaky_relu_slope": is(&nn.LeakyReLU{NegativeSlope: 0.2}),
	"sigmoid":          is(&nn.Sigmoid{}),
	"tanh":             is(&nn.Tanh{}),
	"gelu":             is(&nn.GELU{}),
	"gelu_tanh":        is(&nn.GELU{Tanh: true}),
	"hard_swish":       is(&nn.HardSwish{}),

	"max_pool2d": is(&nn.MaxPool2d{Kernel: nn.Square(2)}),
	"max_pool2d_options": is(&nn.MaxPool2d{
		Kernel: nn.Size{3, 2}, Stride: nn.Size{2, 1}, Padding: nn.Size{1, 0}, Dilation: nn.Size{1, 2}, CeilMode: true,
	}),
	"avg_pool2d": is(&nn.AvgPool2d{Kernel: nn.Square(2)}),
	"avg_pool2d_options": is(&nn.AvgPool2d{
		Kernel: nn.Size{3, 2}, Stride: nn.Size{2, 1}, Padding: nn.Square(1), CeilMode: true, ExcludePadding: true,
	}),
	"avg_pool2d_divisor":       is(&nn.AvgPool2d{Kernel: nn.Square(2), Padding: nn.Square(1), Divisor: 3}),
	"adaptive_avg_pool2d":      is(&nn.AdaptiveAvgPool2d{}),
	"adaptive_avg_pool2d_size": is(&nn.AdaptiveAvgPool2d{Output: nn.Size{2, 3}}),

	"flatten":        is(&nn.Flatten{}),
	"flatten_middle": is(&nn.Flatten{Start: 2, End: 3}),
	"dropout":        is(&nn.Dropout{P: 0.3}),
	"dropout_eval":   is(&nn.Dropout{P: 0.3, Eval: true}),
	"identity":       is(&nn.Identity{}),
	"sequential": func(x *cgotorch.Exec) nn.Module {
		return nn.NewSequential(nn.NewLinear(x, 5, 4, nn.LinearOptions{}), &nn.Tanh{}, nn.NewLinear(x, 4, 3, nn.LinearOptions{}))
	},
}

func is(m nn.Module) func(x *cgotorch.Exec) nn.Module {
	return func(*cgotorch.Exec) nn.Module { return m }
}

func paddedConv(mode string, stride int) func(x *cgotorch.Exec) nn.Module {
	return func(x *cgotorch.Exec) nn.Module {
		return nn.NewConv2d(x, 2, 3, nn.Square(3), nn.Conv2dOptions{Padding: nn.Size{1, 2}, Stride: nn.Square(stride), PaddingMode: mode})
	}
}

func batchNorm(o nn.BatchNormOptions, training bool) func(x *cgotorch.Exec) nn.Module {
	return func(x *cgotorch.Exec) nn.Module {
		m := nn.NewBatchNorm2d(x, 3, o)
		nn.SetTraining(m, training)
		return m
	}
}

func attention(o nn.AttentionOptions) func(x *cgotorch.Exec) nn.Module {
	return func(x *cgotorch.Exec) nn.Module { return nn.NewMultiheadAttention(x, 6, 2, o) }
}

func layerNorm(o nn.LayerNormOptions, shape ...int64) func(x *cgotorch.Exec) nn.Module {
	return func(x *cgotorch.Exec) nn.Module { return nn.NewLayerNorm(x, shape, o) }
}

func embedding(o nn.EmbeddingOptions) func(x *cgotorch.Exec) nn.Module {
	return func(x *cgotorch.Exec) nn.Module { return nn.NewEmbedding(x, 7, 4, o) }
}

func TestLayers_EqualPyTorch(t *testing.T) {
	var fixtures map[string]layerFixture
	readFixture(t, "layers", &fixtures)
	if got, want := slices.Sorted(maps.Keys(layers)), slices.Sorted(maps.Keys(fixtures)); !slices.Equal(got, want) {
		t.Fatalf("the layers here are\n%v\nand in the fixture\n%v", got, want)
	}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		want := fixtures[name]
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				if (name == "dropout" || name == "stochastic_depth") && d.IsCUDA() {
					t.Skip("another device draws other numbers")
				}
				var m nn.Module
				torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) {
					seed(t, layerSeed)
					m = layers[name](x)
					checkState(t, x, m, want.State)
				})
				defer nn.Close(m)
				torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
					nn.To(x, m, nn.ToOptions{})
					want.checkStep(t, x, m)
				})
			})
		})
	}
}

func (f *layerFixture) checkStep(t *testing.T, x *cgotorch.Exec, m nn.Module) {
	const tolerance = 1e-5
	var in *cgotorch.Tensor
	if f.InputGradient == nil {
		in = cgotorch.FromSlice(x, []int64{1, 6, 3, 0, 1, 1}, f.Input...)
	} else {
		in = ramp(x, f.Input...)
		must.Do(t, in.SetRequiresGrad(true))
	}
	seed(t, layerSeed+1)
	before := cgotorch.LiveHandles()["tensor"]
	out := m.Forward(x, in)
	if got := cgotorch.LiveHandles()["tensor"] - before; got != 1 {
		t.Errorf("%d handles after Forward, want 1", got)
	}
	if !slices.Equal(out.Shape(), f.Output.Shape) {
		t.Fatalf("the result is %v, want shape %v", out, f.Output.Shape)
	}
	if got := digestOf(x, out); !got.near(f.Output.Digest, tolerance) {
		t.Errorf("the result is %v, want %v", got, f.Output.Digest)
	}
	if in.Closed() {
		t.Error("Forward closed its input")
	}
	x.Backward(x.Sum(x.Mul(out, x.Square(rampFrom(x, 1000, f.Output.Shape...)))))
	for i, p := range nn.NamedParameters(m) {
		if got := digestOf(x, p.Tensor.Grad()); !got.near(f.Gradients[i], tolerance) {
			t.Errorf("the gradient of %s is %v, want %v", p.Name, got, f.Gradients[i])
		}
	}
	if f.InputGradient != nil {
		if got := digestOf(x, in.Grad()); !got.near(*f.InputGradient, tolerance) {
			t.Errorf("the gradient of the input is %v, want %v", got, *f.InputGradient)
		}
	}
	var buffers []float64
	for _, n := range nn.State(m) {
		if n.Buffer {
			buffers = append(buffers, digestOf(x, n.Tensor)[1])
		}
	}
	if distance(buffers, f.Buffers) > tolerance {
		t.Errorf("the buffers are then %v, want %v", buffers, f.Buffers)
	}
}
