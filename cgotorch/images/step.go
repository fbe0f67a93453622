package images

import "math"

// Step is one step of an image's augmentation: eight elements of the tensor of steps that
// [Augment] reads. The zero value changes nothing.
//
// Each step is a function of torchvision.transforms.v2.functional on uint8 tensors. Its results
// on every device are those of PyTorch on an x86-64 CPU with AVX2, to the bit. PyTorch's
// results on CUDA differ from its own on the CPU by 1 in few pixels.
//
// [Contrast] of an image of more than 65,793 pixels may differ by 1. Its mean is of an exact
// sum, and PyTorch's mean is of a sum rounded to float32.
type Step [8]float32

// The first element of a step. csrc/kernels/augment_pixels.h numbers them too.
const (
	stepBrightness = 1 + iota
	stepContrast
	stepSaturation
	stepHue
	stepPosterize
	stepSolarize
	stepAutoContrast
	stepEqualize
	stepSharpness
	stepAffine
)

// Brightness is adjust_brightness: 0 gives black, 1 the image.
func Brightness(factor float64) Step { return Step{stepBrightness, float32(factor)} }

// Contrast is adjust_contrast: 0 gives the mean of the image's grey values, 1 the image.
func Contrast(factor float64) Step { return blend(stepContrast, factor) }

// Saturation is adjust_saturation: 0 gives grey, 1 the image. It changes nothing in an image of
// 1 channel.
func Saturation(factor float64) Step { return blend(stepSaturation, factor) }

// Hue is adjust_hue: the hue turns by this share of a circle, -0.5 to 0.5. It changes nothing
// in an image of 1 channel.
func Hue(turn float64) Step { return Step{stepHue, float32(turn)} }

// Posterize is posterize: each value keeps its highest bits, 0 to 8 of them.
func Posterize(bits int) Step {
	return Step{stepPosterize, float32(max(0, min(bits, 8)))}
}

// Solarize is solarize: values of the threshold and above are inverted.
func Solarize(threshold float64) Step { return Step{stepSolarize, float32(threshold)} }

// AutoContrast is autocontrast: in each channel the lowest value becomes 0 and the highest 255.
func AutoContrast() Step { return Step{stepAutoContrast} }

// Equalize is equalize: in each channel all values become about equally frequent.
func Equalize() Step { return Step{stepEqualize} }

// Sharpness is adjust_sharpness: 0 gives a blurred image, 1 the image. It must be an image's
// first step.
func Sharpness(factor float64) Step { return blend(stepSharpness, factor) }

// Shear is affine with shear, where x and y are the tangents of its angles. The upper left
// corner of the image, of that height and width, stays. Like the other steps that move pixels
// it takes the nearest pixel and has 0 outside the image. It must be the first step of its
// image.
func Shear(x, y float64, height, width int) Step {
	// By way of degrees, as torchvision's TrivialAugmentWide does it.
	radians := func(tangent float64) float64 { return math.Atan(tangent) * (180 / math.Pi) * (math.Pi / 180) }
	return affine(0, 0, 0, radians(x), radians(y), -0.5*float64(width), -0.5*float64(height))
}

// Translate is affine with translate: the image moves to the right and down by these numbers of
// pixels. See [Shear].
func Translate(right, down int) Step {
	return affine(0, float64(right), float64(down), 0, 0, 0, 0)
}

// Rotate is rotate: the image turns counterclockwise about its middle and keeps its size. See
// [Shear].
func Rotate(degrees float64) Step {
	degrees = math.Mod(degrees, 360)
	if degrees < 0 {
		degrees += 360
	}
	return affine(-degrees*(math.Pi/180), 0, 0, 0, 0, 0, 0)
}

func blend(kind, factor float64) Step {
	return Step{float32(kind), float32(factor), float32(1 - factor)}
}

// affine returns the inverse matrix of a rotation and shear about a centre and a translation,
// as torchvision's _get_inverse_affine_matrix computes it. Angles are in radians. The centre is
// counted from the middle of the image, in pixels.
func affine(angle, right, down, shearX, shearY, centerX, centerY float64) Step {
	a := math.Cos(angle-shearY) / math.Cos(shearY)
	b := -(a*math.Tan(shearX) + math.Sin(angle))
	c := math.Sin(angle-shearY) / math.Cos(shearY)
	d := math.Cos(angle) - c*math.Tan(shearX)
	x := centerX - d*(centerX+right) + b*(centerY+down)
	y := centerY + c*(centerX+right) - a*(centerY+down)
	return Step{stepAffine, float32(d), float32(-b), float32(x), float32(-c), float32(a), float32(y)}
}
