package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// fixtures has torchvision's results for the same images. tests/fixtures/transforms/make.py makes
// them.
const fixtures = "../../tests/fixtures/transforms"

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join(fixtures, name)))(t)
}

func TestTransforms_EqualTorchvision(t *testing.T) {
	var cases []struct {
		Transform, Source, Want                string
		Key                                    uint64
		Box                                    []int
		Flip                                   bool
		Height, Width, Channels, Resize        int
		Padding                                int
		PaddingMode                            int
		MinScale, MaxScale, MinRatio, MaxRatio float64
	}
	if err := json.Unmarshal(fixture(t, "cases.json"), &cases); err != nil || len(cases) < 50 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		transform := map[string]Transform{
			"Resize":           Resize{c.Height, c.Width},
			"ResizeCenterCrop": ResizeCenterCrop{c.Resize, c.Height, c.Width},
			"RandomCrop":       RandomCrop{c.Height, c.Width, c.Padding, []string{"", "edge", "reflect", "symmetric"}[c.PaddingMode]},
			"RandomResizedCrop": RandomResizedCrop{c.Height, c.Width, c.MinScale, c.MaxScale, c.MinRatio,
				c.MaxRatio},
		}[c.Transform]
		pool := newPool(t, Options{Transform: transform, Channels: c.Channels, HorizontalFlip: 0.5})
		height, width, channels := pool.Size()
		got, results := bytes.Repeat([]byte{0xAB}, height*width*channels), make([]Result, 1)
		if err := pool.Decode([]Image{{Data: fixture(t, c.Source), Key: c.Key}}, got, results); err != nil || results[0].Err != nil {
			t.Fatal(err, results[0].Err)
		}
		want, wantHeight, wantWidth := pixelsOf(t, fixture(t, c.Want), channels)
		if height != wantHeight || width != wantWidth {
			t.Fatalf("%+v: got %dx%d, want %dx%d", c, height, width, wantHeight, wantWidth)
		}
		if d := furthest(got, want); d != 0 {
			t.Errorf("%+v: pixels differ by %d", c, d)
		}
		r := results[0]
		if box := []int{r.Top, r.Left, r.CropHeight, r.CropWidth}; c.Box != nil && !slices.Equal(box, c.Box) {
			t.Errorf("%+v: got box %v", c, box)
		}
		if r.Flip != c.Flip {
			t.Errorf("%+v: got flip %v", c, r.Flip)
		}
	}
}

// The crops have the same distribution as torchvision's. The test compares the means. For each of
// torchvision's quantiles, it also compares the share of the crops up to that quantile.
func TestRandomResizedCrop_Distribution(t *testing.T) {
	const draws = 20_000
	var crops []struct {
		Height, Width      int
		MinScale, MaxScale float64
		Means              map[string]float64
		Shares             map[string][][2]float64
	}
	if err := json.Unmarshal(fixture(t, "crops.json"), &crops); err != nil || len(crops) != 3 {
		t.Fatal(len(crops), err)
	}
	for _, c := range crops {
		values := map[string][]float64{}
		for _, r := range drawn(t, draws, c.Height, c.Width, Options{
			Transform: RandomResizedCrop{Height: 1, Width: 1, MinScale: c.MinScale, MaxScale: c.MaxScale}}) {
			h, w := float64(r.CropHeight), float64(r.CropWidth)
			add := func(name string, v float64) { values[name] = append(values[name], v) }
			add("area", h*w/float64(c.Height*c.Width))
			add("ratio", w/h)
			add("top", place(r.Top, c.Height-r.CropHeight))
			add("left", place(r.Left, c.Width-r.CropWidth))
		}
		for name, want := range c.Shares {
			sum := 0.0
			for _, v := range values[name] {
				sum += v
			}
			if got := sum / draws; math.Abs(got-c.Means[name]) > 0.01 {
				t.Errorf("%dx%d: mean %s: got %.4f, want %.4f", c.Height, c.Width, name, got, c.Means[name])
			}
			for _, quantile := range want {
				upTo := 0
				for _, v := range values[name] {
					if v <= quantile[0]+1e-6 {
						upTo++
					}
				}
				// If both samples have the same distribution, this check passes with a probability of 99.9 %.
				if got := float64(upTo) / draws; math.Abs(got-quantile[1]) > 1.95*math.Sqrt(1.0/draws+1.0/50_000) {
					t.Errorf("%dx%d: share of %s up to %.4f: got %.4f, want %.4f", c.Height, c.Width, name, quantile[0], got, quantile[1])
				}
			}
		}
	}
}

func place(at, room int) float64 {
	if room == 0 {
		return 0.5
	}
	return float64(at) / float64(room)
}

// drawn returns the results of n keys on a grey image of the given size.
func drawn(t testing.TB, n, height, width int, options Options) []Result {
	t.Helper()
	options.Channels = 1
	pool := newPool(t, options)
	h, w, _ := pool.Size()
	images, results := make([]Image, n), make([]Result, n)
	for i := range images {
		images[i] = Image{Key: uint64(i) * 0x9E3779B97F4A7C15}
	}
	must.Do(t, pool.cross(images, pictures(n, height, width), make([]byte, n*h*w), results))
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return results
}

