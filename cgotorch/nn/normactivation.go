package nn

import (
	"github.com/streamtorch/streamtorch/cgotorch"
)

// NormReLU returns ReLU(norm(in)). On CUDA its forward and its backward are one kernel each, or two
// for large tensors. For these kernels `in` must be channels last, in float32, float16 or bfloat16,
// with a multiple of 8 channels and at most 4096. For all other inputs NormReLU does the same as
// the two layers. The kernels round once, where the two layers round twice. [KernelReport] tells
// which kernels run.
//
// NormReLU does not wait. But kernels that no process of the user has run before are compiled
// first, which takes up to a second for each dtype and kind of norm. The Do owns the result.
// NormReLU fails as [BatchNorm2d.Forward] does. With the kernels, a second derivative fails.
func NormReLU(x *cgotorch.Exec, norm *BatchNorm2d, in *cgotorch.Tensor) *cgotorch.Tensor {
	return norm.activated(x, in, nil, "relu")
}

// NormAddReLU returns ReLU(norm(in) + addend), the end of a residual block. `addend` has the
// shape of `in`. In a residual block the first convolution reads `addend` too, so backward
// computes two gradients of `addend`. If `addend` is the result of a function of this file, the
// backward's kernels read both gradients. Then no separate kernel adds the two gradients. All
// else is as with [NormReLU].
func NormAddReLU(x *cgotorch.Exec, norm *BatchNorm2d, in, addend *cgotorch.Tensor) *cgotorch.Tensor {
	return norm.activated(x, in, addend, "relu")
}

// activated returns activation(m(in) + addend). A nil addend adds nothing. `activation` is a name
// of streamtorch::batch_norm_act.
func (m *BatchNorm2d) activated(x *cgotorch.Exec, in, addend *cgotorch.Tensor, activation string) *cgotorch.Tensor {
	o, mean, variance := m.begin(x, in)
	if m.isOverRanks() && !m.ranked(x, in, addend) {
		if r := reportOf(x); r != nil {
			r.add(m, notFused)
		}
		return activate(x, m.overRanks(x, in, mean, variance, o), addend, activation)
	}
	if r := reportOf(x); r != nil {
		r.add(m, m.way(x, in, addend, m.kernels()))
	}
	return m.run(x, func(group int64) *cgotorch.Tensor {
		return x.Call1("streamtorch::batch_norm_act", in, addend, m.Weight, m.Bias, mean, variance,
			o.Training, o.Momentum.Or(0.1), o.Eps.Or(1e-5), activation, m.kernels(), group)
	}, in)
}

// kernels returns the argument of that name of streamtorch::batch_norm_act.
func (m *BatchNorm2d) kernels() string {
	if m.Unfused {
		return "none"
	}
	return "faster"
}

// activatedWith returns activation(m(in) + norm2(in2)).
func (m *BatchNorm2d) activatedWith(x *cgotorch.Exec, in *cgotorch.Tensor, norm2 *BatchNorm2d, in2 *cgotorch.Tensor, activation string) *cgotorch.Tensor {
	over := m.isOverRanks() || norm2.isOverRanks()
	if m == norm2 || m.Eval != norm2.Eval || (m.RunningMean == nil) != (norm2.RunningMean == nil) || m.Unfused || norm2.Unfused ||
		over && (m.ranks != norm2.ranks || !m.ranked(x, in, in2) || !norm2.ranked(x, in2, in)) {
		addend := norm2.Forward(x, in2)
		defer addend.Close()
		return m.activated(x, in, addend, activation)
	}
	o, mean, variance := m.begin(x, in)
	o2, mean2, variance2 := norm2.begin(x, in2)
	if r := reportOf(x); r != nil {
		first, second := m.way(x, in, in2, "faster"), norm2.way(x, in2, in, "two")
		if first > second || second > twoKernels { // the two norms go the same way
			first, second = max(first, second), max(first, second)
		}
		r.add(m, first)
		r.add(norm2, second)
	}
	return m.run(x, func(group int64) *cgotorch.Tensor {
		return x.Call1("streamtorch::batch_norms_act", in, in2, m.Weight, m.Bias, mean, variance, norm2.Weight, norm2.Bias, mean2, variance2,
			o.Training, o.Momentum.Or(0.1), o.Eps.Or(1e-5), o2.Momentum.Or(0.1), o2.Eps.Or(1e-5), activation, "faster", group)
	}, in, in2)
}

// SetFused says whether the layers of m, a module or a tree of modules, may use kernels of this
// library: those of [NormReLU] and [AddLayerNorm], the first layer's of [Conv2d], and those of
// [Linear] and [MultiheadAttention]. New layers may. Without these kernels the numbers are those
// of LibTorch's operators, and second derivatives work. A captured graph of m is then out of date.
func SetFused(m any, fused bool) { setFlags(m, "Unfused", !fused) }

// activationName returns the name of an activation in streamtorch::batch_norm_act. A nil module is
// "none". It returns "" if that operator does not have the activation.
func activationName(m Module) string {
	if absent(m) {
		return "none"
	}
	switch m := m.(type) {
	case *ReLU:
		return "relu"
	case *ReLU6:
		return "relu6"
	case *SiLU:
		return "silu"
	case *HardSwish:
		return "hardswish"
	case *GELU:
		if !m.Tanh {
			return "gelu"
		}
	}
	return ""
}

// NormAddNormReLU returns ReLU(norm(in) + norm2(in2)), the end of a residual block whose shortcut
// has a convolution and a norm. `in2` has the shape of `in`. All else is as with [NormReLU].
func NormAddNormReLU(x *cgotorch.Exec, norm *BatchNorm2d, in *cgotorch.Tensor, norm2 *BatchNorm2d, in2 *cgotorch.Tensor) *cgotorch.Tensor {
	return norm.activatedWith(x, in, norm2, in2, "relu")
}

// NormReLUMaxPool returns the largest values of ReLU(norm(in)) in windows of 3x3, with stride 2
// and padding 1. This is the beginning of a ResNet. On CUDA no tensor of the size of `in` is
// written in the forward. All else is as with [NormReLU].
func NormReLUMaxPool(x *cgotorch.Exec, norm *BatchNorm2d, in *cgotorch.Tensor) *cgotorch.Tensor {
	if norm.isOverRanks() {
		out := norm.activated(x, in, nil, "relu")
		return (&MaxPool2d{Kernel: Size{3, 3}, Stride: Size{2, 2}, Padding: Size{1, 1}}).Forward(x, out)
	}
	o, mean, variance := norm.begin(x, in)
	if r := reportOf(x); r != nil {
		kernels := norm.kernels()
		if kernels == "faster" {
			kernels = "two"
		}
		r.add(norm, norm.way(x, in, nil, kernels))
	}
	return x.Call1("streamtorch::batch_norm_relu_max_pool", in, norm.Weight, norm.Bias, mean, variance,
		o.Training, o.Momentum.Or(0.1), o.Eps.Or(1e-5), norm.kernels())
}
