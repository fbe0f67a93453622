package nn

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
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

// The method `forward` computes the convolution, adds z, and then applies the activation. If z is
// nil, it adds nothing.
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
// not fit, atOnce returns nil. The operator does not fit under autocast, because it ignores
// autocast. It cannot broadcast z. It must not be used if the input or the result has more than
// 2^31-1 elements. LibTorch splits other convolutions of that size into parts, but it does not
// split the convolution of this operator.
func (m *fusedConv2d) atOnce(x *cgotorch.Exec, in, z *cgotorch.Tensor) *cgotorch.Tensor {
	dtype := in.DType()
	switch {
	case m.Activation != activateReLU, !in.Device().IsCUDA(), x.AutocastDType() != 0, m.Groups > 1, in.Dim() != 4, dtype != m.Weight.DType(),
		dtype != cgotorch.Float32 && dtype != cgotorch.Float16 && dtype != cgotorch.BFloat16:
		return nil
	}
	padded, zeros := m.pad(x, in)
	defer closeUnless(in, padded)
	shape := m.resultShape(padded.Shape(), zeros)
	elements := int64(1)
	for _, n := range shape {
		elements *= n
	}
	if max(elements, padded.Numel()) > math.MaxInt32 {
		return nil
	}
	stride, dilation := m.Stride.or(Size{1, 1}).ints(), m.Dilation.or(Size{1, 1}).ints()
	if z == nil {
		return x.Call1("aten::cudnn_convolution_relu", padded, m.Weight, m.Bias, stride, zeros.ints(), dilation, 1)
	}
	if z.DType() != dtype || !slices.Equal(z.Shape(), shape) {
		return nil
	}
	return x.Call1("aten::cudnn_convolution_add_relu", padded, m.Weight, z, 1, m.Bias, stride, zeros.ints(), dilation, 1)
}

// resultShape returns the shape of the result. The input has the shape `in`, without the border
// of zeros.
func (m *Conv2d) resultShape(in []int64, zeros Size) []int64 {
	weight := m.Weight.Shape()
	stride, dilation := m.Stride.or(Size{1, 1}), m.Dilation.or(Size{1, 1})
	shape := []int64{in[0], weight[0], 0, 0}
	for i := range 2 {
		shape[2+i] = (in[2+i]+2*int64(zeros[i])-int64(dilation[i])*(weight[2+i]-1)-1)/int64(stride[i]) + 1
	}
	return shape
}
