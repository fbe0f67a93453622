package prefetcher

import (
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Each operation with each magnitude gives the same pixels as torchvision.
func TestTrivialOperation_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		Source, Name string
		Operation    int
		Signed       bool
		CRCs         []uint32
	}
	filetest.JSON(t, fixtures+"trivial.json", &cases)
	if len(cases) != 2*trivialOperations {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, c := range cases {
			pixels, height, width := source(t, c.Source)
			signs := []bool{false}
			if c.Signed {
				signs = []bool{false, true}
			}
			var steps [][]images.Step
			for magnitude := range len(c.CRCs) / len(signs) {
				for _, negative := range signs {
					steps = append(steps, []images.Step{trivialOperation(c.Operation, magnitude, negative, height, width)})
				}
			}
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				from := cgotorch.FromSlice(x, slices.Repeat(pixels, len(steps)), int64(len(steps)), int64(height), int64(width), 3)
				out := x.EmptyLike(from)
				images.Augment(x, from, nil, images.Steps(x, steps...), out)
				got := cgotorch.ToSlice[uint8](x, out)
				for i, want := range c.CRCs {
					if crc := crc32.ChecksumIEEE(got[i*len(pixels):][:len(pixels)]); crc != want {
						t.Errorf("%s of %s, number %d: CRC-32 %d, torchvision's is %d", c.Name, c.Source, i, crc, want)
					}
				}
			})
		}
	})
}

// The function `source` returns an image of tests/fixtures/transforms as [H, W, 3].
func source(t *testing.T, name string) (pixels []uint8, height, width int) {
	t.Helper()
	img := filetest.PNG(t, "../tests/fixtures/transforms/source-"+name+".png")
	size := img.Bounds().Size()
	for y := range size.Y {
		for x := range size.X {
			r, g, b, _ := img.At(x, y).RGBA()
			pixels = append(pixels, uint8(r>>8), uint8(g>>8), uint8(b>>8))
		}
	}
	return pixels, size.Y, size.X
}

func TestTrivialStep_EvenlySpread(t *testing.T) {
	operations, magnitudes, negatives := [trivialOperations]int{}, [trivialMagnitudes]int{}, 0
	places := map[images.Step][2]int{} // the operation and the magnitude of each step
	for operation := range trivialOperations {
		for magnitude := range trivialMagnitudes {
			places[trivialOperation(operation, magnitude, false, 20, 30)] = [2]int{operation, magnitude}
		}
	}
	for k := range keys {
		step := trivialStep(k, 20, 30)
		operation, magnitude := k.draw(drawTrivial)
		sign, _ := k.draw(drawTrivialSign)
		o, m, negative := operation.below(trivialOperations), magnitude.below(trivialMagnitudes), sign.unit() < 0.5
		if want := trivialOperation(o, m, negative, 20, 30); step != want {
			t.Fatalf("key %d: step %v, want %v", k, step, want)
		}
		operations[o]++
		magnitudes[m]++
		if negative {
			negatives++
		}
	}
	even := func(what string, counts []int, n int) {
		for i, count := range counts {
			if want := float64(keysDrawn) / float64(n); float64(count) < 0.85*want || float64(count) > 1.15*want {
				t.Errorf("%s %d: %d of %d draws", what, i, count, keysDrawn)
			}
		}
	}
	even("operation", operations[:], trivialOperations)
	even("magnitude", magnitudes[:], trivialMagnitudes)
	even("sign", []int{negatives, keysDrawn - negatives}, 2)
}

// Vertical flips come first and the loss of colours last, each with its probability. Neither choice
// depends on the other augmentations.
func TestOptions_FlipsAndGreys(t *testing.T) {
	o := Options{VerticalFlip: 0.3, ColorJitter: ColorJitter{Brightness: 0.4}, Grayscale: 0.2}
	flips, greys := 0, 0
	for k := range keys {
		steps := o.steps(k, nil, 20, 30)
		flipped, grey := steps[0] == images.FlipVertical(), steps[len(steps)-1] == images.Grayscale()
		if flipped {
			flips++
		}
		if grey {
			greys++
		}
		if alone := (Options{VerticalFlip: 0.3}).steps(k, nil, 20, 30); (len(alone) == 1) != flipped {
			t.Fatalf("key %d: %d steps of VerticalFlip alone, and with all %v", k, len(alone), flipped)
		}
		if want := 1 + btoi(flipped) + btoi(grey); len(steps) != want {
			t.Fatalf("key %d: %d steps, want %d", k, len(steps), want)
		}
	}
	for what, share := range map[string][2]float64{"flips": {float64(flips), 0.3}, "greys": {float64(greys), 0.2}} {
		if got := share[0] / keysDrawn; got < share[1]-0.02 || got > share[1]+0.02 {
			t.Errorf("%s: %v of the images, want %v", what, got, share[1])
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestColorJitter_Distribution(t *testing.T) {
	want := distributions(t, "ColorJitter")[0]
	jitter := ColorJitter{Brightness: 0.4, Contrast: 1.5, Saturation: 0.2, Hue: 0.1}
	names := map[float32]string{images.Brightness(0)[0]: "brightness", images.Contrast(0)[0]: "contrast",
		images.Saturation(0)[0]: "saturation", images.Hue(0)[0]: "hue"}
	numbers := map[string]int{"brightness": 0, "contrast": 1, "saturation": 2, "hue": 3}
	got := map[string][]float64{}
	for k := range keys {
		steps := jitter.steps(k, nil)
		if len(steps) != jitterSteps {
			t.Fatalf("key %d: %d steps", k, len(steps))
		}
		for place, step := range steps {
			name := names[step[0]]
			got[name] = append(got[name], float64(step[1]))
			which := fmt.Sprintf("place of %d", numbers[name])
			got[which] = append(got[which], float64(place))
		}
	}
	for name, s := range want.Values {
		s.check(t, name, want.Draws, got[name])
	}
	if len(got) != len(want.Values) {
		t.Errorf("%d values were drawn, torchvision draws %d", len(got), len(want.Values))
	}
}

// A jitter of one property changes the property by the same amount as a jitter of all four does.
func TestColorJitter_OneAlone(t *testing.T) {
	all := ColorJitter{Brightness: 0.4, Contrast: 1.5, Saturation: 0.2, Hue: 0.1}
	for _, one := range []ColorJitter{{Brightness: 0.4}, {Contrast: 1.5}, {Saturation: 0.2}, {Hue: 0.1}} {
		for k := range key(50) {
			alone := one.steps(k, nil)
			if len(alone) != 1 || !slices.Contains(all.steps(k, nil), alone[0]) {
				t.Fatalf("%+v, key %d: %v alone, %v with all", one, k, alone, all.steps(k, nil))
			}
		}
	}
	if steps := (ColorJitter{}).steps(1, nil); len(steps) != 0 {
		t.Errorf("no jitter has steps %v", steps)
	}
}

func TestPermutationOf4(t *testing.T) {
	seen := map[string]bool{}
	for i := range 24 {
		p := permutationOf4(i)
		seen[fmt.Sprint(p)] = true
		if slices.Sort(p); !slices.Equal(p, []int{0, 1, 2, 3}) {
			t.Errorf("order %d has %v", i, p)
		}
	}
	if len(seen) != 24 {
		t.Errorf("%d orders, want 24", len(seen))
	}
}
