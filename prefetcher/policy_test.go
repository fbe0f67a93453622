package prefetcher

import (
	"hash/crc32"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// operations has torchvision's names of the operations.
var operations = map[string]operation{"Identity": identity, "ShearX": shearX, "ShearY": shearY, "TranslateX": translateX, "TranslateY": translateY,
	"Rotate": rotate, "Brightness": brightness, "Color": colour, "Contrast": contrast, "Sharpness": sharpness, "Posterize": posterize,
	"Solarize": solarize, "AutoContrast": autoContrast, "Equalize": equalize, "Invert": invert}

// Each operation of each policy, with each magnitude, gives the same pixels as torchvision.
func TestOperation_EqualsTorchvision(t *testing.T) {
	type fixture struct {
		Policy, Source, Name string
		Signed               bool
		Fill                 []int
		CRCs                 []uint32
	}
	var cases, others []fixture
	filetest.JSON(t, fixtures+"trivial.json", &cases)
	filetest.JSON(t, fixtures+"policies.json", &others)
	if cases = append(cases, others...); len(cases) != 2*14+14+14+2*13+2*5 {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, c := range cases {
			pixels, height, width := source(t, c.Source)
			strengths := map[string]strengths{"": trivialStrengths(), "AutoAugment": autoStrengths(10, height, width),
				"RandAugment": autoStrengths(31, height, width), "AugMix": mixStrengths(height, width)}[c.Policy]
			signs := []bool{false}
			if c.Signed {
				signs = []bool{false, true}
			}
			var o Options
			for _, v := range c.Fill {
				o.Fill = append(o.Fill, uint8(v))
			}
			var steps [][]images.Step
			for i := range len(c.CRCs) / len(signs) {
				for _, negative := range signs {
					op := operations[c.Name]
					steps = append(steps, []images.Step{o.placed(op.step(strengths.magnitude(op, i, negative), height, width), c.Policy == "AugMix")})
				}
			}
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				from := cgotorch.FromSlice(x, pixels, 1, int64(height), int64(width), 3)
				out := x.Empty(cgotorch.Uint8, int64(len(steps)), int64(height), int64(width), 3)
				images.Augment(x, from, nil, images.Steps(x, steps...), out)
				got := cgotorch.ToSlice[uint8](x, out)
				for i, want := range c.CRCs {
					if crc := crc32.ChecksumIEEE(got[i*len(pixels):][:len(pixels)]); crc != want {
						t.Errorf("%s %s of %s, fill %v, number %d: CRC-32 %d, torchvision's is %d", c.Policy, c.Name, c.Source, c.Fill, i, crc, want)
					}
				}
			})
		}
	})
}

// source returns an image of tests/fixtures/transforms as [H, W, 3].
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

// even checks that the counts of n draws are about equal.
func even(t *testing.T, what string, counts []int) {
	t.Helper()
	sum := 0
	for _, count := range counts {
		sum += count
	}
	for i, count := range counts {
		want := float64(sum) / float64(len(counts))
		if deviation := math.Sqrt(want); math.Abs(float64(count)-want) > 4.5*deviation {
			t.Errorf("%s %d: %d of %d draws", what, i, count, sum)
		}
	}
}

// Each step of TrivialAugmentWide is one of its 14 operations, all equally likely, with one of 31
// strengths, and half of them negative.
func TestTrivialAugmentWide_EvenlySpread(t *testing.T) {
	places := map[images.Step][]int{}
	s := trivialStrengths()
	for op := identity; op < invert; op++ {
		for i := range s.bins {
			for _, negative := range []bool{false, true} {
				step := op.step(s.magnitude(op, i, negative), 400, 300)
				places[step] = append(places[step], int(op))
			}
		}
	}
	counts, right := make([]int, invert), [2]int{}
	for k := range keys {
		steps := (Options{Augmentations: Augmentations{TrivialAugmentWide: true}}).policy(k, nil, 400, 300)
		ops := places[steps[0]]
		if len(steps) != 1 || len(ops) == 0 {
			t.Fatalf("key %d: steps %v", k, steps)
		}
		which, strength := k.draw(drawTrivial)
		sign, _ := k.draw(drawTrivialSign)
		op := operation(which.below(int(invert)))
		if !slices.Contains(ops, int(op)) {
			t.Fatalf("key %d: step %v is of operations %v, want %d", k, steps[0], ops, op)
		}
		counts[op]++
		if i := strength.below(31); op == translateX && i > 0 { // below a strength of one pixel the sign has no effect
			right[btoi(sign.unit() < 0.5)]++
			if want := images.Translate(int(s.magnitude(op, i, sign.unit() < 0.5)), 0); steps[0] != want {
				t.Fatalf("key %d: step %v, want %v", k, steps[0], want)
			}
		}
	}
	even(t, "operation", counts)
	even(t, "sign", right[:])
}

