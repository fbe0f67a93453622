package graph

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestGroupedProduct(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for name, c := range map[string]struct {
			ends []int64
			want []float32
		}{
			"three groups":   {[]int64{1, 1, 3}, []float32{1, 4, 6}},
			"rows left":      {[]int64{0, 2, 2}, []float32{2, 4, 0}},
			"no rows used":   {[]int64{0, 0, 0}, []float32{0, 0, 0}},
			"backwards":      {[]int64{2, 1, 3}, nil},
			"behind the end": {[]int64{1, 2, 4}, nil},
			"other number":   {[]int64{3}, nil},
		} {
			t.Run(name, func(t *testing.T) {
				torchtest.Do(t, d, func(x *cgotorch.Exec) {
					rows := cgotorch.FromSlice(x, []float32{1, 2, 3}, 3, 1)
					matrices := cgotorch.FromSlice(x, []float32{1, 2, 2}, 3, 1, 1)
					got, err := groupedProduct(x, []*cgotorch.Tensor{rows, matrices, cgotorch.FromSlice(x, c.ends, int64(len(c.ends)))})
					if (err != nil) != (c.want == nil) {
						t.Fatalf("the error is %v", err)
					}
					if c.want != nil {
						torchtest.Equal(t, x, got, c.want, 3, 1)
					}
				})
			})
		}
	})
}
