package prefetcher

import "math"

// RandomErasing paints a box of random size and place in some of the normalised images, as
// torchvision's RandomErasing does. It tries at most ten random boxes. If none of these boxes is
// smaller than the image, the image stays unchanged.
type RandomErasing struct {
	Probability        float64   // probability that an image gets a box, 0 to 1; 0 turns RandomErasing off
	MinScale, MaxScale float64   // bounds of the box's share of the image's area, which is uniform; both 0 mean 0.02 and 0.33
	MinRatio, MaxRatio float64   // bounds of the box's height / width, whose logarithm is uniform; both 0 mean 0.3 and 3.3
	Value              []float64 // the box's colour, as normalised pixels: one number, or one per channel; nil means 0, the mean
}

func (e RandomErasing) on() bool { return e.Probability != 0 }

func (e RandomErasing) valid() bool {
	return e.Probability >= 0 && e.Probability <= 1 &&
		e.MinScale >= 0 && e.MinScale <= e.MaxScale && e.MaxScale <= 1 &&
		e.MinRatio > 0 && e.MinRatio <= e.MaxRatio && !math.IsInf(e.MaxRatio, 0)
}

func (e RandomErasing) complete() RandomErasing {
	if e.MinScale == 0 && e.MaxScale == 0 {
		e.MinScale, e.MaxScale = 0.02, 0.33
	}
	if e.MinRatio == 0 && e.MaxRatio == 0 {
		e.MinRatio, e.MaxRatio = 0.3, 3.3
	}
	return e
}

// box returns the random box of the image with key k: top, left, height and width. All four are 0
// if the image gets no box.
func (e RandomErasing) box(k key, height, width int) [4]int32 {
	if whether, _ := k.draw(drawErase); whether.unit() >= e.Probability {
		return [4]int32{}
	}
	for try := range uint32(10) {
		scale, shape := k.draw(drawEraseShape + try)
		area := float64(height*width) * scale.between(e.MinScale, e.MaxScale)
		ratio := math.Exp(shape.between(math.Log(e.MinRatio), math.Log(e.MaxRatio)))
		h, w := int(math.RoundToEven(math.Sqrt(area*ratio))), int(math.RoundToEven(math.Sqrt(area/ratio)))
		if h < height && w < width {
			top, left := k.draw(drawErasePlace + try)
			return [4]int32{int32(top.below(height - h + 1)), int32(left.below(width - w + 1)), int32(h), int32(w)}
		}
	}
	return [4]int32{}
}
