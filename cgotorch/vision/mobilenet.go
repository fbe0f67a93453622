package vision

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// MobileNetV2 is the network of inverted residuals of Sandler et al., 2018, as in torchvision.
type MobileNetV2 struct {
	Features   *nn.Sequential
	Classifier *nn.Sequential
}

// inverted lists the stages of MobileNetV2. Each stage has four numbers. The first is the number
// of channels inside a block, divided by the number of channels of the block's input. The others
// are the number of channels of the result, the number of blocks, and the stride of the first
// block.
var inverted = [][4]int{{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}}

func newMobileNetV2(x *cgotorch.Exec, where string, o Options) nn.Module {
	if o.Width == 0 {
		o.Width = 1
	}
	dropout := o.Dropout.Or(0.2)
	if !(o.Width > 0 && o.Width <= 100) || !(dropout >= 0 && dropout <= 1) {
		x.Fail(where, fmt.Errorf("Width is %v, want more than 0 and at most 100; Dropout is %v, want from 0 to 1: %w", o.Width, dropout, cgotorch.ErrInvalidArgument))
	}
	return build(x, where, o, 1000, func(b *builder) *MobileNetV2 {
		in := roundToEight(32 * o.Width)
		features := []nn.Module{b.convNormReLU6(b.Channels, in, 3, 2, 1)}
		for _, stage := range inverted {
			out := roundToEight(float64(stage[1]) * o.Width)
			for i := range stage[2] {
				stride := 1
				if i == 0 {
					stride = stage[3]
				}
				features = append(features, b.invertedResidual(in, out, stride, stage[0]))
				in = out
			}
		}
		last := roundToEight(1280 * max(1, o.Width))
		features = append(features, b.convNormReLU6(in, last, 1, 1, 1))
		head := b.linear(last, b.Classes)
		m := &MobileNetV2{
			Features:   nn.NewSequential(features...),
			Classifier: nn.NewSequential(&nn.Dropout{P: dropout}, head),
		}
		m.Features.Recompute = b.Recompute
		b.redrawConvolutions(m)
		nn.Normal(x, head.Weight, 0, 0.01)
		nn.Constant(x, head.Bias, 0)
		return m
	})
}

// roundToEight returns the multiple of 8 that is nearest to n. If that multiple is below nine
// tenths of n, it returns the next multiple of 8. The result is at least 8.
func roundToEight(n float64) int {
	rounded := max(8, int(n+4)/8*8)
	if float64(rounded) < 0.9*n {
		rounded += 8
	}
	return rounded
}

func (b *builder) convNormReLU6(in, out, kernel, stride, groups int) *nn.Sequential {
	return b.convNorm(in, out, kernel, stride, groups, &nn.ReLU6{InPlace: true})
}

// Forward maps [N, Channels, H, W] to logits [N, Classes].
func (m *MobileNetV2) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := nn.CastWeights(x, m)
	defer release()
	out := m.Features.Forward(x, images)
	return then(x, out, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.Classifier)
}

// Fuse implements [nn.Fusible].
func (m *MobileNetV2) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Features, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.Classifier)
}

// invertedResidual is a depthwise convolution between two 1x1 convolutions. The first 1x1
// convolution adds channels.
type invertedResidual struct {
	Conv     *nn.Sequential
	Shortcut bool // whether the input is added to the result
}

func (b *builder) invertedResidual(in, out, stride, expansion int) *invertedResidual {
	hidden := in * expansion
	var layers []nn.Module
	if expansion != 1 {
		layers = append(layers, b.convNormReLU6(in, hidden, 1, 1, 1))
	}
	layers = append(layers, b.convNormReLU6(hidden, hidden, 3, stride, hidden), b.conv(hidden, out, 1, 1, 1), b.norm(out))
	return &invertedResidual{Conv: nn.NewSequential(layers...), Shortcut: stride == 1 && in == out}
}

// Forward maps [N, in, H, W] to [N, out, H/stride, W/stride].
func (m *invertedResidual) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if !m.Shortcut {
		return m.Conv.Forward(x, in)
	}
	return (&nn.Residual{Body: m.Conv}).Forward(x, in)
}

// Fuse implements [nn.Fusible].
func (m *invertedResidual) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	if !m.Shortcut {
		return f.Fuse(x, m.Conv)
	}
	return f.Fuse(x, &nn.Residual{Body: m.Conv})
}
