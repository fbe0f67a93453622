package cgotorch

// #include "cgotorch.h"
import "C"

import (
	"fmt"
	"runtime"
)

// pixelValues is the number of values of a uint8 pixel.
const pixelValues = 256

// NormalizationTable returns (p/255 - mean)/std for each pixel value p, as [Exec.NormalizeImages] reads it: [C, 256] of dtype
// on x's device, where C is the number of means and of standard deviations.
//
// It divides, subtracts and divides in float32, as torchvision's ToTensor and Normalize do (in float64 for that dtype), so that
// on every device the images are theirs to the bit: a training run that begins with a difference in the last bit ends elsewhere.
func (x *Exec) NormalizationTable(mean, std []float64, dtype DType) *Tensor {
	if len(mean) != len(std) {
		x.Fail("Exec.NormalizationTable", &Error{Op: "Exec.NormalizationTable", Code: CodeInvalidArgument, Caller: caller(),
			Message: fmt.Sprintf("%d means and %d standard deviations", len(mean), len(std))})
	}
	shape := []int64{int64(len(mean)), pixelValues}
	if dtype == Float64 {
		return FromSlice(x, normalized[float64](mean, std), shape...)
	}
	return x.Tidy(func() *Tensor { return x.To(FromSlice(x, normalized[float32](mean, std), shape...), dtype) })
}

func normalized[T float32 | float64](mean, std []float64) []T {
	var values []T
	for c := range mean {
		for p := range pixelValues {
			unit := T(T(p) / 255) // a conversion rounds: the compiler must not fuse the steps
			values = append(values, T(unit-T(mean[c]))/T(std[c]))
		}
	}
	return values
}

// NormalizeImages enqueues out[n, c, h, w] = table[c, pixels[n, h, w', c]] in one pass over the memory, where w' is W-1-w in
// the images that flips marks, so that they are turned left to right, and w in the others. pixels is contiguous uint8
// [N, H, W, C] with C from 1 to 4; flips is bool [N], or nil for none; out is [N, C, H, W] of a floating dtype of 16 bits or
// more and any dense memory order, such as channels last; table, [C, 256] of the same dtype, holds what becomes of each pixel
// value in each channel: see [Exec.NormalizationTable]. Nothing is recorded for backward. It does not wait,
// except on a CUDA device the first time, while its kernel is compiled. It fails with [ErrInvalidArgument].
func (x *Exec) NormalizeImages(pixels, flips, table, out *Tensor) {
	const op = "Exec.NormalizeImages"
	x.check(op)
	ts := []*Tensor{pixels, table, out}
	var flipsHandle *C.ct_tensor
	if flips != nil {
		ts = append(ts, flips)
	}
	for _, t := range ts {
		x.open(op, t)
	}
	if flips != nil {
		flipsHandle = flips.h
	}
	x.must(op, C.ct_normalize_images(x.c, pixels.h, flipsHandle, table.h, out.h), ts...)
	for _, t := range ts {
		runtime.KeepAlive(t)
	}
}
