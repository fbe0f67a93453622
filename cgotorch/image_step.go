package cgotorch

import "math"

// ImageStep is one step of an image's augmentation: eight elements of the tensor of steps that [Exec.AugmentImages] reads. The zero
// value changes nothing.
//
// Each step is a function of torchvision.transforms.v2.functional on uint8 tensors, to the bit as PyTorch computes it on an x86-64 CPU
// with AVX2, on every device. (PyTorch's results on CUDA differ from its own on the CPU by 1 in few pixels.) [ContrastStep] of an image of
// more than 65,793 pixels may differ by 1: its mean is of an exact sum, PyTorch's of one rounded to float32.
type ImageStep [8]float32

// The first element of a step; csrc/kernels/augment_pixels.h numbers them too.
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

// BrightnessStep is adjust_brightness: 0 gives black, 1 the image.
func BrightnessStep(factor float64) ImageStep { return ImageStep{stepBrightness, float32(factor)} }

// ContrastStep is adjust_contrast: 0 gives the mean of the image's grey values, 1 the image.
func ContrastStep(factor float64) ImageStep { return blend(stepContrast, factor) }

// SaturationStep is adjust_saturation: 0 gives grey, 1 the image. It changes nothing in an image of 1 channel.
func SaturationStep(factor float64) ImageStep { return blend(stepSaturation, factor) }

// HueStep is adjust_hue: the hue is turned by so much of a circle, -0.5 to 0.5. It changes nothing in an image of 1 channel.
func HueStep(turn float64) ImageStep { return ImageStep{stepHue, float32(turn)} }

// PosterizeStep is posterize: of each value the highest bits are kept, 0 to 8 of them.
func PosterizeStep(bits int) ImageStep {
	return ImageStep{stepPosterize, float32(max(0, min(bits, 8)))}
}

// SolarizeStep is solarize: values of the threshold and above are inverted.
func SolarizeStep(threshold float64) ImageStep { return ImageStep{stepSolarize, float32(threshold)} }

// AutoContrastStep is autocontrast: in each channel the lowest value becomes 0 and the highest 255.
func AutoContrastStep() ImageStep { return ImageStep{stepAutoContrast} }

// EqualizeStep is equalize: in each channel the values come to be alike often.
func EqualizeStep() ImageStep { return ImageStep{stepEqualize} }

// SharpnessStep is adjust_sharpness: 0 gives a blurred image, 1 the image. It must be an image's first step.
func SharpnessStep(factor float64) ImageStep { return blend(stepSharpness, factor) }

// ShearStep is affine with shear, where x and y are the tangents of its angles and the upper left corner of the image, of that height
// and width, stays. Like the other steps that move pixels it takes the nearest pixel, has 0 outside the image, and must be an image's
// first step.
func ShearStep(x, y float64, height, width int) ImageStep {
	// By way of degrees, as torchvision's TrivialAugmentWide does it.
	radians := func(tangent float64) float64 { return math.Atan(tangent) * (180 / math.Pi) * (math.Pi / 180) }
	return affine(0, 0, 0, radians(x), radians(y), -0.5*float64(width), -0.5*float64(height))
}

// TranslateStep is affine with translate: the image moves to the right and down by so many pixels. See [ShearStep].
func TranslateStep(right, down int) ImageStep {
	return affine(0, float64(right), float64(down), 0, 0, 0, 0)
}

// RotateStep is rotate: the image turns counterclockwise about its middle and keeps its size. See [ShearStep].
func RotateStep(degrees float64) ImageStep {
	degrees = math.Mod(degrees, 360)
	if degrees < 0 {
		degrees += 360
	}
	return affine(-degrees*(math.Pi/180), 0, 0, 0, 0, 0, 0)
}

func blend(kind, factor float64) ImageStep {
	return ImageStep{float32(kind), float32(factor), float32(1 - factor)}
}

// affine is the inverse matrix of a rotation and shear about a centre and a translation, as torchvision's _get_inverse_affine_matrix
// computes it. Angles are in radians; the centre is told from the middle of the image, in pixels.
func affine(angle, right, down, shearX, shearY, centerX, centerY float64) ImageStep {
	a := math.Cos(angle-shearY) / math.Cos(shearY)
	b := -(a*math.Tan(shearX) + math.Sin(angle))
	c := math.Sin(angle-shearY) / math.Cos(shearY)
	d := math.Cos(angle) - c*math.Tan(shearX)
	x := centerX - d*(centerX+right) + b*(centerY+down)
	y := centerY + c*(centerX+right) - a*(centerY+down)
	return ImageStep{stepAffine, float32(d), float32(-b), float32(x), float32(-c), float32(a), float32(y)}
}
