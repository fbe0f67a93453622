package images_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Blend equals the sum that PyTorch's operators compute in float32.
func TestBlend_EqualsItsDefinition(t *testing.T) {
	for _, shape := range [][5]int{{3, 2, 7, 5, 3}, {1, 1, 1, 1, 1}, {2, 8, 9, 33, 4}, {4, 0, 3, 2, 2}, {0, 3, 4, 5, 3}} {
		n, k, height, width, channels := shape[0], shape[1], shape[2], shape[3], shape[4]
		r := rand.New(rand.NewPCG(uint64(k), uint64(height)))
		pixels, copies := make([]uint8, n*height*width*channels), make([]uint8, k*n*height*width*channels)
		for _, all := range [][]uint8{pixels, copies} {
			for i := range all {
				all[i] = uint8(r.IntN(256))
			}
		}
		weights, flips := make([]float32, n*(1+k)), make([]bool, n)
		for i := range weights {
			weights[i] = (1.2*r.Float32() - 0.1) / float32(k+1)
		}
		for i := range flips {
			flips[i] = i%2 == 0
		}
		torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
			shape := []int64{int64(n), int64(height), int64(width), int64(channels)}
			from, of := cgotorch.FromSlice(x, pixels, shape...), cgotorch.FromSlice(x, copies, int64(k*n), shape[1], shape[2], shape[3])
			w := cgotorch.FromSlice(x, weights, int64(n), int64(1+k))
			share := func(i int) *cgotorch.Tensor { return x.View(x.Select(w, 1, i), int64(n), 1, 1, 1) }
			flipped := x.Where(x.View(cgotorch.FromSlice(x, flips), int64(n), 1, 1, 1), x.Flip(from, 2), from)
			for _, flip := range []bool{false, true} {
				own, by := from, (*cgotorch.Tensor)(nil)
				if flip {
					own, by = flipped, cgotorch.FromSlice(x, flips)
				}
				sum := x.Mul(share(0), x.To(own, cgotorch.Float32))
				for i := range k {
					sum = x.Add(sum, x.Mul(share(1+i), x.To(x.Narrow(of, 0, i*n, n), cgotorch.Float32)))
				}
				want := cgotorch.ToSlice[uint8](x, x.To(x.Clamp(sum, 0, 255), cgotorch.Uint8))
				out := x.EmptyLike(from)
				before := inside.Core.Version(out)
				if images.Blend(x, from, by, of, w, out); inside.Core.Version(out) == before && n > 0 {
					t.Error("Blend counts as no write")
				}
				if got := cgotorch.ToSlice[uint8](x, out); !slices.Equal(got, want) {
					t.Errorf("%v, flips %v: got %v, want %v", shape, flip, got, want)
				}
			}
		})
	}
}

func TestBlend_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for want, shapes := range map[string]func(x *cgotorch.Exec) (copies, weights, out *cgotorch.Tensor){
			"weights must be contiguous Float [2, 1 + copies of an image]": func(x *cgotorch.Exec) (_, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), x.Zeros(cgotorch.Float32, 3, 2), x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
			"copies must be 2 for each image of [2, 4, 5, 3]": func(x *cgotorch.Exec) (_, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), x.Zeros(cgotorch.Float32, 2, 3), x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
			"share memory": func(x *cgotorch.Exec) (_, _, _ *cgotorch.Tensor) {
				copies := x.Zeros(cgotorch.Uint8, 2, 4, 5, 3)
				return copies, x.Zeros(cgotorch.Float32, 2, 2), copies
			},
			"out must be contiguous Byte [2, 4, 5, 3]": func(x *cgotorch.Exec) (_, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), x.Zeros(cgotorch.Float32, 2, 2), x.Empty(cgotorch.Uint8, 2, 5, 4, 3)
			},
		} {
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				copies, weights, out := shapes(x)
				images.Blend(x, x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, copies, weights, out)
				return nil
			})
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
		}
	})
}
