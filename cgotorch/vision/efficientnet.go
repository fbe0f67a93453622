package vision

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// EfficientNet is the network of Tan and Le, 2019, as in torchvision. Its blocks are inverted
// residuals with a squeeze and excitation.
type EfficientNet struct {
	Features   *nn.Sequential
	Classifier *nn.Sequential
}

// scaled lists the stages of EfficientNet-B0. Each stage has five numbers. The first is the
// number of channels inside a block, divided by the number of channels of the block's input. The
// others are the kernel's size, the first block's stride, the number of channels of the result,
// and the number of blocks.
var scaled = [][5]int{{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2}, {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1}}

func newEfficientNetB0(x *cgotorch.Exec, where string, o Options) nn.Module {
	dropout := probability(x, where, "Dropout", o.Dropout, 0.2)
	depth := probability(x, where, "StochasticDepth", o.StochasticDepth, 0.2)
	return build(x, where, o, 1000, func(b *builder) *EfficientNet {
		blocks := 0
		for _, stage := range scaled {
			blocks += stage[4]
		}
		in, made := 32, 0
		features := []nn.Module{b.convNormSiLU(b.Channels, in, 3, 2, 1)}
		for _, stage := range scaled {
			var layers []nn.Module
			for i := range stage[4] {
				stride := 1
				if i == 0 {
					stride = stage[2]
				}
				layers = append(layers, b.mbConv(in, stage[3], stage[1], stride, stage[0], depth*float64(made)/float64(blocks)))
				in, made = stage[3], made+1
			}
			features = append(features, nn.NewSequential(layers...))
		}
		last := 4 * in
		features = append(features, b.convNormSiLU(in, last, 1, 1, 1))
		head := b.linear(last, b.Classes)
		m := &EfficientNet{Features: nn.NewSequential(features...), Classifier: nn.NewSequential(&nn.Dropout{P: dropout}, head)}
		m.Features.Recompute = b.Recompute
		b.redrawConvolutions(m)
		bound := 1 / math.Sqrt(float64(b.Classes))
		nn.Uniform(x, head.Weight, -bound, bound)
		nn.Constant(x, head.Bias, 0)
		return m
	})
}

func (b *builder) convNormSiLU(in, out, kernel, stride, groups int) *nn.Sequential {
	return b.convNorm(in, out, kernel, stride, groups, &nn.SiLU{})
}

// Forward maps [N, Channels, H, W] to logits [N, Classes].
func (m *EfficientNet) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := nn.CastWeights(x, m)
	defer release()
	out := m.Features.Forward(x, images)
	return then(x, out, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.Classifier)
}

// Fuse implements [nn.Fusible].
func (m *EfficientNet) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Features, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.Classifier)
}

// mbConv is an inverted residual with a squeeze and excitation before its last convolution.
type mbConv struct {
	Block    *nn.Sequential
	Shortcut bool // whether the input is added to the result
	Drop     *nn.StochasticDepth
}

func (b *builder) mbConv(in, out, kernel, stride, expansion int, drop float64) *mbConv {
	hidden := roundToEight(float64(in * expansion))
	var layers []nn.Module
	if hidden != in {
		layers = append(layers, b.convNormSiLU(in, hidden, 1, 1, 1))
	}
	layers = append(layers, b.convNormSiLU(hidden, hidden, kernel, stride, hidden), b.squeeze(hidden, max(1, in/4)),
		b.convNorm(hidden, out, 1, 1, 1, nil))
	return &mbConv{Block: nn.NewSequential(layers...), Shortcut: stride == 1 && in == out, Drop: &nn.StochasticDepth{P: drop}}
}

// Forward maps [N, in, H, W] to [N, out, H/stride, W/stride].
func (m *mbConv) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := m.Block.Forward(x, in)
	if !m.Shortcut {
		return out
	}
	kept := then(x, out, m.Drop)
	sum := x.Add(kept, in)
	kept.Close()
	return sum
}

// Fuse implements [nn.Fusible].
func (m *mbConv) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	if !m.Shortcut {
		return f.Fuse(x, m.Block)
	}
	return f.Fuse(x, &nn.Residual{Body: m.Block})
}

// squeezeExcitation multiplies each channel by a number between 0 and 1, which two 1x1
// convolutions compute from the means of all channels.
type squeezeExcitation struct {
	FC1, FC2 nn.Module
	Unfused  bool // use LibTorch's operators only; see [nn.SetFused]
}

// squeeze makes a squeezeExcitation with `hidden` channels between its two convolutions.
func (b *builder) squeeze(channels, hidden int) *squeezeExcitation {
	down, up := b.convWith(channels, hidden, nn.Square(1), nn.Conv2dOptions{}), b.convWith(hidden, channels, nn.Square(1), nn.Conv2dOptions{})
	nn.Constant(b.x, down.Bias, 0)
	nn.Constant(b.x, up.Bias, 0)
	return &squeezeExcitation{FC1: down, FC2: up}
}

// Forward returns a tensor of the shape of `in`.
func (m *squeezeExcitation) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	// The gradient of LibTorch's mean is a view. Here it is added to that of the product and never
	// written, as nn.AdaptiveAvgPool2d writes it.
	scale := then(x, x.AdaptiveAvgPool2d(in, []int64{1, 1}), m.FC1, &nn.SiLU{}, m.FC2, &nn.Sigmoid{})
	defer scale.Close()
	if m.Unfused {
		return x.Mul(scale, in)
	}
	return x.Call1("streamtorch::scale_channels", in, scale)
}

// Fuse implements [nn.Fusible].
func (m *squeezeExcitation) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return &squeezeExcitation{f.Fuse(x, m.FC1), f.Fuse(x, m.FC2), m.Unfused}
}
