package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// basicConv2d is a convolution without bias, a batch norm with 0.001 added to the variance, and a
// ReLU. GoogLeNet and Inception-v3 consist of such layers.
type basicConv2d struct {
	Conv *nn.Conv2d
	BN   *nn.BatchNorm2d
}

// Forward maps [N, in, H, W] to [N, out, H', W'] as [nn.Conv2d] does.
func (m *basicConv2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out := then(x, m.Conv.Forward(x, in), m.BN)
	rectify(x, out)
	return out
}

// Fuse implements [nn.Fusible].
func (m *basicConv2d) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
	return f.Fuse(x, m.Conv, m.BN, &nn.ReLU{})
}

func (b *builder) basicConv(in, out int, kernel nn.Size, o nn.Conv2dOptions) *basicConv2d {
	o.NoBias = true
	m := &basicConv2d{Conv: b.convWith(in, out, kernel, o)}
	m.BN = nn.NewBatchNorm2d(b.x, out, nn.BatchNorm2dOptions{Eps: cgotorch.Set(0.001)})
	b.made = append(b.made, m.BN)
	return m
}

// convs are the convolutions of a branch, in order.
type convs []struct {
	name          string
	out           int // channels
	height, width int // of the kernel
	stride        int // 1 pads to keep the size; other strides do not pad
}

// branch is a branch of an [nn.Parallel]: first, if it is not nil, then convolutions. Their names
// are as if they were the Parallel's own.
func (b *builder) branch(in int, first nn.Module, list convs) *nn.Sequential {
	m := &nn.Sequential{}
	if first != nil {
		m.Modules = append(m.Modules, nn.Child{Module: first})
	}
	for _, c := range list {
		o := nn.Conv2dOptions{Stride: nn.Square(c.stride)}
		if c.stride == 1 {
			o.Padding = nn.Size{c.height / 2, c.width / 2}
		}
		m.Modules = append(m.Modules, nn.Child{Name: c.name, Module: b.basicConv(in, c.out, nn.Size{c.height, c.width}, o)})
		in = c.out
	}
	return m
}

// unnamed is a Parallel whose branches add nothing to the names of their tensors.
func unnamed(branches ...nn.Module) *nn.Parallel {
	m := &nn.Parallel{}
	for _, b := range branches {
		m.Branches = append(m.Branches, nn.Child{Module: b})
	}
	return m
}
