package nn_test

import (
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Predict gives the class with the largest probability, and the probabilities sum to 1. Equality
// with PyTorch is tested in tests/parity/modules.
func TestAdaptiveLogSoftmaxWithLoss_Predict(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewAdaptiveLogSoftmaxWithLoss(x, 8, 12, []int{3, 6}, nn.AdaptiveLogSoftmaxWithLossOptions{DivValue: 2})
		defer nn.Close(m)
		in := x.MulScalar(x.Randn(cgotorch.Float32, 50, 8), 5)
		all := m.Forward(x.NoGrad(), in)
		for i, sum := range cgotorch.ToSlice[float32](x, x.SumDim(x.Exp(all), []int64{1}, cgotorch.SumOptions{})) {
			if sum < 0.999 || sum > 1.001 {
				t.Errorf("row %d: the probabilities sum to %v", i, sum)
			}
		}
		classes := m.Predict(x, in)
		got, want := cgotorch.ToSlice[int64](x, classes), cgotorch.ToSlice[int64](x, x.ArgMax(all, 1, cgotorch.ReduceOptions{}))
		if !slices.Equal(got, want) || slices.Max(got) < 6 {
			t.Errorf("the classes are %v, want %v", got, want)
		}
		output, _ := m.Loss(x.NoGrad(), in, classes) // the same by the way of the clusters
		largest := x.Gather(all, 1, x.Unsqueeze(classes, 1))
		if difference := x.Item(x.Max(x.Abs(x.Sub(output, x.Squeeze(largest, 1))))); difference > 1e-5 {
			t.Errorf("Loss and Forward differ by %v", difference)
		}
	})
}

func TestAdaptiveLogSoftmaxWithLoss_Refuses(t *testing.T) {
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, cgotorch.CPU)
	classes := func(x *cgotorch.Exec, classes ...int64) {
		m := nn.NewAdaptiveLogSoftmaxWithLoss(x, 8, 12, []int{3, 6}, nn.AdaptiveLogSoftmaxWithLossOptions{DivValue: 2})
		defer nn.Close(m)
		m.Loss(x, x.Zeros(cgotorch.Float32, 2, 8), cgotorch.FromSlice(x, classes))
	}
	cut := func(cutoffs ...int) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) {
			nn.NewAdaptiveLogSoftmaxWithLoss(x, 8, 12, cutoffs, nn.AdaptiveLogSoftmaxWithLossOptions{})
		}
	}
	for want, fn := range map[string]func(x *cgotorch.Exec){
		"cutoffs are [3 3] of 12":        cut(3, 3),
		"cutoffs are [0] of 12":          cut(0),
		"cutoffs are [12] of 12":         cut(12),
		"0 cutoffs":                      cut(),
		"leave none for cluster 2":       cut(3, 6),
		"1 classes are not from 0 to 11": func(x *cgotorch.Exec) { classes(x, 1, 12) },
		"2 classes are not from 0 to 11": func(x *cgotorch.Exec) { classes(x, -1, 13) },
		"want int64 [N]":                 func(x *cgotorch.Exec) { classes(x, 1, 2, 3) },
		"want 5 dimensions": func(x *cgotorch.Exec) {
			(&nn.FractionalMaxPool3d{Kernel: nn.Cube(2)}).Forward(x, x.Zeros(cgotorch.Float32, 2, 3, 4, 4))
		},
		"Kernel is 0": func(x *cgotorch.Exec) {
			(&nn.FractionalMaxPool3d{}).Forward(x, x.Zeros(cgotorch.Float32, 2, 3, 4, 4, 4))
		},
	} {
		torchtest.WantError(t, stream.Do(func(x *cgotorch.Exec) error { fn(x); return nil }), cgotorch.ErrInvalidArgument, want)
	}
}
