package models_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The map `losses` has the same losses as LOSSES in make.py.
var losses = map[string]struct {
	shape []int64
	loss  func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor
}{
	"cross_entropy":      {six, crossEntropy(classes, nn.CrossEntropyOptions{})},
	"cross_entropy_sum":  {six, crossEntropy(classes, nn.CrossEntropyOptions{Reduction: cgotorch.ReductionSum})},
	"cross_entropy_none": {six, crossEntropy(classes, nn.CrossEntropyOptions{Reduction: cgotorch.ReductionNone})},
	"cross_entropy_ignore_0": {six, crossEntropy([]int64{2, 0, 1, 0, 4, 3},
		nn.CrossEntropyOptions{IgnoreIndex: cgotorch.Set(0)})},
	"cross_entropy_smoothing": {six, crossEntropy(classes, nn.CrossEntropyOptions{LabelSmoothing: 0.1})},
	"cross_entropy_weight": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return crossEntropy(classes, nn.CrossEntropyOptions{Weight: weight(x), LabelSmoothing: 0.2})(x, in)
	}},
	"cross_entropy_pixels": {[]int64{2, 5, 3, 4}, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		pixels := make([]int64, 24)
		for i := range pixels {
			pixels[i] = int64(i % 5)
		}
		return nn.CrossEntropy(x, in, cgotorch.FromSlice(x, pixels, 2, 3, 4), nn.CrossEntropyOptions{})
	}},
	"cross_entropy_probabilities": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CrossEntropy(x, in, targets(x), nn.CrossEntropyOptions{})
	}},
	"nll": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.NLL(x, x.LogSoftmax(in, 1), cgotorch.FromSlice(x, classes), nn.NLLOptions{})
	}},
	"nll_options": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.NLL(x, x.LogSoftmax(in, 1), cgotorch.FromSlice(x, []int64{2, 0, 1, 0, 4, 3}), nn.NLLOptions{
			Weight: weight(x), IgnoreIndex: cgotorch.Set(0), Reduction: cgotorch.ReductionSum,
		})
	}},
	"bce_with_logits": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.BCEWithLogits(x, in, targets(x), nn.BCEOptions{})
	}},
	"bce_with_logits_options": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.BCEWithLogits(x, in, targets(x), nn.BCEOptions{
			Weight: weight(x), PositiveWeight: x.AddScalar(weight(x), 1), Reduction: cgotorch.ReductionNone,
		})
	}},
	"mse": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MSE(x, in, targets(x), nn.MSEOptions{})
	}},
	"mse_sum": {six, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MSE(x, in, targets(x), nn.MSEOptions{Reduction: cgotorch.ReductionSum})
	}},
}

var (
	six     = []int64{6, 5}
	classes = []int64{2, 0, 1, -100, 4, 3} // the label -100 does not count
)

func crossEntropy(labels []int64, o nn.CrossEntropyOptions) func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CrossEntropy(x, in, cgotorch.FromSlice(x, labels), o)
	}
}

func weight(x *cgotorch.Exec) *cgotorch.Tensor { return x.AddScalar(x.Abs(ramp(x, 5)), 0.1) }

func targets(x *cgotorch.Exec) *cgotorch.Tensor { return x.Abs(ramp(x, six...)) }

func TestLosses_EqualPyTorch(t *testing.T) {
	var fixtures map[string]struct {
		Loss     shaped
		Gradient digest
	}
	readFixture(t, "losses", &fixtures)
	if got, want := slices.Sorted(maps.Keys(losses)), slices.Sorted(maps.Keys(fixtures)); !slices.Equal(got, want) {
		t.Fatalf("the losses here are\n%v\nand in the fixture\n%v", got, want)
	}
	for _, name := range slices.Sorted(maps.Keys(losses)) {
		c, want := losses[name], fixtures[name]
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
					in := ramp(x, c.shape...)
					must.Do(t, in.SetRequiresGrad(true))
					loss := c.loss(x, in)
					if !slices.Equal(loss.Shape(), want.Loss.Shape) {
						t.Fatalf("the loss is %v, want shape %v", loss, want.Loss.Shape)
					}
					if got := digestOf(x, loss); !got.near(want.Loss.Digest, 1e-5) {
						t.Errorf("the loss is %v, want %v", got, want.Loss.Digest)
					}
					x.Backward(x.Sum(loss))
					if got := digestOf(x, in.Grad()); !got.near(want.Gradient, 1e-5) {
						t.Errorf("the gradient is %v, want %v", got, want.Gradient)
					}
				})
			})
		})
	}
}
