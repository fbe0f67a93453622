package optim

import (
	"math"
	"testing"
)

// A loss that is no number gives the middle, as in PyTorch.
func TestCubic_NaN(t *testing.T) {
	if got := cubic(point{length: 0, loss: 1, slope: -1}, point{length: 1, loss: math.NaN(), slope: math.NaN()}, 0, 1); got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
}
