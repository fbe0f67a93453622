package cgotorch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// add_rms_norm gives what LibTorch's operators give, and a row the same bits in any batch.
func TestAddRMSNorm(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, width := range []int64{1, 8, 301, 2048, 2880, 8192, 20_000} {
		torchtest.Do(t, torchtest.Device(), func(x *Exec) {
			for seed := range 6 {
				n := &tokenNumbers{Rand: rand.New(rand.NewPCG(uint64(i), uint64(seed))), x: x.NoGrad(), narrow: []DType{BFloat16, Float16, Float32}[seed%3]}
				sum, offset := n.floats(2, 5, width), n.IntN(2) == 0
				var out, outNorm *Tensor
				if seed != 0 {
					out, outNorm = n.narrows(3, 5, width), n.maybe(func() *Tensor { return n.floats(1, width) })
				}
				norm := n.maybe(func() *Tensor { return n.floats(1, width) })
				normed := func(t, weight *Tensor) *Tensor {
					if offset {
						weight = x.AddScalar(weight, 1)
					}
					return n.x.Call1("aten::rms_norm", t, []int64{width}, weight, 1e-5)
				}
				wantSum := n.x.Clone(sum)
				if out != nil {
					added := x.To(out, Float32)
					if outNorm != nil {
						added = normed(added, outNorm)
					}
					wantSum = n.x.Add(wantSum, added)
				}
				want := wantSum
				if norm != nil {
					want = normed(want, norm)
				}
				run := func(first, rows int) (sums, result []float32) {
					s, o := n.x.Clone(x.Narrow(sum, 0, first, rows)), out
					if out != nil {
						o = n.x.Clone(x.Narrow(out, 0, first, rows))
					}
					r := n.x.Call1("streamtorch::add_rms_norm", s, o, outNorm, norm, 1e-5, offset, n.narrow)
					if r.DType() != n.narrow {
						t.Errorf("the result is %v, want %v", r.DType(), n.narrow)
					}
					return float32s(x, s), float32s(x, r)
				}
				sums, result := run(0, 5)
				if a, b := apart(sums, float32s(x, wantSum)), apart(result, float32s(x, want)); !(a < 1e-6) || !(b < map[DType]float64{BFloat16: 0.004, Float16: 0.001, Float32: 1e-6}[n.narrow]) {
					t.Errorf("width %d, seed %d: the sum is %.2g away, the result %.2g", width, seed, a, b)
				}
				oneSum, oneResult := run(3, 1)
				if at := int(width); !slices.Equal(oneSum, sums[3*at:4*at]) || !slices.Equal(oneResult, result[3*at:4*at]) {
					t.Errorf("width %d, seed %d: a row alone has other bits", width, seed)
				}
			}
		})
	}
}

// gated gives what LibTorch's operators give in float32.
func TestGated(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		x = x.NoGrad()
		for dtype, most := range map[DType]float64{BFloat16: 0.004, Float16: 0.001, Float32: 1e-5, Float64: 1e-6} {
			for i, inner := range []int64{1, 13, 64, 5000} {
				n := &tokenNumbers{Rand: rand.New(rand.NewPCG(uint64(i), 9)), x: x}
				in := x.To(n.floats(2, 3, 2*inner), dtype)
				wide := x.To(in, Float32)
				a, b := x.Narrow(wide, 1, 0, int(inner)), x.Narrow(wide, 1, int(inner), int(inner))
				pairs := x.View(wide, 3, inner, 2)
				gate, up := x.Clamp(x.Select(pairs, 2, 0), nil, 1.5), x.Clamp(x.Select(pairs, 2, 1), -1.5, 1.5)
				for name, want := range map[string]*Tensor{
					"silu": x.Mul(x.SiLU(a), b), "gelu_tanh": x.Mul(x.GELUTanh(a), b),
					"clamped": x.Mul(x.AddScalar(up, 1), x.Mul(gate, x.Sigmoid(x.MulScalar(gate, 1.7)))),
				} {
					got := x.Call1("streamtorch::gated", in, name, 1.5, 1.7)
					if d := apart(float32s(x, got), float32s(x, want)); got.DType() != dtype || !slices.Equal(got.Shape(), []int64{3, inner}) || !(d < most) {
						t.Errorf("%s of %v: %v %v is %.2g away", name, in, got.DType(), got.Shape(), d)
					}
				}
			}
		}
	})
}
