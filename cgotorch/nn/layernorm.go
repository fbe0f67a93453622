package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// LayerNormOptions are the options of [NewLayerNorm].
type LayerNormOptions struct {
	Eps      cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	NoAffine bool                  // without Weight and Bias
	NoBias   bool
}

// LayerNorm normalises over the last dimensions of its input. Field Shape has their sizes.
type LayerNorm struct {
	Weight *cgotorch.Tensor // [shape...], or nil
	Bias   *cgotorch.Tensor // [shape...], or nil
	Shape  []int64          // sizes of the last dimensions
	Eps    cgotorch.Opt[float64]
	// Unfused makes [AddLayerNorm] use LibTorch's operators only; see [SetFused].
	Unfused bool
}

// NewLayerNorm makes a layer that normalises over the last dimensions. `shape` has the sizes of
// these dimensions. The tensors of the layer are float32 on x's device. Weights begin as 1,
// biases as 0.
func NewLayerNorm(x *cgotorch.Exec, shape []int64, o LayerNormOptions) *LayerNorm {
	const where = "nn.NewLayerNorm"
	checkNormShape(x, where, shape)
	m := &LayerNorm{Shape: slices.Clone(shape), Eps: o.Eps}
	if !o.NoAffine {
		m.Weight = x.Ones(cgotorch.Float32, shape...)
		if !o.NoBias {
			m.Bias = x.Zeros(cgotorch.Float32, shape...)
		}
	}
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

// checkNormShape fails for a `shape` that has no sizes, or a size below 1.
func checkNormShape(x *cgotorch.Exec, where string, shape []int64) {
	if len(shape) == 0 || slices.Min(shape) < 1 {
		refuse(x, where, "shape is %v, want one size or more, each at least 1", shape)
	}
}

// Forward maps [..., shape...] to a tensor of the same shape.
func (m *LayerNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LayerNorm(in, m.Shape, m.Weight, m.Bias, cgotorch.LayerNormOptions{Eps: m.Eps})
}

// AddLayerNorm returns `sum`, which is `in` + `addend`, and `normed`, which is norm(sum). A
// transformer does this at each residual connection. There `addend` is the result of a branch, and
// `sum` is the `in` of the next connection. `in` and `addend` have the same shape. `addend` may be
// nil. Then `sum` shares the memory of `in`. After the call read `sum`, not `in`. Then one kernel
// of backward adds the gradients of `normed` and of the other reader of `sum`.
//
// Under autocast `normed` has the dtype of autocast. So give `normed` only to layers that would
// cast their input to this dtype.
//
// On CUDA the forward is one kernel, and the backward is two. The kernels need contiguous tensors
// in float32, float16 or bfloat16. `norm` must normalise over the last dimension only. This
// dimension must be a multiple of 4, and at most 8192. For all other tensors AddLayerNorm runs the
// operators of an addition and of a LayerNorm.
//
// AddLayerNorm does not wait, but its first call for a shape compiles the kernels, in about half a
// second. The Do owns the results. AddLayerNorm fails as [LayerNorm.Forward] does. With the
// kernels, a second derivative fails.
func AddLayerNorm(x *cgotorch.Exec, norm *LayerNorm, in, addend *cgotorch.Tensor) (sum, normed *cgotorch.Tensor) {
	var dtype any
	if autocast := x.AutocastDType(); autocast != 0 {
		dtype = autocast
	}
	if len(norm.Shape) == 1 && in.Dim() > 0 && in.Shape()[in.Dim()-1] == norm.Shape[0] {
		results := x.Call("streamtorch::add_layer_norm", in, addend, norm.Weight, norm.Bias, norm.Eps.Or(1e-5), dtype, isFused(x, "nn.LayerNorm", &norm.Unfused))
		return results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor)
	}
	if addend != nil {
		sum = x.Add(in, addend)
	} else {
		sum = x.Alias(in)
	}
	normed = norm.Forward(x, sum)
	if dtype != nil {
		wide := normed
		normed = x.To(wide, x.AutocastDType())
		closeUnless(normed, wide)
	}
	return sum, normed
}
