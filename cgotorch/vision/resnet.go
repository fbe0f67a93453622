package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// ResNet is a residual network (He et al., 2015). It has torchvision's form, or the smaller form
// for images of CIFAR.
type ResNet struct {
	Conv1   *nn.Conv2d
	BN1     *nn.BatchNorm2d
	MaxPool *nn.MaxPool2d // nil in the form for CIFAR
	Layer1  *nn.Sequential
	Layer2  *nn.Sequential
	Layer3  *nn.Sequential
	Layer4  *nn.Sequential // nil in the form for CIFAR
	FC      *nn.Linear
}

// NewResNet18 makes torchvision's resnet18. It has 11,689,512 parameters.
func NewResNet18(x *cgotorch.Exec, o Options) *ResNet {
	return newResNet(x, "vision.NewResNet18", o, newBasicBlock, 1, [4]int{2, 2, 2, 2})
}

// NewResNet34 makes torchvision's resnet34. It has 21,797,672 parameters.
func NewResNet34(x *cgotorch.Exec, o Options) *ResNet {
	return newResNet(x, "vision.NewResNet34", o, newBasicBlock, 1, [4]int{3, 4, 6, 3})
}

// NewResNet50 makes torchvision's resnet50. It has 25,557,032 parameters. Its blocks have the
// stride in the 3x3 convolution.
func NewResNet50(x *cgotorch.Exec, o Options) *ResNet {
	return newResNet(x, "vision.NewResNet50", o, newBottleneck, 4, [4]int{3, 4, 6, 3})
}

// NewResNet101 makes torchvision's resnet101. It has 44,549,160 parameters.
func NewResNet101(x *cgotorch.Exec, o Options) *ResNet {
	return newResNet(x, "vision.NewResNet101", o, newBottleneck, 4, [4]int{3, 4, 23, 3})
}

// NewResNet20 makes the network of He et al. for 32x32 images. It has three layers of three basic
// blocks, with 16, 32 and 64 channels. Where the size changes, the shortcut is a 1x1 convolution,
// as in torchvision. The model then has 272,474 parameters. With PadShortcut the shortcuts have
// no parameters, as in the paper. The model then has 269,722 parameters.
func NewResNet20(x *cgotorch.Exec, o Options) *ResNet {
	return build(x, "vision.NewResNet20", o, 10, func(b *builder) *ResNet {
		m := &ResNet{Conv1: b.conv(b.Channels, 16, 3, 1, 1), BN1: b.norm(16)}
		m.Layer1 = b.layer(newBasicBlock, 16, 16, 16, 3, 1)
		m.Layer2 = b.layer(newBasicBlock, 16, 32, 32, 3, 2)
		m.Layer3 = b.layer(newBasicBlock, 32, 64, 64, 3, 2)
		m.FC = b.linear(64, b.Classes)
		b.finishResNet(m)
		return m
	})
}

// blockOf makes one block. `width` is the number of channels between the block's convolutions.
type blockOf func(b *builder, in, width, out, stride int) nn.Module

func newResNet(x *cgotorch.Exec, where string, o Options, block blockOf, expansion int, depths [4]int) *ResNet {
	o.PadShortcut = false
	return build(x, where, o, 1000, func(b *builder) *ResNet {
		m := &ResNet{Conv1: b.conv(b.Channels, 64, 7, 2, 1), BN1: b.norm(64)}
		pool := stemPool
		m.MaxPool = &pool
		m.Layer1 = b.layer(block, 64, 64, 64*expansion, depths[0], 1)
		m.Layer2 = b.layer(block, 64*expansion, 128, 128*expansion, depths[1], 2)
		m.Layer3 = b.layer(block, 128*expansion, 256, 256*expansion, depths[2], 2)
		m.Layer4 = b.layer(block, 256*expansion, 512, 512*expansion, depths[3], 2)
		m.FC = b.linear(512*expansion, b.Classes)
		b.finishResNet(m)
		return m
	})
}

func (b *builder) layer(block blockOf, in, width, out, depth, stride int) *nn.Sequential {
	blocks := []nn.Module{block(b, in, width, out, stride)}
	for len(blocks) < depth {
		blocks = append(blocks, block(b, out, width, out, 1))
	}
	layer := nn.NewSequential(blocks...)
	layer.Recompute = b.Recompute
	return layer
}

// finishResNet sets the initial weights of the convolutions and batch norms as torchvision does.
func (b *builder) finishResNet(m *ResNet) {
	b.redrawConvolutions(m)
	if !b.ZeroInitResidual {
		return
	}
	for _, layer := range []*nn.Sequential{m.Layer1, m.Layer2, m.Layer3, m.Layer4} {
		if layer == nil {
			continue
		}
		for _, c := range layer.Modules {
			switch block := c.Module.(type) {
			case *basicBlock:
				nn.Constant(b.x, block.BN2.Weight, 0)
			case *bottleneck:
				nn.Constant(b.x, block.BN3.Weight, 0)
			}
		}
	}
}

// stemPool is the pooling that [nn.NormReLUMaxPool] does.
var stemPool = nn.MaxPool2d{Kernel: nn.Square(3), Stride: nn.Square(2), Padding: nn.Square(1)}

// Forward maps [N, Channels, H, W] to logits [N, Classes].
func (m *ResNet) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	x, release := nn.CastWeights(x, m)
	defer release()
	conv := m.Conv1.Forward(x, images)
	var out *cgotorch.Tensor
	switch {
	case m.MaxPool == nil:
		out = nn.NormReLU(x, m.BN1, conv)
	case *m.MaxPool == stemPool:
		out = nn.NormReLUMaxPool(x, m.BN1, conv)
	default:
		out = then(x, nn.NormReLU(x, m.BN1, conv), m.MaxPool)
	}
	conv.Close()
	for _, layer := range []*nn.Sequential{m.Layer1, m.Layer2, m.Layer3, m.Layer4} {
		if layer != nil {
			out = then(x, out, layer)
		}
	}
	return then(x, out, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.FC)
}

// Fuse implements [nn.Fusible].
func (m *ResNet) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Conv1, m.BN1, &nn.ReLU{}, m.MaxPool, m.Layer1, m.Layer2, m.Layer3, m.Layer4, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, m.FC)
}
