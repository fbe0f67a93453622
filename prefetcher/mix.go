package prefetcher

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// MixUp mixes each image of a batch, and its label, with the image before it, as torchvision's
// MixUp does. The first image is mixed with the last. An image has the share lambda in its mix,
// and the image before it has 1-lambda. All images of a batch have the same lambda.
type MixUp struct {
	Alpha float64 // lambda is drawn from Beta(Alpha, Alpha); 0 turns MixUp off; torchvision's recipe has 0.2
}

// CutMix replaces a box of each image of a batch by the same box of the image before it. It mixes
// the labels by area. The box is the same for the whole batch, as in torchvision's CutMix.
type CutMix struct {
	// Each image of a batch keeps a random share of its own area. The share is drawn from Beta(Alpha,
	// Alpha), once for each batch. If the box crosses the image's edge, the images keep more. 0 turns
	// CutMix off. torchvision's recipe has 1.
	Alpha float64
}

// drawnMix says how one batch is mixed.
type drawnMix struct {
	images images.MixOptions
	share  float64 // weight of an image's own label
}

// drawMix chooses at random how the batch with key k is mixed. At least one of m and c must have
// an Alpha above 0. If both have an Alpha above 0, MixUp and CutMix are equally likely.
func drawMix(k key, m MixUp, c CutMix, height, width int) drawnMix {
	which, _ := k.draw(drawMixOrCut)
	if c.Alpha == 0 || m.Alpha != 0 && which.unit() < 0.5 {
		lambda := beta(k, drawLambda, m.Alpha)
		return drawnMix{images.MixOptions{Kind: images.MixUp, Share: lambda}, lambda}
	}
	row, column := k.draw(drawCut)
	return cut(beta(k, drawLambda, c.Alpha), row.below(height), column.below(width), height, width)
}

// cut returns the CutMix whose box has its middle at `row` and `column`. The box has 1-lambda of
// the image's area, minus the part of the box outside the image.
func cut(lambda float64, row, column, height, width int) drawnMix {
	half := 0.5 * math.Sqrt(1-lambda)
	halfHeight, halfWidth := int(half*float64(height)), int(half*float64(width))
	m := images.MixOptions{Kind: images.CutMix, Top: max(0, row-halfHeight), Left: max(0, column-halfWidth),
		Bottom: min(height, row+halfHeight), Right: min(width, column+halfWidth)}
	return drawnMix{m, 1 - float64((m.Right-m.Left)*(m.Bottom-m.Top))/float64(height*width)}
}

// beta returns a random number of the distribution Beta(alpha, alpha), for any alpha above 0. It
// takes the two random numbers of k for the counter `number`. The formula is Devroye's for the
// symmetric distribution ("Random variate generation in one line of code", 1996). U and V are
// uniform. S is a random sign, here the sign of the cosine:
//
//	(1 + S / sqrt(1 + 1/((U^(-1/alpha) - 1) cos²(2πV)))) / 2
func beta(k key, number uint32, alpha float64) float64 {
	u, v := k.draw(number)
	cos := math.Cos(2 * math.Pi * v.unit())
	tail := math.Pow(1-u.unit(), -1/alpha) - 1 // 1-U in place of U, because U may be 0; tail may be +Inf
	return 0.5 * (1 + math.Copysign(1/math.Sqrt(1+1/(tail*cos*cos)), cos))
}
