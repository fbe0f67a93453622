package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// GroupNormOptions are the options of [NewGroupNorm].
type GroupNormOptions struct {
	Eps      cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	NoAffine bool                  // without Weight and Bias
}

// GroupNorm normalises each sample over groups of channels.
type GroupNorm struct {
	Weight *cgotorch.Tensor // [channels], or nil
	Bias   *cgotorch.Tensor // [channels], or nil
	Groups int
	Eps    cgotorch.Opt[float64]
}

// NewGroupNorm makes a layer that divides the channels into `groups` of equal size. The tensors of
// the layer are float32 on x's device. Weights begin as 1, biases as 0.
func NewGroupNorm(x *cgotorch.Exec, groups, channels int, o GroupNormOptions) *GroupNorm {
	const where = "nn.NewGroupNorm"
	atLeast(x, where, 1, argument{"groups", groups}, argument{"channels", channels})
	if channels%groups != 0 {
		refuse(x, where, "%d groups do not divide %d channels", groups, channels)
	}
	m := &GroupNorm{Groups: groups, Eps: o.Eps}
	if !o.NoAffine {
		m.Weight, m.Bias = x.Ones(cgotorch.Float32, int64(channels)), x.Zeros(cgotorch.Float32, int64(channels))
	}
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

// Forward maps [N, channels, ...] to a tensor of the same shape. It fails for one sample with one
// value in each group, because one value has no variance. It does not wait.
func (m *GroupNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.Numel() == int64(m.Groups) {
		refuse(x, "nn.GroupNorm", "%s has one value in each of %d groups, which has no variance: use fewer groups, or a larger input", in, m.Groups)
	}
	return x.GroupNorm(in, m.Groups, m.Weight, m.Bias, cgotorch.GroupNormOptions{Eps: m.Eps})
}
