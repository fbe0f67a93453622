package images

import "math"

// Step is one step of an image's augmentation. It is one row of 8 elements of the tensor that
// [Augment] reads. The zero value changes nothing.
//
// Each step is a function of torchvision.transforms.v2.functional on uint8 tensors. Its results
// on every device equal those of PyTorch on an x86-64 CPU with AVX2, to the bit. PyTorch's own
// results on CUDA differ from its results on the CPU by 1 in a few pixels.
//
// [Contrast] of an image of more than 65,793 pixels may differ from PyTorch's by 1. This package
// takes the mean of an exact sum. PyTorch takes the mean of a sum that is rounded to float32.
type Step [8]float32

// These are values of the first element of a step. They must equal the numbers in
// csrc/kernels/augment_pixels.h.
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
	stepBilinear
)

// Brightness is torchvision's adjust_brightness. A factor of 0 gives black, and 1 gives the
// image.
func Brightness(factor float64) Step { return Step{stepBrightness, float32(factor)} }

// Contrast is torchvision's adjust_contrast. A factor of 0 gives the mean of the image's grey
// values, and 1 gives the image.
func Contrast(factor float64) Step { return blend(stepContrast, factor) }

// Saturation is torchvision's adjust_saturation. A factor of 0 gives grey, and 1 gives the image.
// Saturation changes nothing in an image of 1 channel.
func Saturation(factor float64) Step { return blend(stepSaturation, factor) }

// Hue is torchvision's adjust_hue. It turns the hue by `turn`, a fraction of a circle from -0.5
// to 0.5. It changes nothing in an image of 1 channel.
func Hue(turn float64) Step { return Step{stepHue, float32(turn)} }

// Grayscale is torchvision's rgb_to_grayscale with as many channels as the image has. It changes
// nothing in an image of 1 channel.
func Grayscale() Step { return Saturation(0) }

// Posterize is torchvision's posterize. Each value keeps its highest bits, as many as the
// argument `bits` says, from 0 to 8. Its other bits become 0.
func Posterize(bits int) Step {
	return Step{stepPosterize, float32(max(0, min(bits, 8)))}
}

// Solarize is torchvision's solarize. It inverts each value that is equal to the threshold or
// above it.
func Solarize(threshold float64) Step { return Step{stepSolarize, float32(threshold)} }

// Invert is torchvision's invert. Each value v becomes 255-v.
func Invert() Step { return Solarize(0) }

// AutoContrast is torchvision's autocontrast. In each channel the lowest value becomes 0 and the
// highest value becomes 255.
func AutoContrast() Step { return Step{stepAutoContrast} }

// Equalize is torchvision's equalize. In each channel all values become about equally frequent.
func Equalize() Step { return Step{stepEqualize} }

// Sharpness is torchvision's adjust_sharpness. A factor of 0 gives a blurred image, and 1 gives
// the image. Sharpness leads: see [Step.Leads].
func Sharpness(factor float64) Step { return blend(stepSharpness, factor) }

// Shear is torchvision's affine with shear. x and y are the tangents of the two angles. height
// and width are those of the image. The upper left corner of the image does not move.
//
// Shear leads: see [Step.Leads]. It takes the nearest pixel, and gives 0 outside the image. For
// other choices see [Step.Bilinear] and [Step.Fill].
func Shear(x, y float64, height, width int) Step {
	// The angle is converted to degrees and back, as in torchvision's TrivialAugmentWide, because the
	// result must have the same bits.
	radians := func(tangent float64) float64 { return math.Atan(tangent) * (180 / math.Pi) * (math.Pi / 180) }
	return affine(0, 0, 0, radians(x), radians(y), -0.5*float64(width), -0.5*float64(height))
}

// Translate is torchvision's affine with translate. The image moves by `right` and `down` pixels.
// Pixels from outside the image are 0. For another colour see [Step.Fill]. Translate leads: see
// [Step.Leads].
func Translate(right, down int) Step {
	return affine(0, float64(right), float64(down), 0, 0, 0, 0)
}

// FlipVertical is torchvision's vertical_flip: the top becomes the bottom. It leads: see
// [Step.Leads].
func FlipVertical() Step {
	return Step{stepAffine, 1, 0, 0, 0, -1} // the height is counted from the middle of the image
}

// Rotate is torchvision's rotate. The image turns counterclockwise about its centre and keeps its
// size. Rotate takes the nearest pixel, and gives 0 outside the image. For other choices see
// [Step.Bilinear] and [Step.Fill]. Rotate leads: see [Step.Leads].
func Rotate(degrees float64) Step {
	degrees = math.Mod(degrees, 360)
	if degrees < 0 {
		degrees += 360
	}
	return affine(-degrees*(math.Pi/180), 0, 0, 0, 0, 0, 0)
}

// Leads reports whether the step works only as the first step of its image in a call of [Augment].
// Such a step reads several pixels: [Sharpness], [Shear], [Translate], [Rotate] or [FlipVertical].
// A second step that leads takes a second call.
func (s Step) Leads() bool {
	return s.moves() || s[0] == stepSharpness
}

// Bilinear returns the step with torchvision's bilinear interpolation. It changes only [Shear],
// [Translate] and [Rotate]. A result is weighed from four pixels and rounded.
func (s Step) Bilinear() Step {
	if s.moves() {
		s[0] = stepBilinear
	}
	return s
}

// Fill returns the step with torchvision's fill: the colour of pixels from outside the image. It
// changes only [Shear], [Translate] and [Rotate]. An image of 1 channel takes the value of red.
func (s Step) Fill(red, green, blue uint8) Step {
	if s.moves() {
		s[7] = float32(1 + int(red) + int(green)<<8 + int(blue)<<16)
	}
	return s
}

func (s Step) moves() bool { return s[0] == stepAffine || s[0] == stepBilinear }

func blend(kind, factor float64) Step {
	return Step{float32(kind), float32(factor), float32(1 - factor)}
}

// affine returns a step with an inverse matrix, as torchvision's _get_inverse_affine_matrix
// computes it. The matrix inverts a rotation and a shear about a centre, and a translation. Angles
// are in radians. The centre is in pixels, counted from the middle of the image.
func affine(angle, right, down, shearX, shearY, centerX, centerY float64) Step {
	a := math.Cos(angle-shearY) / math.Cos(shearY)
	b := -(a*math.Tan(shearX) + math.Sin(angle))
	c := math.Sin(angle-shearY) / math.Cos(shearY)
	d := math.Cos(angle) - c*math.Tan(shearX)
	x := centerX - d*(centerX+right) + b*(centerY+down)
	y := centerY + c*(centerX+right) - a*(centerY+down)
	return Step{stepAffine, float32(d), float32(-b), float32(x), float32(-c), float32(a), float32(y)}
}
