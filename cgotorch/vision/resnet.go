package vision

import (
	"fmt"
	"slices"

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

// BottleneckForm is the form of a ResNet of bottlenecks. The zero value is the form of ResNet-50.
type BottleneckForm struct {
	Depths        [4]int // number of blocks of each layer; all 0 means 3, 4, 6 and 3
	Groups        int    // of the 3x3 convolutions; 0 means 1
	WidthPerGroup int    // channels of a group of the 3x3 convolutions of the first layer; 0 means 64
}

// resNetForm is the form of a ResNet for images of ImageNet.
type resNetForm struct {
	block     blockOf
	expansion int // channels of a block's result, divided by the layer's channels
	BottleneckForm
}

// basicResNet returns a function that makes a ResNet of basic blocks.
func basicResNet(depths [4]int) func(x *cgotorch.Exec, where string, o Options) nn.Module {
	return func(x *cgotorch.Exec, where string, o Options) nn.Module {
		return newResNet(x, where, o, resNetForm{newBasicBlock, 1, BottleneckForm{Depths: depths}})
	}
}

// bottleneckResNet returns a function that makes a ResNet of bottlenecks. They have the stride in
// the 3x3 convolution.
func bottleneckResNet(form BottleneckForm) func(x *cgotorch.Exec, where string, o Options) nn.Module {
	return func(x *cgotorch.Exec, where string, o Options) nn.Module {
		return newResNet(x, where, o, resNetForm{newBottleneck, 4, form})
	}
}

// NewBottleneckResNet makes a ResNet of any depth, number of groups and width. The layers of its
// blocks have torchvision's names. Depths of 3, 8, 36 and 3 give resnet152. Depths of 3, 4, 23 and
// 3 with 32 groups of width 8 give resnext101_32x8d. It fails with [cgotorch.ErrInvalidArgument] if
// a number is below 0.
func NewBottleneckResNet(x *cgotorch.Exec, form BottleneckForm, o Options) *ResNet {
	const where = "vision.NewBottleneckResNet"
	if form.Groups < 0 || form.WidthPerGroup < 0 || form.Depths != ([4]int{}) && slices.Min(form.Depths[:]) < 1 {
		x.Fail(where, fmt.Errorf("%+v: want depths from 1 up, and numbers from 0 up: %w", form, cgotorch.ErrInvalidArgument))
	}
	return newResNet(x, where, o, resNetForm{newBottleneck, 4, form})
}

// newResNet20 makes the network of He et al. for 32x32 images. It has three layers of three basic
// blocks, with 16, 32 and 64 channels. Where the size changes, the shortcut is a 1x1 convolution,
// as in torchvision. With PadShortcut the shortcuts have no parameters, as in the paper.
func newResNet20(x *cgotorch.Exec, where string, o Options) nn.Module {
	return build(x, where, o, 10, func(b *builder) *ResNet {
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

func newResNet(x *cgotorch.Exec, where string, o Options, form resNetForm) *ResNet {
	o.PadShortcut = false
	return build(x, where, o, 1000, func(b *builder) *ResNet {
		if form.Depths == ([4]int{}) {
			form.Depths = [4]int{3, 4, 6, 3}
		}
		b.groups = max(form.Groups, 1)
		m := &ResNet{Conv1: b.conv(b.Channels, 64, 7, 2, 1), BN1: b.norm(64)}
		pool := stemPool
		m.MaxPool = &pool
		in := 64
		for i, layer := range []**nn.Sequential{&m.Layer1, &m.Layer2, &m.Layer3, &m.Layer4} {
			channels, stride := 64<<i, min(1+i, 2)
			width := channels
			if form.WidthPerGroup != 0 {
				width = channels * form.WidthPerGroup / 64 * b.groups
			}
			*layer = b.layer(form.block, in, width, channels*form.expansion, form.Depths[i], stride)
			in = channels * form.expansion
		}
		m.FC = b.linear(in, b.Classes)
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
