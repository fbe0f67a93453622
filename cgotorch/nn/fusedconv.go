package nn

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/convrelu"
)

// activation names the function that a [fusedConv2d] applies to each value of its result.
type activation string

// These are the values of activation.
const (
	noActivation  activation = ""
	activateReLU  activation = "relu"  // like [ReLU]
	activateReLU6 activation = "relu6" // like [ReLU6]
)

// fusedConv2d is a convolution and an activation, for inference. [Fuse] makes it of a
// convolution, the batch norms after it and a ReLU or ReLU6.
//
// On CUDA a convolution with ReLU is one operator of cuDNN, in float32, float16 and bfloat16. In
// all other cases the activation is a second operator that works in place. Two of these cases are
// autocast, which cuDNN's operator ignores, and groups, for which LibTorch has its own kernels.
type fusedConv2d struct {
	Conv2d
	Activation activation
}

// Forward maps [N, in, H, W] to [N, out, H', W'] as [Conv2d.Forward] does. It records nothing for
// backward.
func (m *fusedConv2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.forward(x.NoGrad(), in, nil)
}

// ForwardAdd does what Forward does, and adds z to the convolution's result before the
// activation. It does not change z, and records nothing for backward.
func (m *fusedConv2d) ForwardAdd(x *cgotorch.Exec, in, z *cgotorch.Tensor) *cgotorch.Tensor {
	return m.forward(x.NoGrad(), in, z)
}

// forward computes the convolution, adds z, and then applies the activation. If z is nil, it adds
// nothing.
func (m *fusedConv2d) forward(x *cgotorch.Exec, in, z *cgotorch.Tensor) *cgotorch.Tensor {
	if out := m.atOnce(x, in, z); out != nil {
		return out
	}
	out := m.Conv2d.Forward(x, in)
	if z != nil {
		out = addTo(x, out, z)
	}
	switch m.Activation {
	case noActivation:
	case activateReLU:
		x.ReLUInPlace(out).Close()
	case activateReLU6:
		x.ReLU6InPlace(out).Close()
	default:
		refuse(x, "nn.fusedConv2d", "Activation is %q, want relu, relu6 or nothing", m.Activation)
	}
	return out
}

// addTo returns t + z and closes t. The sum is in t's memory if it has t's dtype and shape.
func addTo(x *cgotorch.Exec, t, z *cgotorch.Tensor) *cgotorch.Tensor {
	defer t.Close()
	if t.DType() == z.DType() && slices.Equal(t.Shape(), z.Shape()) {
		return x.AddInPlace(t, z)
	}
	return x.Add(t, z)
}

// atOnce does the work of the method `forward` with one operator of cuDNN. If the operator does
// not fit, atOnce returns nil.
func (m *fusedConv2d) atOnce(x *cgotorch.Exec, in, z *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Activation != activateReLU || m.Groups > 1 || !convrelu.Fits(x, in, m.Weight) {
		return nil
	}
	padded, zeros := m.pad(x, in)
	defer closeUnless(in, padded)
	return convrelu.Forward(x, padded, m.Weight, m.Bias, z, ints(cmp.Or(m.Stride, Square(1))), ints(zeros), ints(cmp.Or(m.Dilation, Square(1))))
}
