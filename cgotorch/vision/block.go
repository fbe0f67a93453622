package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// basicBlock has two 3x3 convolutions and a shortcut.
type basicBlock struct {
	Conv1      *nn.Conv2d
	BN1        *nn.BatchNorm2d
	Conv2      *nn.Conv2d
	BN2        *nn.BatchNorm2d
	Downsample nn.Module // the shortcut; nil means the input itself
}

func newBasicBlock(b *builder, in, width, out, stride int) nn.Module {
	downsample := b.shortcut(in, out, stride)
	return &basicBlock{
		Conv1: b.conv(in, width, 3, stride, 1), BN1: b.norm(width),
		Conv2: b.conv(width, out, 3, 1, 1), BN2: b.norm(out),
		Downsample: downsample,
	}
}

func (m *basicBlock) residual() *nn.Residual {
	return residual(m.Downsample, m.Conv1, m.BN1, &nn.ReLU{}, m.Conv2, m.BN2)
}

// Forward maps [N, in, H, W] to [N, out, H/stride, W/stride].
func (m *basicBlock) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.residual().Forward(x, in)
}

// Fuse implements [nn.Fusible].
func (m *basicBlock) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module { return f.Fuse(x, m.residual()) }

// bottleneck has a 3x3 convolution between two 1x1 convolutions, and a shortcut. The 3x3
// convolution has the stride.
type bottleneck struct {
	Conv1      *nn.Conv2d
	BN1        *nn.BatchNorm2d
	Conv2      *nn.Conv2d
	BN2        *nn.BatchNorm2d
	Conv3      *nn.Conv2d
	BN3        *nn.BatchNorm2d
	Downsample nn.Module // the shortcut; nil means the input itself
}

func newBottleneck(b *builder, in, width, out, stride int) nn.Module {
	downsample := b.shortcut(in, out, stride)
	return &bottleneck{
		Conv1: b.conv(in, width, 1, 1, 1), BN1: b.norm(width),
		Conv2: b.conv(width, width, 3, stride, b.groups), BN2: b.norm(width),
		Conv3: b.conv(width, out, 1, 1, 1), BN3: b.norm(out),
		Downsample: downsample,
	}
}

func (m *bottleneck) residual() *nn.Residual {
	return residual(m.Downsample, m.Conv1, m.BN1, &nn.ReLU{}, m.Conv2, m.BN2, &nn.ReLU{}, m.Conv3, m.BN3)
}

// Forward maps [N, in, H, W] to [N, out, H/stride, W/stride].
func (m *bottleneck) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.residual().Forward(x, in)
}

// Fuse implements [nn.Fusible].
func (m *bottleneck) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module { return f.Fuse(x, m.residual()) }

func residual(downsample nn.Module, body ...nn.Module) *nn.Residual {
	return &nn.Residual{Body: nn.NewSequential(body...), Shortcut: downsample, Activation: &nn.ReLU{}}
}

// shortcut returns the module of a block's shortcut, or nil if the input has the shape of the
// result. Call `shortcut` before the block's own layers are made. torchvision makes the shortcut
// first too, so the random numbers are the same.
func (b *builder) shortcut(in, out, stride int) nn.Module {
	switch {
	case stride == 1 && in == out:
		return nil
	case b.PadShortcut:
		return &padShortcut{channels: out - in, stride: stride}
	}
	return nn.NewSequential(b.conv(in, out, 1, stride, 1), b.norm(out))
}

// padShortcut takes every stride-th pixel and adds channels of zeros. Half of the new channels
// come before the old channels, and half after them.
type padShortcut struct{ channels, stride int }

func (m *padShortcut) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	rows := x.Slice(in, 2, cgotorch.SliceOptions{Step: m.stride})
	pixels := x.Slice(rows, 3, cgotorch.SliceOptions{Step: m.stride})
	before := int64(m.channels / 2)
	out := x.Pad(pixels, []int64{0, 0, 0, 0, before, int64(m.channels) - before}, cgotorch.PadOptions{})
	rows.Close()
	pixels.Close()
	return out
}

// Fuse implements [nn.Fusible].
func (m *padShortcut) Fuse(*cgotorch.Exec, *nn.Fusion) nn.Module { return m }
