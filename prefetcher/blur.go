package prefetcher

import "math"

// GaussianBlur blurs images by a random Gaussian. Each image has its own standard deviation.
//
// Source: torchvision.transforms.v2.GaussianBlur
type GaussianBlur struct {
	Kernel             int     // height and width of the kernel in pixels, odd and at most 63; 0 turns GaussianBlur off
	MinSigma, MaxSigma float64 // bounds of the standard deviation in pixels, which is uniform; both 0 mean 0.1 and 2
	Probability        float64 // probability that an image is blurred; 0 means 1
}

func (b GaussianBlur) on() bool { return b.Kernel != 0 }

func (b GaussianBlur) complete() GaussianBlur {
	if b.MinSigma == 0 && b.MaxSigma == 0 {
		b.MinSigma, b.MaxSigma = 0.1, 2
	}
	if b.Probability == 0 {
		b.Probability = 1
	}
	return b
}

func (b GaussianBlur) valid() bool {
	return b.MinSigma > 0 && b.MinSigma <= b.MaxSigma && !math.IsInf(b.MaxSigma, 0) && b.Probability >= 0 && b.Probability <= 1
}

// sigma returns the random standard deviation of the image with key k, or 0 if the image is not
// blurred.
func (b GaussianBlur) sigma(k key) float32 {
	whether, sigma := k.draw(drawBlur)
	if whether.unit() >= b.Probability {
		return 0
	}
	return float32(sigma.between(b.MinSigma, b.MaxSigma))
}
