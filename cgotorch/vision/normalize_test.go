package vision

import (
	"errors"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func TestNormalize(t *testing.T) {
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		pixels := cgotorch.FromSlice(x, []uint8{0, 128, 255, 10, 20, 30}, 1, 1, 2, 3)
		got := Normalize(x, pixels, ImageNetMean, ImageNetStd)
		if want := []int64{1, 3, 1, 2}; len(got.Shape()) != 4 || got.Shape()[1] != want[1] || got.Shape()[3] != want[3] {
			t.Fatalf("shape %v, want %v", got.Shape(), want)
		}
		values := cgotorch.ToSlice[float32](x, got)
		for i, p := range []float64{0, 10, 128, 20, 255, 30} {
			c := i / 2
			want := (p/255 - ImageNetMean[c]) / ImageNetStd[c]
			if math.Abs(float64(values[i])-want) > 1e-5 {
				t.Errorf("element %d is %v, want %v", i, values[i], want)
			}
		}
		Normalize(x, x.Zeros(cgotorch.Float32, 1, 2, 2, 3), ImageNetMean, ImageNetStd)
		return nil
	})
	if !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("float32 pixels: %v", err)
	}
	err = cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		Normalize(x, nil, ImageNetMean, ImageNetStd)
		return nil
	})
	if !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("no pixels: %v", err)
	}
}