// The pairs of AutoAugment's policies are torchvision's.
func TestAutoAugment_PairsEqualTorchvision(t *testing.T) {
	var policies []struct {
		Policy      string
		Subpolicies [][2][3]any
	}
	filetest.JSON(t, fixtures+"autoaugment.json", &policies)
	if len(policies) != 3 || len(autoAugments) != 3 {
		t.Fatal(len(policies), len(autoAugments))
	}
	for _, p := range policies {
		got := autoAugments[p.Policy]
		if len(got) != 25 || len(p.Subpolicies) != 25 {
			t.Fatal(p.Policy, len(got), len(p.Subpolicies))
		}
		for j, pair := range p.Subpolicies {
			for l, o := range pair {
				want := autoOperation{operations[o[0].(string)], o[1].(float64), 0}
				if magnitude, is := o[2].(float64); is {
					want.magnitude = int(magnitude)
				}
				if got[j][l] != want {
					t.Errorf("%s, pair %d, operation %d: got %v, want %v", p.Policy, j, l, got[j][l], want)
				}
			}
		}
	}
}

// Each pair is equally likely, and each operation comes with its probability.
func TestAutoAugment_Distribution(t *testing.T) {
	for policy, pairs := range autoAugments {
		counts, sum, squares, want := make([]int, len(pairs)), 0, 0.0, 0.0
		for _, pair := range pairs {
			for _, o := range pair {
				want += o.probability / float64(len(pairs))
				squares += o.probability * (1 - o.probability) / float64(len(pairs))
			}
		}
		for k := range keys {
			which, _ := k.draw(drawAuto)
			counts[which.below(len(pairs))]++
			sum += len((Options{Augmentations: Augmentations{AutoAugment: policy}}).policy(k, nil, 30, 40))
		}
		even(t, "pair", counts)
		if got := float64(sum) / keysDrawn; math.Abs(got-want) > 4.5*math.Sqrt((squares+0.2)/keysDrawn) {
			t.Errorf("policy %s: %v operations for an image, want %v", policy, got, want)
		}
	}
}

// Each of RandAugment's operations is equally likely at each place. All have the same strength, and
// half of them are negative.
func TestRandAugment_EvenlySpread(t *testing.T) {
	const height, width = 200, 300
	o := Options{Augmentations: Augmentations{RandAugment: RandAugment{Operations: 3, Magnitude: 9, Bins: 31}}}
	s, places := autoStrengths(31, height, width), map[images.Step]operation{}
	for op := identity; op < invert; op++ {
		for _, negative := range []bool{false, true} {
			places[op.step(s.magnitude(op, 9, negative), height, width)] = op
		}
	}
	var counts [3][int(invert)]int
	signs := map[images.Step]int{}
	for k := range keys {
		steps := o.policy(k, nil, height, width)
		if len(steps) != 3 {
			t.Fatalf("key %d: %d steps", k, len(steps))
		}
		for i, step := range steps {
			op, is := places[step]
			if !is {
				t.Fatalf("key %d: step %v is none of RandAugment's", k, step)
			}
			counts[i][op]++
			if op == brightness {
				signs[step]++
			}
		}
	}
	for i := range counts {
		even(t, "operation", counts[i][:])
	}
	var both []int
	for _, n := range signs {
		both = append(both, n)
	}
	if even(t, "sign", both); len(both) != 2 {
		t.Errorf("%d signs", len(both))
	}
}
