package images_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// This folder holds torchvision's results for the same images, written by its make.py.
const augmentFixtures = "../../tests/fixtures/augment/"

// pixelImage is one image, [H, W, C].
type pixelImage struct {
	height, width, channels int
	pixels                  []uint8
}

// fixtureImage returns the source image of this name, as make.py makes it.
func fixtureImage(t testing.TB, name string) pixelImage {
	t.Helper()
	name, isGrey := strings.CutSuffix(name, "-grey")
	from, height, width := name, 0, 0
	switch name {
	case "tiled":
		from, height, width = "wide", 224, 224
	case "black":
		from = "small"
	case "dull":
		from = "wide"
	}
	img := filetest.PNG(t, "../../tests/fixtures/transforms/source-"+from+".png")
	size := img.Bounds().Size()
	if height == 0 {
		height, width = size.Y, size.X
	}
	out := pixelImage{height: height, width: width, channels: 3}
	if isGrey {
		out.channels = 1
	}
	for y := range height {
		for x := range width {
			rgb := rgbAt(img, x%size.X, y%size.Y)
			for c, v := range rgb {
				switch name {
				case "black":
					v = 0
				case "dull":
					v = v/5 + 90
				}
				if !isGrey || c == 1 {
					out.pixels = append(out.pixels, v)
				}
			}
		}
	}
	return out
}

func rgbAt(img image.Image, x, y int) [3]uint8 {
	r, g, b, _ := img.At(x, y).RGBA()
	return [3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}
}

// namedStep returns the step with the name and the arguments v of make.py. The image has this
// height and width.
func namedStep(t testing.TB, name string, v []float64, height, width int) images.Step {
	switch name {
	case "Brightness":
		return images.Brightness(v[0])
	case "Contrast":
		return images.Contrast(v[0])
	case "Saturation":
		return images.Saturation(v[0])
	case "Hue":
		return images.Hue(v[0])
	case "Posterize":
		return images.Posterize(int(v[0]))
	case "Solarize":
		return images.Solarize(v[0])
	case "FlipVertical":
		return images.FlipVertical()
	case "Grayscale":
		return images.Grayscale()
	case "AutoContrast":
		return images.AutoContrast()
	case "Equalize":
		return images.Equalize()
	case "Sharpness":
		return images.Sharpness(v[0])
	case "ShearX":
		return images.Shear(v[0], 0, height, width)
	case "ShearY":
		return images.Shear(0, v[0], height, width)
	case "Translate":
		return images.Translate(int(v[0]), int(v[1]))
	case "Rotate":
		return images.Rotate(v[0])
	}
	t.Fatalf("no step %q", name)
	return images.Step{}
}

// augmented returns one image after the steps.
func augmented(x *cgotorch.Exec, img pixelImage, flip bool, steps ...images.Step) []uint8 {
	pixels := cgotorch.FromSlice(x, img.pixels, 1, int64(img.height), int64(img.width), int64(img.channels))
	out := x.EmptyLike(pixels)
	images.Augment(x, pixels, cgotorch.FromSlice(x, []bool{flip}), images.Steps(x, steps), out)
	return cgotorch.ToSlice[uint8](x, out)
}

func TestAugmentImages_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		Source string
		Steps  [][]any
		CRC    uint32
	}
	filetest.JSON(t, augmentFixtures+"steps.json", &cases)
	if len(cases) < 300 {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, c := range cases {
			img := fixtureImage(t, c.Source)
			var steps []images.Step
			for _, s := range c.Steps {
				var arguments []float64
				for _, v := range s[1:] {
					arguments = append(arguments, v.(float64))
				}
				steps = append(steps, namedStep(t, s[0].(string), arguments, img.height, img.width))
			}
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				if got := crc32.ChecksumIEEE(augmented(x, img, false, steps...)); got != c.CRC {
					t.Errorf("%s: %v: CRC-32 %d, torchvision's is %d", c.Source, c.Steps, got, c.CRC)
				}
			})
		}
	})
}

// someSteps returns a random list of steps for an image of this height and width.
func someSteps(r *rand.Rand, height, width int) []images.Step {
	any := []images.Step{{}, images.Brightness(2 * r.Float64()), images.Contrast(2 * r.Float64()), images.Saturation(2 * r.Float64()), images.Hue(r.Float64() - 0.5),
		images.Posterize(r.IntN(9)), images.Solarize(255 * r.Float64()), images.AutoContrast(), images.Equalize()}
	first := append(slices.Clone(any), images.Sharpness(2*r.Float64()), images.Shear(2*r.Float64()-1, 0, height, width), images.Shear(0, 2*r.Float64()-1, height, width),
		images.Translate(r.IntN(65)-32, 0), images.Translate(0, r.IntN(65)-32), images.Rotate(270*r.Float64()-135),
		images.Rotate(270*r.Float64()-135).Bilinear(), images.Shear(r.Float64(), 0, height, width).Fill(1, 200, 3), images.Rotate(270*r.Float64()).Bilinear().Fill(255, 255, 255))
	steps := []images.Step{first[r.IntN(len(first))]}
	for range r.IntN(images.MaxSteps) {
		steps = append(steps, any[r.IntN(len(any))])
	}
	return steps
}

