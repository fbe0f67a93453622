package nn_test

import (
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A random number outside the bounds is replaced by the nearest bound, also if it is infinite.
func TestTruncatedNormal_Bounds(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		weight := x.Empty(cgotorch.Float32, 1000)
		nn.TruncatedNormal(x, weight, 0, 2, -1, 0.5)
		got := values(x, weight)
		if low, high := slices.Min(got), slices.Max(got); !(low >= -1 && low < -0.9 && high <= 0.5 && high > 0.4) {
			t.Errorf("numbers from %v to %v, want them from -1 to 0.5", low, high)
		}
		nn.TruncatedNormal(x, weight, 100, 1, -1, 1) // every random number is -Inf before it is limited
		if got := values(x, weight); slices.Min(got) != -1 || slices.Max(got) != -1 {
			t.Errorf("numbers from %v to %v, want -1", slices.Min(got), slices.Max(got))
		}
	})
}
