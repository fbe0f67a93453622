package images_test

import (
	"math/rand/v2"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// BenchmarkAugmentImages measures augmenting, blurring, normalising and mixing of a batch, each
// alone. It reports images/s on a device that does nothing else.
func BenchmarkAugmentImages(b *testing.B) {
	const n, side, classes = 128, 224, 1000
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]uint8, n*side*side*3)
	for i := range noise {
		noise[i] = uint8(r.IntN(256))
	}
	jitter := func() []images.Step {
		steps := []images.Step{images.Brightness(0.6 + 0.8*r.Float64()), images.Contrast(0.6 + 0.8*r.Float64()), images.Saturation(0.6 + 0.8*r.Float64()), images.Hue(0.2*r.Float64() - 0.1)}
		r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		return steps
	}
	for _, d := range torchtest.Devices() {
		for _, c := range []struct {
			name  string
			steps func() []images.Step // the steps of one image; nil to normalise or mix only
			mix   images.MixOptions
			blur  int  // height and width of the kernel; 0 to augment, normalise or mix
			dark  bool // every pixel is 0, which is the worst for a histogram on CUDA
		}{
			{name: "normalize"},
			{name: "mixup", mix: images.MixOptions{Kind: images.MixUp, Share: 0.3}},
			{name: "cutmix", mix: images.MixOptions{Kind: images.CutMix, Top: 50, Left: 50, Bottom: 150, Right: 150}},
			{name: "nothing", steps: func() []images.Step { return nil }},
			{name: "brightness", steps: func() []images.Step { return []images.Step{images.Brightness(0.7)} }},
			{name: "hue", steps: func() []images.Step { return []images.Step{images.Hue(0.1)} }},
			{name: "contrast", steps: func() []images.Step { return []images.Step{images.Contrast(0.7)} }},
			{name: "equalize", steps: func() []images.Step { return []images.Step{images.Equalize()} }},
			{name: "equalize-dark", steps: func() []images.Step { return []images.Step{images.Equalize()} }, dark: true},
			{name: "sharpness", steps: func() []images.Step { return []images.Step{images.Sharpness(1.5)} }},
			{name: "rotate", steps: func() []images.Step { return []images.Step{images.Rotate(30)} }},
			{name: "rotate-bilinear", steps: func() []images.Step { return []images.Step{images.Rotate(30).Bilinear()} }},
			{name: "blur", blur: 23},
			{name: "jitter", steps: jitter},
			{name: "equalize+jitter", steps: func() []images.Step { return append([]images.Step{images.Equalize()}, jitter()...) }},
		} {
			b.Run("device="+d.String()+"/"+c.name, func(b *testing.B) {
				on(b, d, func(x *cgotorch.Exec) {
					pixels := cgotorch.FromSlice(x, noise, n, side, side, 3)
					if c.dark {
						x.ZeroInPlace(pixels)
					}
					augmented := x.EmptyLike(pixels)
					table := images.NormalizationTable(x, []float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}, cgotorch.Float32)
					out := x.Permute(x.Empty(cgotorch.Float32, n, side, side, 3), 0, 3, 1, 2)
					sigmas := x.Ones(cgotorch.Float32, n, 2)
					var steps *cgotorch.Tensor
					if c.steps != nil {
						var all [][]images.Step
						for range n {
							all = append(all, c.steps())
						}
						steps = images.Steps(x, all...)
					}
					run := func() {
						switch {
						case c.blur != 0:
							images.GaussianBlur(x, pixels, sigmas, augmented, c.blur, c.blur)
						case steps != nil:
							images.Augment(x, pixels, nil, steps, augmented)
						case c.mix.Kind != images.NoMix:
							images.Mix(x, pixels, nil, table, out, c.mix)
						default:
							images.Normalize(x, pixels, nil, table, out)
						}
					}
					run()
					cgotorch.ToSlice[uint8](x, x.Narrow(augmented, 0, 0, 1)) // waits until the kernel is compiled and has run
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

// on runs a benchmark's loop in a Do. It stops the clock when the device has done the work.
func on(b *testing.B, d cgotorch.Device, fn func(x *cgotorch.Exec)) {
	s := torchtest.NewStream(b, d)
	err := s.Do(func(x *cgotorch.Exec) error {
		fn(x)
		return nil
	})
	if err == nil {
		err = s.Synchronize()
	}
	b.StopTimer()
	if err != nil {
		b.Error(err)
	}
}