// randomBatch returns a batch in which every third image has only few different values.
func randomBatch(r *rand.Rand, n, height, width, channels int) []uint8 {
	pixels := make([]uint8, n*height*width*channels)
	for i := range pixels {
		size := len(pixels) / n
		pixels[i] = uint8(r.IntN(256))
		if i/size%3 == 1 {
			pixels[i] = 100 + pixels[i]/8
		}
	}
	return pixels
}

// A batch on CUDA and on the CPU gives the same bytes as each image alone on the CPU.
func TestAugmentImages_AnyBatchAnyDevice(t *testing.T) {
	for _, shape := range [][4]int{{7, 33, 45, 3}, {5, 64, 64, 3}, {3, 1, 1, 3}, {4, 2, 9, 1}, {3, 224, 224, 3}, {6, 40, 31, 1}} {
		n, height, width, channels := shape[0], shape[1], shape[2], shape[3]
		r := rand.New(rand.NewPCG(uint64(n), uint64(height)))
		pixels := randomBatch(r, n, height, width, channels)
		steps, flips := make([][]images.Step, n), make([]bool, n)
		for i := range steps {
			steps[i], flips[i] = someSteps(r, height, width), r.IntN(2) == 1
		}
		var want []uint8
		size := height * width * channels
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			for i := range n {
				img := pixelImage{height, width, channels, pixels[i*size:][:size]}
				want = append(want, augmented(x, img, flips[i], steps[i]...)...)
			}
		})
		torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
			from := cgotorch.FromSlice(x, pixels, int64(n), int64(height), int64(width), int64(channels))
			out := x.EmptyLike(from)
			images.Augment(x, from, cgotorch.FromSlice(x, flips), images.Steps(x, steps...), out)
			got := cgotorch.ToSlice[uint8](x, out)
			for i := range n {
				if !slices.Equal(got[i*size:][:size], want[i*size:][:size]) {
					t.Errorf("%v: image %d behind %v is another one than alone on the CPU", shape, i, steps[i])
				}
			}
		})
	}
}

// A batch with several times as many lists of steps as images has a row for each list.
func TestAugmentImages_SeveralLists(t *testing.T) {
	const n, lists, height, width = 3, 4, 9, 14
	r := rand.New(rand.NewPCG(5, 6))
	pixels, flips := randomBatch(r, n, height, width, 3), []bool{true, false, true}
	steps := make([][]images.Step, lists*n)
	for i := range steps {
		steps[i] = someSteps(r, height, width)
	}
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		from, flips := cgotorch.FromSlice(x, pixels, n, height, width, 3), cgotorch.FromSlice(x, flips)
		all := x.Empty(cgotorch.Uint8, lists*n, height, width, 3)
		images.Augment(x, from, flips, images.Steps(x, steps...), all)
		for i := range lists {
			want := x.EmptyLike(from)
			images.Augment(x, from, flips, images.Steps(x, steps[i*n:][:n]...), want)
			if !x.Equal(x.Narrow(all, 0, i*n, n), want) {
				t.Errorf("the images of lists %d to %d are others than alone", i*n, i*n+n-1)
			}
		}
	})
}

