package prefetcher

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// ColorJitter changes brightness, contrast, saturation and hue, in random order, as torchvision's
// ColorJitter does. A field of 0 leaves its property unchanged.
type ColorJitter struct {
	// For a field of value v the property is multiplied by a random factor. The factor is uniform
	// between max(0, 1-v) and 1+v.
	Brightness, Contrast, Saturation float64
	// The hue is turned by a random angle, uniform between -Hue and Hue, where 1 is a full circle.
	// Hue is at most 0.5.
	Hue float64
}

func (j ColorJitter) on() bool { return j != ColorJitter{} }

func (j ColorJitter) valid() bool {
	for _, v := range []float64{j.Brightness, j.Contrast, j.Saturation} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return false
		}
	}
	return j.Hue >= 0 && j.Hue <= 0.5
}

// jitterSteps is the greatest number of steps that ColorJitter gives an image. A step is one
// change of the image, for instance of its brightness.
const jitterSteps = 4

// steps appends to `to` the steps for the image with key k.
func (j ColorJitter) steps(k key, to []images.Step) []images.Step {
	brightness, contrast := k.draw(drawJitter)
	saturation, hue := k.draw(drawJitterColour)
	factor := func(c choice, v float64) float64 { return c.between(max(0, 1-v), 1+v) }
	order, _ := k.draw(drawJitterOrder)
	for _, which := range permutationOf4(order.below(24)) {
		switch {
		case which == 0 && j.Brightness > 0:
			to = append(to, images.Brightness(factor(brightness, j.Brightness)))
		case which == 1 && j.Contrast > 0:
			to = append(to, images.Contrast(factor(contrast, j.Contrast)))
		case which == 2 && j.Saturation > 0:
			to = append(to, images.Saturation(factor(saturation, j.Saturation)))
		case which == 3 && j.Hue > 0:
			to = append(to, images.Hue(hue.between(-j.Hue, j.Hue)))
		}
	}
	return to
}

// permutationOf4 returns permutation i of the 24 permutations of 0 to 3.
func permutationOf4(i int) []int {
	left, order := []int{0, 1, 2, 3}, make([]int, 0, 4)
	for n := 4; n > 0; n-- {
		at := i % n
		i /= n
		order = append(order, left[at])
		left = slices.Delete(left, at, at+1)
	}
	return order
}
