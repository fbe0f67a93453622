package nn_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// AddLayerNorm equals Add and the norm, and its result has the dtype of autocast. So it does
// without an addend, with kernels turned off, and for a norm over two dimensions.
func TestAddLayerNorm(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		for _, shape := range [][]int64{{32}, {3, 16}} {
			norm := nn.NewLayerNorm(x, shape, nn.LayerNormOptions{Eps: cgotorch.Set(1e-3)})
			t.Cleanup(func() { nn.Close(norm) })
			nn.Normal(x, norm.Weight, 1, 0.3)
			nn.Normal(x, norm.Bias, 0, 0.3)
			in := x.Randn(cgotorch.Float32, append([]int64{4, 5}, shape...)...)
			added := x.To(x.RandnLike(in), cgotorch.BFloat16)
			for _, addend := range []*cgotorch.Tensor{nil, added} {
				for _, fused := range []bool{true, false} {
					nn.SetFused(norm, fused)
					want := in
					if addend != nil {
						want = x.Add(in, addend)
					}
					for _, y := range []*cgotorch.Exec{x, x.Autocast(cgotorch.BFloat16)} {
						sum, normed := nn.AddLayerNorm(y, norm, in, addend)
						wantNormed, dtype, allowed := norm.Forward(x, want), cgotorch.Float32, 1e-5
						if y.AutocastDType() != 0 {
							wantNormed, dtype, allowed = x.To(wantNormed, cgotorch.BFloat16), cgotorch.BFloat16, 0.04
						}
						if normed.DType() != dtype || sum.DType() != cgotorch.Float32 {
							t.Errorf("the dtypes are %v and %v, want float32 and %v", sum.DType(), normed.DType(), dtype)
						}
						for name, pair := range map[string][2]*cgotorch.Tensor{"sum": {sum, want}, "norm": {normed, wantNormed}} {
							if off := x.Item(x.Max(x.Abs(x.Sub(pair[0], pair[1])))); !(off <= allowed) {
								t.Errorf("shape %v, fused %v: the %s is %v off", shape, fused, name, off)
							}
						}
					}
				}
			}
		}
	})
}