// pictures gives each of n images the same decoded pixels, so that a test of random crops and
// flips decodes nothing.
func pictures(n, height, width int) map[int]picture {
	one := picture{pix: make([]byte, height*width), height: height, width: width, channels: 1}
	out := map[int]picture{}
	for i := range n {
		out[i] = one
	}
	return out
}

func TestRandomCrop_Distribution(t *testing.T) {
	const draws = 20_000
	var count [9][9]int
	for _, r := range drawn(t, draws, 32, 32, Options{Transform: RandomCrop{Height: 32, Width: 32, Padding: 4}}) {
		count[r.Top+4][r.Left+4]++
	}
	chi := 0.0
	for _, row := range count {
		for _, n := range row {
			d := float64(n) - draws/81.0
			chi += d * d / (draws / 81.0)
		}
	}
	if chi > 80+4.5*math.Sqrt(2*80) {
		t.Errorf("chi squared of 81 places is %.1f", chi)
	}
}

func TestHorizontalFlip_Frequency(t *testing.T) {
	const draws = 20_000
	for _, probability := range []float64{0, 0.25, 0.5, 1} {
		flips, far := 0, 0 // far: number of images that are flipped and cropped from the right half
		for _, r := range drawn(t, draws, 32, 32, Options{Transform: RandomCrop{Height: 16, Width: 16}, HorizontalFlip: probability}) {
			if r.Flip {
				flips++
				if r.Left > 8 {
					far++
				}
			}
		}
		spread := 4 * math.Sqrt(probability*(1-probability)/draws)
		if got := float64(flips) / draws; math.Abs(got-probability) > spread {
			t.Errorf("probability %v: %v were flipped", probability, got)
		}
		if got := float64(far) / draws; math.Abs(got-probability*8/17) > spread+0.01 {
			t.Errorf("probability %v: %v were flipped and from the right: flip and place depend on each other", probability, got)
		}
	}
}

func TestNewPool_RefusesOptions(t *testing.T) {
	const huge = 1 << 40
	good := Resize{Height: 4, Width: 4}
	tests := []struct {
		options Options
		text    string
	}{
		{Options{}, "Transform is nil"},
		{Options{Transform: Resize{}}, "height is 0"},
		{Options{Transform: Resize{Height: 4, Width: -1}}, "width is -1"},
		{Options{Transform: Resize{Height: huge, Width: 4}}, "height is 2147483647"},
		{Options{Transform: good, Channels: 2}, "channels is 2"},
		{Options{Transform: good, Workers: -1}, "workers is -1"},
		{Options{Transform: good, HorizontalFlip: 1.5}, "horizontal flip is 1.5"},
		{Options{Transform: good, HorizontalFlip: math.NaN()}, "horizontal flip is "},
		{Options{Transform: good, MaxPixels: -1}, "max pixels is -1"},
		{Options{Transform: ResizeCenterCrop{Resize: -3, Height: 4, Width: 4}}, "resize is -3"},
		{Options{Transform: RandomCrop{Height: 4, Width: 4, Padding: -1}}, "padding is -1"},
		{Options{Transform: RandomCrop{Height: 4, Width: 4, PaddingMode: "mirror"}}, `PaddingMode is "mirror"`},
		{Options{Transform: RandomResizedCrop{Height: 4, Width: 4, MinScale: 0.5, MaxScale: 0.4}}, "scale is 0.5"},
		{Options{Transform: RandomResizedCrop{Height: 4, Width: 4, MaxScale: 1.5}}, "scale is 0.08"},
		{Options{Transform: RandomResizedCrop{Height: 4, Width: 4, MinRatio: -1}}, "ratio is -1"},
		{Options{Transform: RandomResizedCrop{Height: 4, Width: 4, MaxRatio: math.Inf(1)}}, "ratio is 0.75"},
	}
	for _, test := range tests {
		pool, err := NewPool(test.options)
		if !errors.Is(err, ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "decode: ") || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%+v: got %v, want %q", test.options, err, test.text)
		}
		if pool != nil {
			t.Errorf("%+v: got a pool", test.options)
		}
	}
}

func TestRandomCrop_ImageTooSmall(t *testing.T) {
	_, result := decodeOne(t, read(t, "good", "420.jpg"), Options{Transform: RandomCrop{Height: 27, Width: 20, Padding: 4}})
	want := "25x18 with a padding of 4 is smaller than the crop of 20x27 (width x height)"
	if !errors.Is(result.Err, ErrTooSmall) || result.Err.Error() != want || result.Width != 25 || result.Height != 18 {
		t.Errorf("got %+v, want %q", result, want)
	}
	if _, result = decodeOne(t, read(t, "good", "420.jpg"), Options{Transform: RandomCrop{Height: 26, Width: 20, Padding: 4}}); result.Err != nil {
		t.Errorf("one row less: %v", result.Err)
	}
}

// Resize is the length of the shorter side. 0 means the smaller of Height and Width.
func TestResizeCenterCrop_ZeroResize(t *testing.T) {
	data := read(t, "good", "rgb.png")
	got, _ := decodeOne(t, data, Options{Transform: ResizeCenterCrop{Height: 12, Width: 10}})
	want, _ := decodeOne(t, data, Options{Transform: ResizeCenterCrop{Resize: 10, Height: 12, Width: 10}})
	if !slices.Equal(got, want) {
		t.Error("Resize 0 is not the smaller of Height and Width")
	}
}
