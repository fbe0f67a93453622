package prefetcher

import (
	"fmt"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// Vertical flips come first and the loss of colours last, each with its probability. Neither choice
// depends on the other augmentations.
func TestOptions_FlipsAndGreys(t *testing.T) {
	o := Options{Augmentations: Augmentations{VerticalFlip: 0.3, ColorJitter: ColorJitter{Brightness: 0.4}, Grayscale: 0.2}}
	flips, greys := 0, 0
	for k := range keys {
		steps := o.after(k, o.before(k, nil, 20, 30))
		flipped, grey := steps[0] == images.FlipVertical(), steps[len(steps)-1] == images.Grayscale()
		if flipped {
			flips++
		}
		if grey {
			greys++
		}
		if alone := (Options{Augmentations: Augmentations{VerticalFlip: 0.3}}).before(k, nil, 20, 30); (len(alone) == 1) != flipped {
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
