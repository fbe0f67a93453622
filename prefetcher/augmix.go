package prefetcher

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// AugMix blends each image with several changed copies of it. Each copy has a chain of random
// operations. The weights are random too.
//
// Source: torchvision.transforms.v2.AugMix
type AugMix struct {
	Severity int     // largest strength, from 1 to 10; 0 turns AugMix off; torchvision's default is 3
	Width    int     // copies of each image, at most 8; 0 means 3
	Depth    int     // operations for each copy, at most 8; 0 means 1 to 3, at random
	Alpha    float64 // parameter of the distributions of the weights, above 0; 0 means 1

	FewerOperations bool // leave out brightness, contrast, colour and sharpness: torchvision's all_ops=False
	Nearest         bool // take the nearest pixel; otherwise AugMix is bilinear, as torchvision's default
}

const (
	mostChains = 8
	mostDepth  = 8
	freeDepth  = 3 // greatest depth that is drawn
	severities = 10
)

func (a AugMix) on() bool { return a.Severity != 0 }

func (a AugMix) complete() AugMix {
	if a.Width == 0 {
		a.Width = 3
	}
	if a.Alpha == 0 {
		a.Alpha = 1
	}
	return a
}

// deepest returns the greatest number of operations that a copy has.
func (a AugMix) deepest() int {
	if a.Depth > 0 {
		return a.Depth
	}
	return freeDepth
}

func mixStrengths(height, width int) strengths {
	return strengths{severities, 0.3, float32(float64(width) / 3), float32(float64(height) / 3), 30, 0.9, 4, 4}
}

// chain appends to `to` the steps that AugMix gives copy number i of the image with key k.
func (o Options) chain(k key, i int, to []images.Step, height, width int) []images.Step {
	a, s, depth := o.AugMix, mixStrengths(height, width), o.AugMix.Depth
	if depth == 0 {
		free, _ := k.draw(drawChainDepth + uint32(i))
		depth = 1 + free.below(freeDepth)
	}
	for d := range depth {
		at := drawChain + 2*uint32(i*mostDepth+d)
		which, strength := k.draw(at)
		sign, _ := k.draw(at + 1)
		op := shearX + operation(which.below(int(invert)-1))
		if a.FewerOperations {
			if op = shearX + operation(which.below(int(invert)-5)); op >= brightness {
				op += posterize - brightness
			}
		}
		to = append(to, o.placed(op.step(s.magnitude(op, strength.below(a.Severity), sign.unit() < 0.5), height, width), !a.Nearest))
	}
	return to
}

// weights writes the weights of the image with key k and of its copies.
func (a AugMix) weights(k key, to []float32) {
	own := beta(k, drawShare, a.Alpha)
	to[0] = float32(own)
	var logs [mostChains]float64
	most, sum := math.Inf(-1), 0.0
	for i := range a.Width {
		logs[i] = logGamma(k, drawChainWeight+uint32(i)*gammaDraws, a.Alpha)
		most = max(most, logs[i])
	}
	for i := range a.Width {
		logs[i] = math.Exp(logs[i] - most)
		sum += logs[i]
	}
	for i := range a.Width {
		to[1+i] = float32((1 - own) * logs[i] / sum)
	}
}

// gammaDraws is the number of counters that logGamma takes. The last is for alpha below 1.
const gammaDraws = 64

// logGamma returns the logarithm of a random number of the distribution Gamma(alpha, 1). It takes
// the random numbers of k from the counter `number`. The method is that of Marsaglia and Tsang ("A
// simple method for generating gamma variables", 2000). The chance that all tries fail is below
// 10^-40. The result is then the mean.
func logGamma(k key, number uint32, alpha float64) float64 {
	boost, shape := 0.0, alpha
	if alpha < 1 {
		u, _ := k.draw(number + gammaDraws - 1)
		boost, shape = math.Log(1-u.unit())/alpha, alpha+1
	}
	d := shape - 1.0/3
	for try := range uint32(gammaDraws/2 - 1) {
		u, v := k.draw(number + 2*try)
		accept, _ := k.draw(number + 2*try + 1)
		normal := math.Sqrt(-2*math.Log(1-u.unit())) * math.Cos(2*math.Pi*v.unit())
		root := 1 + normal/math.Sqrt(9*d)
		if cube := root * root * root; cube > 0 && math.Log(1-accept.unit()) < 0.5*normal*normal+d-d*cube+d*math.Log(cube) {
			return math.Log(d*cube) + boost
		}
	}
	return math.Log(shape) + boost
}
