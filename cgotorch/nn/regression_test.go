package nn_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// With a Beta of 0, equal values have the gradient of L1, which is 0.
func TestSmoothL1_WithoutBeta(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := cgotorch.FromSlice(x, []float32{1, 3})
		cgotorch.Check(in.SetRequiresGrad(true))
		x.Backward(nn.SmoothL1(x, in, cgotorch.FromSlice(x, []float32{1, 1}), nn.SmoothL1Options{Beta: cgotorch.Set(0.0), Reduction: cgotorch.ReductionSum}))
		if got := cgotorch.ToSlice[float32](x, in.Grad()); got[0] != 0 || got[1] != 1 {
			t.Errorf("the gradient is %v, want [0 1]", got)
		}
	})
}

// The shapes of variances are those that PyTorch accepts.
func TestGaussianNLL_Variances(t *testing.T) {
	for _, c := range []struct {
		shape []int64
		takes bool
	}{
		{[]int64{4, 2, 3}, true}, {[]int64{4, 2, 1}, true}, {[]int64{1, 2, 3}, true}, {[]int64{4, 2}, true},
		{[]int64{4, 1, 1}, false}, {[]int64{4, 2, 2}, false}, {[]int64{4, 3}, false}, {[]int64{3}, false}, {nil, false},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			means := x.Zeros(cgotorch.Float32, 4, 2, 3)
			loss := nn.GaussianNLL(x, means, x.OnesLike(means), x.Ones(cgotorch.Float32, c.shape...), nn.GaussianNLLOptions{})
			if got := x.Item(loss); got != 0.5 {
				t.Errorf("%v: the loss is %v, want 0.5", c.shape, got)
			}
		})
		if c.takes && err != nil {
			t.Errorf("%v: %v", c.shape, err)
		}
		if !c.takes {
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "nn.GaussianNLL", "float32[4 2 3]", "without the last one")
		}
	}
}
