package vision

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// ImageNetMean and ImageNetStd are the mean and the standard deviation of ImageNet's channels.
// The channels are red, green and blue, with 1 for full intensity. torchvision's models expect
// images that are normalised with these numbers.
var (
	ImageNetMean = images.ImageNetMean
	ImageNetStd  = images.ImageNetStd
)

// Normalize returns (pixels/255 - mean)/std. `pixels` is uint8 [N, H, W, 3], RGB. The result is
// float32 [N, 3, H, W], channels last. The Do owns the result. Normalize fails with
// [cgotorch.ErrInvalidArgument] if `pixels` has a different shape or dtype. It also fails for a std
// that is not above 0, and for numbers above 1, which are for pixels of 0 to 255. The prefetcher
// normalises its batches in the same way.
func Normalize(x *cgotorch.Exec, pixels *cgotorch.Tensor, mean, std [3]float64) *cgotorch.Tensor {
	if pixels == nil {
		x.Fail("vision.Normalize", &cgotorch.Error{Op: "vision.Normalize", Kind: cgotorch.ErrInvalidArgument, Message: "pixels are nil, want a tensor uint8 [N, H, W, 3]"})
	}
	shape := pixels.Shape()
	if len(shape) != 4 || shape[3] != 3 || pixels.DType() != cgotorch.Uint8 {
		x.Fail("vision.Normalize", &cgotorch.Error{Op: "vision.Normalize", Kind: cgotorch.ErrInvalidArgument,
			Shapes: pixels.String(), Message: "pixels must be uint8 [N, H, W, 3]"})
	}
	return x.Tidy(func() *cgotorch.Tensor {
		out := x.Permute(x.Empty(cgotorch.Float32, shape...), 0, 3, 1, 2)
		table := images.NormalizationTable(x, mean[:], std[:], cgotorch.Float32)
		images.Normalize(x, x.Contiguous(pixels, cgotorch.Contiguous), nil, table, out)
		return out
	})
}

// enter returns a handle that the caller may close. If `transform` is false, this is a new handle
// to `images`. If `transform` is true, `images` must be normalised with [ImageNetMean] and
// [ImageNetStd]. The result then has the same images, but normalised with a mean and a standard
// deviation of 0.5. The result equals torchvision's to the bit.
func enter(x *cgotorch.Exec, images *cgotorch.Tensor, transform bool) *cgotorch.Tensor {
	if !transform {
		return x.Alias(images)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		var channels []*cgotorch.Tensor
		for c, mean := range ImageNetMean {
			channel := x.MulScalar(x.Narrow(images, 1, c, 1), ImageNetStd[c]/0.5)
			channels = append(channels, x.AddScalar(channel, (mean-0.5)/0.5))
		}
		return x.Cat(channels, 1)
	})
}

// entrance is the function `enter` as a module.
type entrance struct{ transform bool }

func (m entrance) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	return enter(x, images, m.transform)
}

// Fuse implements [nn.Fusible].
func (m entrance) Fuse(*cgotorch.Exec, *nn.Fusion) nn.Module {
	if !m.transform {
		return &nn.Identity{}
	}
	return m
}

// checkTransform fails for TransformInput with images that do not have 3 channels.
func checkTransform(x *cgotorch.Exec, where string, o Options) {
	if o.TransformInput && o.Channels != 0 && o.Channels != 3 {
		x.Fail(where, fmt.Errorf("TransformInput of images with %d channels, want 3: %w", o.Channels, cgotorch.ErrInvalidArgument))
	}
}
