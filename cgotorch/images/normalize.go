package images

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// pixelValues is the number of possible values of a uint8 pixel.
const pixelValues = 256

// ImageNetMean and ImageNetStd are the mean and the standard deviation of ImageNet's channels.
// The channels are red, green and blue, with 1 for full intensity.
var (
	ImageNetMean = [3]float64{0.485, 0.456, 0.406}
	ImageNetStd  = [3]float64{0.229, 0.224, 0.225}
)

// CheckNormalization returns why a mean and a standard deviation cannot be those of a channel, or
// "". Both are in units of full intensity, so numbers above 1 are for pixels of 0 to 255.
func CheckNormalization(mean, std float64) string {
	switch {
	case !(std > 0):
		return "a standard deviation is above 0"
	case !(math.Abs(mean) <= 1 && std <= 1):
		return "both are in units of full intensity, at most 1: divide numbers for pixels of 0 to 255 by 255"
	}
	return ""
}

// NormalizationTable returns (p/255 - mean)/std for each pixel value p, in the form that
// [Normalize] reads. The result is [C, 256] of the given dtype on x's device. C is the number of
// means and of standard deviations. On a CUDA device NormalizationTable waits until the stream
// has copied the values. In a captured function it enqueues operators instead, and each launch
// repeats them: a table that is made before costs nothing. The Do owns the result.
//
// NormalizationTable fails with [cgotorch.ErrInvalidArgument] for numbers that CheckNormalization
// refuses, and if there are no means or not as many as deviations.
//
// NormalizationTable computes in float32, or in float64 if dtype is Float64. It divides,
// subtracts and divides, as torchvision's ToTensor and Normalize do. Normalised images therefore
// equal torchvision's to the bit on every device. Equal bits matter, because a difference in the
// last bit changes the end of a training run.
func NormalizationTable(x *cgotorch.Exec, mean, std []float64, dtype cgotorch.DType) *cgotorch.Tensor {
	fail := func(format string, args ...any) {
		x.Fail("images.NormalizationTable", &cgotorch.Error{Op: "images.NormalizationTable", Kind: cgotorch.ErrInvalidArgument,
			Message: fmt.Sprintf(format, args...)})
	}
	if len(mean) != len(std) || len(mean) == 0 {
		fail("%d means and %d standard deviations; give one of each for each channel", len(mean), len(std))
	}
	for c := range mean {
		if why := CheckNormalization(mean[c], std[c]); why != "" {
			fail("mean %v and standard deviation %v of channel %d: %s", mean[c], std[c], c, why)
		}
	}
	if x.Capturing() {
		return x.Tidy(func() *cgotorch.Tensor { return normalizedOnDevice(x, mean, std, dtype) })
	}
	shape := []int64{int64(len(mean)), pixelValues}
	if dtype == cgotorch.Float64 {
		return cgotorch.FromSlice(x, normalized[float64](mean, std), shape...)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		return x.To(cgotorch.FromSlice(x, normalized[float32](mean, std), shape...), dtype)
	})
}

// normalizedOnDevice returns the table without a copy from the host. It divides by tensors,
// because CUDA multiplies by the inverse of a scalar.
func normalizedOnDevice(x *cgotorch.Exec, mean, std []float64, dtype cgotorch.DType) *cgotorch.Tensor {
	exact := cgotorch.Float32
	if dtype == cgotorch.Float64 {
		exact = dtype
	}
	unit := x.Div(x.Arange(exact, 0, pixelValues, 1), x.Full(exact, 255, 1))
	var rows []*cgotorch.Tensor
	for c := range mean {
		rows = append(rows, x.Div(x.SubScalar(unit, mean[c]), x.Full(exact, std[c], 1)))
	}
	return x.To(x.Stack(rows, 0), dtype)
}

func normalized[T float32 | float64](mean, std []float64) []T {
	var values []T
	for c := range mean {
		for p := range pixelValues {
			unit := T(T(p) / 255) // the conversion rounds, so the compiler cannot fuse the steps
			values = append(values, T(unit-T(mean[c]))/T(std[c]))
		}
	}
	return values
}

// Normalize enqueues out[n, c, h, w] = table[c, pixels[n, h, w', c]]. It passes over the memory
// once. If flips[n] is true, w' is W-1-w, which mirrors the image left to right. Otherwise w' is
// w.
//
// pixels is contiguous uint8 [N, H, W, C] with C from 1 to 4. flips is bool [N], or nil for no
// flips. out is [N, C, H, W] of a floating dtype of 16 bits or more. It may have any dense memory
// order, such as channels last. table is [C, 256] of the same dtype. It holds the result for each
// pixel value in each channel; see [NormalizationTable].
func Normalize(x *cgotorch.Exec, pixels, flips, table, out *cgotorch.Tensor) {
	x.Call("streamtorch::normalize_images", pixels, flips, table, out)
}
