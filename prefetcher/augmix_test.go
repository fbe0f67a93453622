package prefetcher

import (
	"hash/crc32"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// torchvision's chains and weights give torchvision's image.
func TestAugMix_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		Source  string
		Chains  [][][2]any
		Weights []float32
		CRC     uint32
	}
	filetest.JSON(t, fixtures+"augmix.json", &cases)
	if len(cases) != 2 {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for i, c := range cases {
			pixels, height, width := source(t, c.Source)
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				img := cgotorch.FromSlice(x, pixels, 1, int64(height), int64(width), 3)
				var copies []*cgotorch.Tensor
				for _, chain := range c.Chains {
					copied := img
					for _, o := range chain {
						step := operations[o[0].(string)].step(o[1].(float64), height, width).Bilinear()
						out := x.EmptyLike(img)
						images.Augment(x, copied, nil, images.Steps(x, []images.Step{step}), out)
						copied = out
					}
					copies = append(copies, copied)
				}
				out := x.EmptyLike(img)
				images.Blend(x, img, nil, x.Cat(copies, 0), cgotorch.FromSlice(x, c.Weights, 1, int64(len(c.Weights))), out)
				if got := crc32.ChecksumIEEE(cgotorch.ToSlice[uint8](x, out)); got != c.CRC {
					t.Errorf("image %d: CRC-32 %d, torchvision's is %d", i, got, c.CRC)
				}
			})
		}
	})
}

// The weights have torchvision's distribution, and their sum is 1.
func TestAugMix_Distribution(t *testing.T) {
	for _, want := range distributions(t, "AugMix") {
		a := AugMix{Severity: 3, Width: want.Width, Alpha: want.Alpha}
		weights, got := make([]float32, 1+a.Width), map[string][]float64{}
		for k := range keys {
			a.weights(k, weights)
			sum := 0.0
			for _, w := range weights {
				sum += float64(w)
			}
			if math.Abs(sum-1) > 1e-6 {
				t.Fatalf("key %d: weights %v", k, weights)
			}
			got["own"] = append(got["own"], float64(weights[0]))
			got["first"] = append(got["first"], float64(weights[1]))
			got["last"] = append(got["last"], float64(weights[a.Width]))
		}
		for name, values := range want.Values {
			values.check(t, name, want.Draws, got[name])
		}
	}
}

// A chain has the given depth, or 1 to 3 operations, all equally likely. Its strengths are below
// the severity.
func TestAugMix_Chains(t *testing.T) {
	const height, width, severity = 90, 120, 4
	s := mixStrengths(height, width)
	for _, fewer := range []bool{false, true} {
		o := Options{Augmentations: Augmentations{AugMix: AugMix{Severity: severity, FewerOperations: fewer, Nearest: true}}}
		places := map[images.Step]operation{}
		for op := shearX; op < invert; op++ {
			for i := range severity {
				for _, negative := range []bool{false, true} {
					if step := op.step(s.magnitude(op, i, negative), height, width); i > 0 || op >= posterize {
						places[step] = op
					}
				}
			}
		}
		depths, counts, still := make([]int, freeDepth), make([]int, invert), 0
		for k := range keys {
			steps := o.chain(k, 2, nil, height, width)
			depths[len(steps)-1]++
			for _, step := range steps {
				if op, is := places[step]; is {
					counts[op]++
				} else if step != shearX.step(0, height, width) && step != translateX.step(0, height, width) && step != brightness.step(0, height, width) &&
					step != colour.step(0, height, width) && step != contrast.step(0, height, width) && step != sharpness.step(0, height, width) &&
					step != rotate.step(0, height, width) {
					t.Fatalf("key %d: step %v is none of AugMix's", k, step)
				} else {
					still++
				}
			}
		}
		even(t, "depth", depths)
		even(t, "geometry", counts[shearX:brightness])
		even(t, "tables", counts[posterize:invert])
		if fewer != (counts[brightness] == 0) || still == 0 {
			t.Errorf("fewer operations: %v, %d of brightness, %d of strength 0", fewer, counts[brightness], still)
		}
		if !fewer {
			even(t, "colours", counts[brightness:posterize])
		}
		o.AugMix.Depth = 5
		if n := len(o.chain(1, 0, nil, height, width)); n != 5 {
			t.Errorf("%d operations, want 5", n)
		}
	}
}

func TestGaussianBlur_Distribution(t *testing.T) {
	b := GaussianBlur{Kernel: 3, Probability: 0.4}.complete()
	count, sum := 0, 0.0
	for k := range keys {
		if sigma := float64(b.sigma(k)); sigma > 0 {
			count++
			sum += sigma
			if sigma < 0.1 || sigma > 2 {
				t.Fatalf("key %d: sigma %v", k, sigma)
			}
		}
	}
	if got := float64(count) / keysDrawn; math.Abs(got-0.4) > 0.02 {
		t.Errorf("%v of the images are blurred, want 0.4", got)
	}
	if got := sum / float64(count); math.Abs(got-1.05) > 0.03 {
		t.Errorf("mean sigma %v, want 1.05", got)
	}
}
