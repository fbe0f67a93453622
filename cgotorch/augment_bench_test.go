package cgotorch

import (
	"math/rand/v2"
	"testing"
)

// What augmentations add to the normalising of a batch; images/s is of a device that does nothing else.
func BenchmarkAugmentImages(b *testing.B) {
	const n, side, classes = 128, 224, 1000
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]uint8, n*side*side*3)
	for i := range noise {
		noise[i] = uint8(r.IntN(256))
	}
	jitter := func() []ImageStep {
		steps := []ImageStep{BrightnessStep(0.6 + 0.8*r.Float64()), ContrastStep(0.6 + 0.8*r.Float64()), SaturationStep(0.6 + 0.8*r.Float64()), HueStep(0.2*r.Float64() - 0.1)}
		r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		return steps
	}
	for _, d := range devices(b) {
		for _, c := range []struct {
			name  string
			steps func() []ImageStep // of an image; nil for what is normalised or mixed at once
			mix   ImageMix
			dark  bool // every pixel is 0, which is the worst for a histogram on CUDA
		}{
			{name: "normalize"},
			{name: "mixup", mix: ImageMix{Mix: MixUp, Lambda: 0.3}},
			{name: "cutmix", mix: ImageMix{Mix: CutMix, Top: 50, Left: 50, Bottom: 150, Right: 150}},
			{name: "nothing", steps: func() []ImageStep { return nil }},
			{name: "brightness", steps: func() []ImageStep { return []ImageStep{BrightnessStep(0.7)} }},
			{name: "hue", steps: func() []ImageStep { return []ImageStep{HueStep(0.1)} }},
			{name: "contrast", steps: func() []ImageStep { return []ImageStep{ContrastStep(0.7)} }},
			{name: "equalize", steps: func() []ImageStep { return []ImageStep{EqualizeStep()} }},
			{name: "equalize-dark", steps: func() []ImageStep { return []ImageStep{EqualizeStep()} }, dark: true},
			{name: "sharpness", steps: func() []ImageStep { return []ImageStep{SharpnessStep(1.5)} }},
			{name: "rotate", steps: func() []ImageStep { return []ImageStep{RotateStep(30)} }},
			{name: "jitter", steps: jitter},
			{name: "equalize+jitter", steps: func() []ImageStep { return append([]ImageStep{EqualizeStep()}, jitter()...) }},
		} {
			b.Run("device="+d.String()+"/"+c.name, func(b *testing.B) {
				on(b, d, func(x *Exec) {
					pixels := FromSlice(x, noise, n, side, side, 3)
					if c.dark {
						x.ZeroInPlace(pixels)
					}
					augmented := x.EmptyLike(pixels)
					table := x.NormalizationTable([]float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}, Float32)
					images := x.Permute(x.Empty(Float32, n, side, side, 3), 0, 3, 1, 2)
					var steps *Tensor
					if c.steps != nil {
						var all [][]ImageStep
						for range n {
							all = append(all, c.steps())
						}
						steps = x.ImageSteps(all...)
					}
					run := func() {
						switch {
						case steps != nil:
							x.AugmentImages(pixels, nil, steps, augmented)
						case c.mix.Mix != NoMix:
							x.MixImages(pixels, nil, table, images, c.mix)
						default:
							x.NormalizeImages(pixels, nil, table, images)
						}
					}
					run()
					ToSlice[uint8](x, x.Narrow(augmented, 0, 0, 1)) // the kernel is compiled and has run
					b.ResetTimer()
					for range b.N {
						run()
					}
				})
				b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "images/s")
			})
		}
	}
}
