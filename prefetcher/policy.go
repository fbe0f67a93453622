package prefetcher

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// RandAugment gives each image several of 14 operations, one after another, all with the same
// strength.
//
// Source: torchvision.transforms.v2.RandAugment
type RandAugment struct {
	Operations int // operations for each image, at most 16; 0 turns RandAugment off; torchvision's default is 2
	Magnitude  int // strength of all operations, from 0 to Bins-1; torchvision's default is 9
	Bins       int // number of strengths, 2 or above; 0 means 31
}

const (
	mostOperations = 16 // of RandAugment
	autoMagnitudes = 10 // strengths of AutoAugment's operations
)

// operation is one of the operations of the policies. The order is that of torchvision's tables.
type operation int

const (
	identity operation = iota
	shearX
	shearY
	translateX
	translateY
	rotate
	brightness
	colour
	contrast
	sharpness
	posterize
	solarize
	autoContrast
	equalize
	invert
)

// strengths holds the greatest strengths of a policy's operations, and the number of strengths.
type strengths struct {
	bins                               int
	shear, right, down, rotate, factor float32
	bits, fewer                        float32 // Posterize leaves `bits` to bits-fewer bits
}

func trivialStrengths() strengths { return strengths{31, 0.99, 32, 32, 135, 0.99, 8, 6} }

func autoStrengths(bins, height, width int) strengths {
	return strengths{bins, 0.3, float32(150.0 / 331.0 * float64(width)), float32(150.0 / 331.0 * float64(height)), 30, 0.9, 8, 4}
}

// magnitude returns number i of the operation's strengths, as torchvision counts them.
func (s strengths) magnitude(o operation, i int, negative bool) float64 {
	most := s.factor
	switch o {
	case identity, autoContrast, equalize, invert:
		return 0
	case posterize:
		return math.RoundToEven(float64(s.bits - float32(i)/(float32(s.bins-1)/s.fewer)))
	case solarize:
		return linspace(1, 0, s.bins, i)
	case shearX, shearY:
		most = s.shear
	case translateX:
		most = s.right
	case translateY:
		most = s.down
	case rotate:
		most = s.rotate
	}
	if v := linspace(0, most, s.bins, i); !negative {
		return v
	} else {
		return -v
	}
}

// step makes the step of an operation for an image of this height and width.
func (o operation) step(magnitude float64, height, width int) images.Step {
	switch o {
	case shearX:
		return images.Shear(magnitude, 0, height, width)
	case shearY:
		return images.Shear(0, magnitude, height, width)
	case translateX:
		return images.Translate(int(magnitude), 0)
	case translateY:
		return images.Translate(0, int(magnitude))
	case rotate:
		return images.Rotate(magnitude)
	case brightness:
		return images.Brightness(1 + magnitude)
	case colour:
		return images.Saturation(1 + magnitude)
	case contrast:
		return images.Contrast(1 + magnitude)
	case sharpness:
		return images.Sharpness(1 + magnitude)
	case posterize:
		return images.Posterize(int(magnitude))
	case solarize:
		return images.Solarize(255 * magnitude)
	case autoContrast:
		return images.AutoContrast()
	case equalize:
		return images.Equalize()
	case invert:
		return images.Invert()
	}
	return images.Step{}
}

// linspace returns number i of n evenly spaced numbers from `first` to `last`, rounded to float32
// as torch.linspace rounds.
func linspace(first, last float32, n, i int) float64 {
	step := (last - first) / float32(n-1)
	if i < n/2 {
		return float64(float32(float64(first) + float64(step)*float64(i)))
	}
	return float64(float32(float64(last) - float64(step)*float64(n-1-i)))
}

// policyOf returns the greatest number of operations that a policy gives an image, without AugMix.
func (o Options) policyOf() int {
	switch {
	case o.TrivialAugmentWide:
		return 1
	case o.AutoAugment != "":
		return 2
	}
	return o.RandAugment.Operations
}

// policy appends to `to` the steps that the policy gives the image with key k. AugMix is not among
// them.
func (o Options) policy(k key, to []images.Step, height, width int) []images.Step {
	add := func(op operation, magnitude float64) {
		to = append(to, o.placed(op.step(magnitude, height, width), o.Bilinear))
	}
	switch {
	case o.TrivialAugmentWide:
		which, strength := k.draw(drawTrivial)
		sign, _ := k.draw(drawTrivialSign)
		op, s := operation(which.below(int(invert))), trivialStrengths()
		add(op, s.magnitude(op, strength.below(s.bins), sign.unit() < 0.5))
	case o.AutoAugment != "":
		s := autoStrengths(autoMagnitudes, height, width)
		which, _ := k.draw(drawAuto)
		pairs := autoAugments[o.AutoAugment]
		for i, p := range pairs[which.below(len(pairs))] {
			whether, sign := k.draw(drawAutoOperation + uint32(i))
			if whether.unit() < p.probability {
				add(p.operation, s.magnitude(p.operation, p.magnitude, sign.unit() < 0.5))
			}
		}
	default:
		s := autoStrengths(o.RandAugment.Bins, height, width)
		for i := range o.RandAugment.Operations {
			which, sign := k.draw(drawRand + uint32(i))
			op := operation(which.below(int(invert)))
			add(op, s.magnitude(op, o.RandAugment.Magnitude, sign.unit() < 0.5))
		}
	}
	return to
}

// placed returns the step with the interpolation and the fill of the options.
func (o Options) placed(s images.Step, bilinear bool) images.Step {
	if bilinear {
		s = s.Bilinear()
	}
	switch len(o.Fill) {
	case 0:
		return s
	case 1:
		return s.Fill(o.Fill[0], o.Fill[0], o.Fill[0])
	}
	return s.Fill(o.Fill[0], o.Fill[1], o.Fill[2])
}
