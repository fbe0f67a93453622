package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// streamtorch::window_attention computes as LibTorch's operators in float64 do, up to the rounding
// of the dtype, for query, key and value that are views of one tensor.
func TestWindowAttention(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, dtype := range []DType{Float32, BFloat16, Float16} {
			for _, c := range []struct{ windows, masks, heads, tokens, depth int64 }{
				{1, 1, 1, 1, 16}, {8, 4, 3, 49, 32}, {6, 2, 2, 64, 32}, {2, 1, 5, 16, 64}, {4, 2, 1, 33, 16}, {2, 2, 2, 65, 32}, {2, 2, 2, 9, 24}, {0, 1, 2, 9, 32},
			} {
				t.Run(fmt.Sprint(dtype, c), func(t *testing.T) {
					torchtest.Do(t, d, func(x *Exec) {
						of := func(shape ...int64) *Tensor { return x.To(x.Randn(Float32, shape...), dtype) }
						all := x.Permute(x.Reshape(of(c.windows, c.tokens, 3*c.heads*c.depth), c.windows, c.tokens, 3, c.heads, c.depth), 2, 0, 3, 1, 4)
						q, k, v := x.Select(all, 0, 0), x.Select(all, 0, 1), x.Select(all, 0, 2)
						bias, mask := of(1, c.heads, c.tokens, c.tokens), x.MulScalar(x.To(x.GtScalar(of(c.masks, c.tokens, c.tokens), 1), dtype), -100)
						scale := 1 / math.Sqrt(float64(c.depth))
						for given := range 4 {
							b, m := bias, mask
							if given&1 != 0 {
								b = nil
							}
							if given&2 != 0 {
								m = nil
							}
							got := x.Call1("streamtorch::window_attention", q, k, v, b, m, scale)
							if fmt.Sprint(got.Shape()) != fmt.Sprint(q.Shape()) || got.DType() != dtype {
								t.Fatalf("got %v", got)
							}
							if c.windows == 0 {
								continue
							}
							wide := func(t *Tensor) *Tensor { return x.To(t, Float64) }
							scores := x.MulScalar(x.MatMul(wide(q), x.Transpose(wide(k), -2, -1)), scale)
							if b != nil {
								scores = x.Add(scores, wide(b))
							}
							if m != nil {
								scores = x.Add(scores, x.Unsqueeze(x.Repeat(wide(m), c.windows/c.masks, 1, 1), 1))
							}
							want := x.MatMul(x.Softmax(scores, -1), wide(v))
							if far := farOff(x, got, want); !(far <= 4*roundings(dtype)) {
								t.Errorf("without %b: %g off", given, far)
							}
						}
					})
				})
			}
		}
	})
}

// Where a gradient is needed LibTorch's operators do the work. A mask of a number of windows that
// does not divide those of the query is an error.
func TestWindowAttention_GradientsAndErrors(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			q := x.To(x.Randn(Float32, 4, 2, 9, 32), BFloat16)
			Check(q.SetRequiresGrad(true))
			x.Backward(x.Sum(x.Call1("streamtorch::window_attention", q, q, q, nil, nil, 0.2)))
			if q.Grad() == nil {
				t.Error("there is no gradient")
			}
		})
		err := DefaultStream(d).Do(func(x *Exec) error {
			q := x.Randn(Float32, 4, 2, 9, 32)
			x.Call1("streamtorch::window_attention", q, q, q, nil, x.Zeros(Float32, 3, 9, 9), 0.2)
			return nil
		})
		torchtest.WantError(t, err, nil, "of a divisor W of 4 windows")
	})
}
