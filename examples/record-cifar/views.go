package main

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// reach is the largest shift of an image, in pixels.
const reach = 2

// mean and deviation are those of the channels of CIFAR-10's training images.
var (
	mean      = []float64{0.4914, 0.4822, 0.4465}
	deviation = []float64{0.2470, 0.2435, 0.2616}
)

// views makes batches from images that lie on the device: it selects, shifts, mirrors and
// normalises them.
type views struct {
	dtype   cgotorch.DType   // of the batches
	table   *cgotorch.Tensor // of images.Normalize
	sources *cgotorch.Tensor // int64 [2*reach+1, side]: see reflected
}

func newViews(x *cgotorch.Exec, dtype cgotorch.DType) *views {
	return &views{
		dtype:   dtype,
		table:   x.Keep(images.NormalizationTable(x, mean, deviation, dtype)),
		sources: x.Keep(cgotorch.FromSlice(x, reflected(), 2*reach+1, side)),
	}
}

// reflected returns, for each shift from -reach to reach, the source of each row of a shifted
// image. A row beyond the border is the row as far inside the border.
func reflected() []int64 {
	var all []int64
	for shift := -reach; shift <= reach; shift++ {
		for i := range side {
			from := i + shift
			if from < 0 {
				from = -from
			}
			if from >= side {
				from = 2*(side-1) - from
			}
			all = append(all, int64(from))
		}
	}
	return all
}

// batch returns the images of p with the numbers `indices`, int64 [N], as [N, 3, side, side] in
// channels last. Both halves of `shifts`, int64 [2*N], hold a number from 0 to 2*reach for each
// image: first for its rows, then for its columns. The number `reach` means no shift. An image
// whose element of `flips`, bool [N], is true is mirrored left to right. A nil `flips` mirrors
// none. Everything stays on the device, and can be captured.
func (v *views) batch(x *cgotorch.Exec, p *pictures, indices, shifts, flips *cgotorch.Tensor) *cgotorch.Tensor {
	n := indices.Numel()
	return x.Tidy(func() *cgotorch.Tensor {
		from := x.IndexSelect(v.sources, 0, shifts) // [2*N, side]
		shifted := x.Contiguous(x.Index(p.pixels, []*cgotorch.Tensor{
			x.View(indices, n, 1, 1),
			x.View(x.Narrow(from, 0, 0, int(n)), n, side, 1),
			x.View(x.Narrow(from, 0, int(n), int(n)), n, 1, side),
		}), cgotorch.Contiguous)
		out := x.Permute(x.Empty(v.dtype, n, side, side, 3), 0, 3, 1, 2)
		images.Normalize(x, shifted, flips, v.table, out)
		return out
	})
}

// randomShifts returns shifts for n images, drawn evenly.
func randomShifts(x *cgotorch.Exec, n int64) *cgotorch.Tensor {
	return x.RandInt(cgotorch.Int64, 0, 2*reach+1, 2*n)
}

// equalShifts returns shifts by which n images move by the same number of rows and columns.
func equalShifts(x *cgotorch.Exec, n int64, shift int) *cgotorch.Tensor {
	return x.Full(cgotorch.Int64, reach+shift, 2*n)
}

func (v *views) close() error {
	if v == nil {
		return nil
	}
	return errors.Join(v.table.Close(), v.sources.Close())
}
