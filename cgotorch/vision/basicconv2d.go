package vision

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// basicConv2d is a convolution without bias, a batch norm and a ReLU. The batch norm adds 0.001
// to the variance. GoogLeNet and Inception-v3 consist of basicConv2d layers.
type basicConv2d struct {
	Conv *nn.Conv2d
	BN   *nn.BatchNorm2d
}

// Forward maps [N, in, H, W] to [N, out, H', W'] as [nn.Conv2d.Forward] does.
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
	m.BN = nn.NewBatchNorm2d(b.x, out, nn.BatchNormOptions{Eps: cgotorch.Set(0.001)})
	b.made = append(b.made, m.BN)
	return m
}

// convs lists the convolutions of a branch, in order.
type convs []struct {
	name          string
	out           int // number of channels of the result
	height, width int // size of the kernel
	stride        int // with stride 1, padding keeps the size; other strides have no padding
}

// branch makes a branch of an [nn.Parallel]. It consists of the module `first`, if that is not nil,
// and then the convolutions of `list`. The tensors of `first` have names as if `first` belonged to
// the Parallel.
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

// unnamed makes a Parallel whose branches add nothing to the names of their tensors.
func unnamed(branches ...nn.Module) *nn.Parallel {
	m := &nn.Parallel{}
	for _, b := range branches {
		m.Branches = append(m.Branches, nn.Child{Module: b})
	}
	return m
}
