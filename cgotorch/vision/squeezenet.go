package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// SqueezeNet is the small network of Iandola et al., 2016 ("SqueezeNet: AlexNet-level accuracy
// with 50x fewer parameters"), as in torchvision. Images have at least 21x21 pixels in version
// 1.0, and 17x17 pixels in version 1.1. The usual size is 224x224.
type SqueezeNet struct {
	Features   *nn.Sequential // [N, Channels, H, W] to [N, 512, about H/16, about W/16]
	Classifier *nn.Sequential // to [N, Classes, 1, 1]
}

// squeezeNet returns a function that makes a model. Its first convolution has a result of `width`
// channels and a kernel of height and width `kernel`. `fires` lists the layers after the first
// pool. In this list, 0 stands for a pool. A number above 0 stands for a module of type fire. The
// number is the number of channels after the module's first convolution. The result of the module
// has eight times as many channels.
func squeezeNet(width, kernel int, fires []int) func(x *cgotorch.Exec, where string, o Options) nn.Module {
	return func(x *cgotorch.Exec, where string, o Options) nn.Module {
		return newSqueezeNet(x, where, o, width, kernel, fires)
	}
}

func newSqueezeNet(x *cgotorch.Exec, where string, o Options, width, kernel int, fires []int) *SqueezeNet {
	dropout := probability(x, where, "Dropout", o.Dropout, 0.5)
	return build(x, where, o, 1000, func(b *builder) *SqueezeNet {
		pool := &nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), CeilMode: true}
		features := []nn.Module{b.convWith(b.Channels, width, nn.Square(kernel), nn.Conv2dOptions{Stride: nn.Square(2)}), &nn.ReLU{InPlace: true}, pool}
		in := width
		for _, narrow := range fires {
			if narrow == 0 {
				features = append(features, pool)
				continue
			}
			features = append(features, b.fire(in, narrow, 4*narrow))
			in = 8 * narrow
		}
		last := b.convWith(in, b.Classes, nn.Square(1), nn.Conv2dOptions{})
		m := &SqueezeNet{
			Features:   nn.NewSequential(features...),
			Classifier: nn.NewSequential(&nn.Dropout{P: dropout}, last, &nn.ReLU{InPlace: true}, &nn.AdaptiveAvgPool2d{}),
		}
		for _, p := range nn.Parameters(m) {
			switch {
			case p == last.Weight:
				nn.Normal(x, p, 0, 0.01)
			case p.Dim() == 4:
				nn.KaimingUniform(x, p, nn.KaimingOptions{})
			default:
				nn.Constant(x, p, 0)
			}
		}
		return m
	})
}

// Forward maps [N, Channels, H, W] to logits [N, Classes]. Its logits are never negative, because
// a ReLU comes last.
func (m *SqueezeNet) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := nn.CastWeights(x, m)
	defer release()
	return then(x, m.Features.Forward(x, images), m.Classifier, &nn.Flatten{})
}

// Fuse implements [nn.Fusible].
func (m *SqueezeNet) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Features, m.Classifier, &nn.Flatten{})
}

// fire is a 1x1 convolution that reduces the number of channels, and then two parallel
// convolutions that increase it, 1x1 and 3x3. It concatenates the channels of these two.
type fire struct {
	Squeeze     *nn.Conv2d
	nn.Parallel // the branches expand1x1 and expand3x3
}

// fire makes a module of type fire. The result of its first convolution has `narrow` channels. The
// results of the two parallel convolutions have `width` channels each.
func (b *builder) fire(in, narrow, width int) *fire {
	expand := func(name string, kernel int) *nn.Sequential {
		conv := b.convWith(narrow, width, nn.Square(kernel), nn.Conv2dOptions{Padding: nn.Square(kernel / 2)})
		return &nn.Sequential{Modules: []nn.Child{{Name: name, Module: conv}, {Module: &nn.ReLU{InPlace: true}}}}
	}
	m := &fire{Squeeze: b.convWith(in, narrow, nn.Square(1), nn.Conv2dOptions{})}
	m.Branches = unnamed(expand("expand1x1", 1), expand("expand3x3", 3)).Branches
	return m
}

// Forward maps [N, in, H, W] to [N, out, H, W].
func (m *fire) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := m.Squeeze.Forward(x, in)
	rectify(x, out)
	return then(x, out, &m.Parallel)
}

// Fuse implements [nn.Fusible].
func (m *fire) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Squeeze, &nn.ReLU{}, &m.Parallel)
}
