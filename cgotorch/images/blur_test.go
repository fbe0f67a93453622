package images_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// blurred returns images [N, H, W, C] after the blur. sigmas has two numbers for each.
func blurred(x *cgotorch.Exec, img pixelImage, sigmas []float32, height, width int) []uint8 {
	pixels := cgotorch.FromSlice(x, img.pixels, int64(len(sigmas)/2), int64(img.height), int64(img.width), int64(img.channels))
	out := x.EmptyLike(pixels)
	images.GaussianBlur(x, pixels, cgotorch.FromSlice(x, sigmas, int64(len(sigmas)/2), 2), out, height, width)
	return cgotorch.ToSlice[uint8](x, out)
}

// No level differs by more than 1 from torchvision's, and few differ.
func TestGaussianBlur_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		Source        string
		Width, Height int
		Sigma         [2]float32 // across, down
		Levels        []int
	}
	filetest.JSON(t, augmentFixtures+"blur.json", &cases)
	if len(cases) != 20 {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		different, all := 0, 0
		for _, c := range cases {
			img := fixtureImage(t, c.Source)
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				got := blurred(x, img, []float32{c.Sigma[1], c.Sigma[0]}, c.Height, c.Width)
				for i, v := range got {
					off := int(v) - c.Levels[i]
					if off < -1 || off > 1 {
						t.Fatalf("%d x %d, sigma %v, element %d: got %d, torchvision's is %d", c.Height, c.Width, c.Sigma, i, v, c.Levels[i])
					}
					different, all = different+off*off, all+1
				}
			})
		}
		t.Logf("%d of %d levels differ by 1", different, all)
		if different > all/500 {
			t.Errorf("%d of %d levels differ by 1", different, all)
		}
	})
}

// A batch on each device gives the same bytes as each image alone on the CPU. Sizes around those of
// a block's tile are among the sizes.
func TestGaussianBlur_AnyBatchAnyDevice(t *testing.T) {
	for _, c := range [][6]int{{3, 33, 22, 3, 5, 7}, {2, 1, 1, 1, 1, 1}, {2, 32, 64, 1, 63, 63}, {3, 65, 17, 4, 3, 33}, {2, 7, 1, 2, 13, 1}} {
		n, height, width, channels, rows, columns := c[0], c[1], c[2], c[3], c[4], c[5]
		r := rand.New(rand.NewPCG(uint64(height), uint64(width)))
		pixels, sigmas := randomBatch(r, n, height, width, channels), make([]float32, 2*n)
		for i := range sigmas {
			sigmas[i] = 10*r.Float32() - 1
		}
		size := height * width * channels
		var want []uint8
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			for i := range n {
				want = append(want, blurred(x, pixelImage{height, width, channels, pixels[i*size:][:size]}, sigmas[2*i:][:2], rows, columns)...)
			}
		})
		torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
			if got := blurred(x, pixelImage{height, width, channels, pixels}, sigmas, rows, columns); !slices.Equal(got, want) {
				t.Errorf("%v: the batch is another one than its images alone on the CPU", c)
			}
		})
	}
}

func TestGaussianBlur_Extremes(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		img := pixelImage{2, 3, 1, []uint8{0, 90, 180, 30, 60, 255}}
		for _, sigmas := range [][]float32{{0, 0}, {-1, 0}, {1e-30, 1e-30}, {1e-3, 0}} {
			if got := blurred(x, img, sigmas, 3, 5); !slices.Equal(got, img.pixels) {
				t.Errorf("sigma %v: got %v, want %v", sigmas, got, img.pixels)
			}
		}
		// A very wide Gaussian is a mean of the kernel's pixels: 90, 0, 90 for the first.
		if got, want := blurred(x, img, []float32{0, 1e30}, 1, 3), []uint8{60, 90, 120, 50, 115, 125}; !slices.Equal(got, want) {
			t.Errorf("a mean: got %v, want %v", got, want)
		}
		if got := blurred(x, pixelImage{2, 2, 3, nil}, nil, 3, 3); len(got) != 0 {
			t.Errorf("no images: got %v", got)
		}
	})
}

func TestGaussianBlur_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for want, size := range map[string][2]int{
			"rows must be odd and from 1 to 63; got 4":        {4, 3},
			"columns must be odd and from 1 to 63; got 65":    {3, 65},
			"columns must be odd and from 1 to 63; got -1":    {3, -1},
			"rows must be at most 7 for images of height 4":   {9, 3},
			"columns must be at most 9 for images of width 5": {3, 11},
			"sigmas must be contiguous Float [2, 2]":          {3, 3},
		} {
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images.GaussianBlur(x, x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), x.Zeros(cgotorch.Float32, 2), x.Empty(cgotorch.Uint8, 2, 4, 5, 3), size[0], size[1])
				return nil
			})
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
		}
	})
}