func TestStep_Changes(t *testing.T) {
	rotated := images.Rotate(10)
	for _, c := range []struct {
		name       string
		step       images.Step
		leads, can bool // the step leads; its fill and interpolation can change
	}{
		{"nothing", images.Step{}, false, false},
		{"Invert", images.Invert(), false, false},
		{"Hue", images.Hue(0.1), false, false},
		{"Sharpness", images.Sharpness(2), true, false},
		{"Rotate", rotated, true, true},
		{"Rotate, bilinear", rotated.Bilinear(), true, false},
		{"Translate", images.Translate(1, 2), true, true},
		{"Shear", images.Shear(0.1, 0, 5, 6), true, true},
	} {
		if c.step.Leads() != c.leads {
			t.Errorf("%s leads: %v", c.name, c.step.Leads())
		}
		if can := c.step.Bilinear() != c.step; can != c.can {
			t.Errorf("Bilinear changes %s: %v", c.name, can)
		}
		if can := c.step.Fill(0, 0, 0) != c.step; can != (c.can || c.name == "Rotate, bilinear") {
			t.Errorf("Fill changes %s: %v", c.name, can)
		}
	}
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		img := pixelImage{2, 2, 3, []uint8{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
		for _, step := range []images.Step{images.Translate(1, 0), images.Translate(1, 0).Bilinear()} {
			want := []uint8{250, 100, 7, 1, 2, 3, 250, 100, 7, 7, 8, 9}
			if got := augmented(x, img, false, step.Fill(250, 100, 7)); !slices.Equal(got, want) {
				t.Errorf("moved, with a fill: got %v, want %v", got, want)
			}
		}
		grey := pixelImage{1, 2, 1, []uint8{0, 99}}
		if got, want := augmented(x, grey, false, images.Translate(1, 0).Fill(5, 6, 7)), []uint8{5, 0}; !slices.Equal(got, want) {
			t.Errorf("grey, with a fill: got %v, want %v", got, want)
		}
		if got, want := augmented(x, grey, false, images.Invert()), []uint8{255, 156}; !slices.Equal(got, want) {
			t.Errorf("inverted: got %v, want %v", got, want)
		}
	})
}

func TestAugmentImages_FlipsFirst(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		img := pixelImage{2, 3, 1, []uint8{1, 2, 3, 4, 5, 6}}
		if got, want := augmented(x, img, true), []uint8{3, 2, 1, 6, 5, 4}; !slices.Equal(got, want) {
			t.Errorf("flipped: got %v, want %v", got, want)
		}
		if got, want := augmented(x, img, true, images.Translate(1, 0)), []uint8{0, 3, 2, 0, 6, 5}; !slices.Equal(got, want) {
			t.Errorf("flipped and moved: got %v, want %v", got, want)
		}
		if got, want := augmented(x, img, false, images.Brightness(1), images.Translate(1, 0), images.Sharpness(0), images.Step{99}), img.pixels; !slices.Equal(got, want) {
			t.Errorf("steps out of place, and an unknown one: got %v, want %v", got, want)
		}
		pixels := cgotorch.FromSlice(x, img.pixels, 1, 2, 3, 1)
		out := x.EmptyLike(pixels)
		images.Augment(x, pixels, nil, images.Steps(x, nil), out)
		if !x.Equal(out, pixels) {
			t.Error("no flips and no steps changed the image")
		}
	})
}

func TestAugmentImages_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for want, shapes := range map[string]func(x *cgotorch.Exec) (pixels, flips, steps, out *cgotorch.Tensor){
			"pixels must be contiguous uint8": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Float32, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 2, 1, 8), x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
			"1 or 3 channels": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 4), nil, x.Zeros(cgotorch.Float32, 2, 1, 8), x.Empty(cgotorch.Uint8, 2, 4, 5, 4)
			},
			"flips must be contiguous bool [2]": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), x.Zeros(cgotorch.Bool, 3), x.Zeros(cgotorch.Float32, 2, 1, 8), x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
			"steps must be contiguous Float [2, up to 8, 8]": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 2, 9, 8), x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
			"out must be contiguous Byte [2, 4, 5, 3]": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 2, 1, 8), x.Empty(cgotorch.Uint8, 2, 5, 4, 3)
			},
			"as many images as pixels, or a multiple": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 3, 1, 8), x.Empty(cgotorch.Uint8, 3, 4, 5, 3)
			},
			"steps must be contiguous Float [4, up to 8, 8]": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Zeros(cgotorch.Float32, 2, 1, 8), x.Empty(cgotorch.Uint8, 4, 4, 5, 3)
			},
			"share memory": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				all := x.Zeros(cgotorch.Uint8, 3, 4, 5, 3)
				return x.Narrow(all, 0, 0, 2), nil, x.Zeros(cgotorch.Float32, 2, 1, 8), x.Narrow(all, 0, 1, 2)
			},
			"(Tensor steps) cannot be None": func(x *cgotorch.Exec) (_, _, _, _ *cgotorch.Tensor) {
				return x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, nil, x.Empty(cgotorch.Uint8, 2, 4, 5, 3)
			},
		} {
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				pixels, flips, steps, out := shapes(x)
				images.Augment(x, pixels, flips, steps, out)
				return nil
			})
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), want) || !strings.Contains(fmt.Sprint(err), "augment_test.go") {
				t.Errorf("got %v, want an error that says %q and where", err, want)
			}
		}
	})
}

func TestAugmentImages_Empty(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		images.Augment(x, x.Empty(cgotorch.Uint8, 0, 4, 5, 3), nil, images.Steps(x), x.Empty(cgotorch.Uint8, 0, 4, 5, 3))
	})
}
