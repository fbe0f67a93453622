package prefetcher

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// MixUp adds to each image of a batch, with its labels, the one before it, the first with the last, as torchvision's MixUp does: lambda of
// the image and 1-lambda of the other, with one lambda for the batch.
type MixUp struct {
	Alpha float64 // lambda is drawn from Beta(Alpha, Alpha); 0 turns it off; 0.2 is that of torchvision's recipe
}

// CutMix puts a box of the image before it in the place of the same box of each image of a batch, and mixes the labels by area, as
// torchvision's CutMix does, with one box for the batch.
type CutMix struct {
	Alpha float64 // the image keeps a share of its area that is drawn from Beta(Alpha, Alpha), more where the box lies over its edge; 0 turns it off; 1 is that of torchvision's recipe
}

// drawnMix is what a batch is mixed with.
type drawnMix struct {
	images images.MixOptions
	share  float64 // of an image's own label
}

// drawMix draws a batch's. One of the two has an Alpha above 0; of both, each is as likely.
func drawMix(k key, m MixUp, c CutMix, height, width int) drawnMix {
	which, _ := k.draw(drawMixOrCut)
	if c.Alpha == 0 || m.Alpha != 0 && which.unit() < 0.5 {
		lambda := beta(k, m.Alpha)
		return drawnMix{images.MixOptions{Kind: images.MixUp, Share: lambda}, lambda}
	}
	row, column := k.draw(drawCut)
	return cut(beta(k, c.Alpha), row.below(height), column.below(width), height, width)
}

// cut is the mix with a box about a place, of 1-lambda of the area, less what lies over the edge.
func cut(lambda float64, row, column, height, width int) drawnMix {
	half := 0.5 * math.Sqrt(1-lambda)
	halfHeight, halfWidth := int(half*float64(height)), int(half*float64(width))
	m := images.MixOptions{Kind: images.CutMix, Top: max(0, row-halfHeight), Left: max(0, column-halfWidth),
		Bottom: min(height, row+halfHeight), Right: min(width, column+halfWidth)}
	return drawnMix{m, 1 - float64((m.Right-m.Left)*(m.Bottom-m.Top))/float64(height*width)}
}

// beta draws from Beta(alpha, alpha), for any alpha above 0, by Devroye's one line for the symmetric distribution ("Random variate generation
// in one line of code", 1996, from two uniform numbers U and V): (1 + S / sqrt(1 + 1/((U^(-1/alpha) - 1) cos²(2πV)))) / 2, where S is a
// random sign, here that of the cosine. It needs no tries, so a fixed number of draws.
func beta(k key, alpha float64) float64 {
	u, v := k.draw(drawLambda)
	cos := math.Cos(2 * math.Pi * v.unit())
	tail := math.Pow(1-u.unit(), -1/alpha) - 1 // 1-U, which is not 0; it may be +Inf
	return 0.5 * (1 + math.Copysign(1/math.Sqrt(1+1/(tail*cos*cos)), cos))
}
