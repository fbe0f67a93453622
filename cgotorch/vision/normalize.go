package vision

import "github.com/streamtorch/streamtorch/cgotorch"

// The mean and standard deviation of ImageNet's channels, red, green and blue, in units of full intensity. torchvision's models
// expect images normalised with them.
var (
	ImageNetMean = [3]float64{0.485, 0.456, 0.406}
	ImageNetStd  = [3]float64{0.229, 0.224, 0.225}
)

// Normalize returns (pixels/255 - mean)/std. pixels is uint8 [N, H, W, 3], RGB; the result is float32 [N, 3, H, W], channels
// last. It fails with [cgotorch.ErrInvalidArgument] if pixels has another shape or dtype. The prefetcher does the same for
// batches.
func Normalize(x *cgotorch.Exec, pixels *cgotorch.Tensor, mean, std [3]float64) *cgotorch.Tensor {
	shape := pixels.Shape()
	if len(shape) != 4 || shape[3] != 3 || pixels.DType() != cgotorch.Uint8 {
		x.Fail("vision.Normalize", &cgotorch.Error{Op: "vision.Normalize", Code: cgotorch.CodeInvalidArgument,
			Shapes: pixels.String(), Message: "pixels must be uint8 [N, H, W, 3]"})
	}
	return x.Tidy(func() *cgotorch.Tensor {
		images := x.Permute(x.Empty(cgotorch.Float32, shape...), 0, 3, 1, 2)
		table := x.NormalizationTable(mean[:], std[:], cgotorch.Float32)
		x.NormalizeImages(x.Contiguous(pixels, cgotorch.Contiguous), nil, table, images)
		return images
	})
}
