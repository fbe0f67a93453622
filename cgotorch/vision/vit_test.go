package vision_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A ViT has the same logits and gradients with this library's kernels and with LibTorch's, up to
// the rounding of the dtype. On the CPU both run the same operators.
func TestViT_Fused(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.NoTF32(t)
	torchtest.Do(t, d, func(x *cgotorch.Exec) {
		m := named[*vision.ViT](x, "vit_b_16", vision.Options{ImageSize: nn.Square(48), Classes: 10})
		t.Cleanup(func() { nn.Close(m) })
		head := m.Heads.(*nn.Sequential).Modules[0].Module.(*nn.Linear)
		nn.Normal(x, head.Weight, 0, 0.05)
		images := x.Randn(cgotorch.Float32, 3, 3, 48, 48)
		parameters := nn.Parameters(m)
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
			y, allowed := x, 1e-4
			if dtype != cgotorch.Float32 {
				y, allowed = x.Autocast(dtype), 0.05
			}
			run := func(fused bool) []*cgotorch.Tensor {
				nn.SetFused(m, fused)
				logits := x.To(m.Forward(y, images), cgotorch.Float32)
				loss := x.Sum(x.Mul(logits, logits))
				return append([]*cgotorch.Tensor{logits}, x.Gradients([]*cgotorch.Tensor{loss}, parameters, cgotorch.GradientOptions{})...)
			}
			got, want := run(true), run(false)
			for i := range want {
				if got[i].DType() != want[i].DType() {
					t.Errorf("%v: tensor %d is %v, want %v", dtype, i, got[i].DType(), want[i].DType())
				}
				difference := x.Sub(got[i], want[i])
				off, size := x.Item(x.Sqrt(x.Sum(x.Mul(difference, difference)))), x.Item(x.Sqrt(x.Sum(x.Mul(want[i], want[i]))))
				// The bias of the keys has a gradient of 0, up to rounding, so a small gradient has a bound too.
				if !(off <= allowed*max(size, 1e-3)) {
					t.Errorf("%v: tensor %d of %v is %v off, its norm is %v", dtype, i, want[i].Shape(), off, size)
				}
			}
		}
	})
}
