package images_test

import (
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestPad_EqualsTorchvision(t *testing.T) {
	var cases []struct {
		Source, Mode string
		Padding      [4]int
		Fill         []int
		CRC          uint32
	}
	filetest.JSON(t, augmentFixtures+"pad.json", &cases)
	if len(cases) < 48 {
		t.Fatal(len(cases))
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, c := range cases {
			img := fixtureImage(t, c.Source)
			o := images.PadOptions{Left: c.Padding[0], Top: c.Padding[1], Right: c.Padding[2], Bottom: c.Padding[3], Mode: c.Mode}
			for _, v := range c.Fill {
				o.Fill = append(o.Fill, uint8(v))
			}
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				if got := crc32.ChecksumIEEE(padded(x, img, 1, nil, o)); got != c.CRC {
					t.Errorf("%s: %s %v, fill %v: CRC-32 %d, torchvision's is %d", c.Source, c.Mode, c.Padding, c.Fill, got, c.CRC)
				}
			})
		}
	})
}

// padded returns n equal images with padding.
func padded(x *cgotorch.Exec, img pixelImage, n int, flips *cgotorch.Tensor, o images.PadOptions) []uint8 {
	pixels := cgotorch.FromSlice(x, slices.Repeat(img.pixels, n), int64(n), int64(img.height), int64(img.width), int64(img.channels))
	height, width := o.Size(img.height, img.width)
	out := x.Empty(cgotorch.Uint8, int64(n), int64(height), int64(width), int64(img.channels))
	before := inside.Core.Version(out)
	if images.Pad(x, pixels, flips, out, o); inside.Core.Version(out) == before && n > 0 {
		x.Fail("Pad", errors.New("it counts as no write"))
	}
	return cgotorch.ToSlice[uint8](x, out)
}

func TestPad_SmallImages(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		row, one := pixelImage{1, 3, 1, []uint8{1, 2, 3}}, pixelImage{1, 1, 4, []uint8{1, 2, 3, 4}}
		for _, c := range []struct {
			name string
			img  pixelImage
			o    images.PadOptions
			want []uint8
		}{
			{"constant", row, images.PadOptions{Left: 2, Right: 1, Fill: []uint8{9}}, []uint8{9, 9, 1, 2, 3, 9}},
			{"constant, far", row, images.PadOptions{Left: 5}, []uint8{0, 0, 0, 0, 0, 1, 2, 3}},
			{"edge, far", row, images.PadOptions{Left: 5, Right: 1, Mode: "edge"}, []uint8{1, 1, 1, 1, 1, 1, 2, 3, 3}},
			{"reflect", row, images.PadOptions{Left: 2, Right: 2, Mode: "reflect"}, []uint8{3, 2, 1, 2, 3, 2, 1}},
			{"symmetric", row, images.PadOptions{Left: 3, Right: 2, Mode: "symmetric"}, []uint8{3, 2, 1, 1, 2, 3, 3, 2}},
			{"one pixel, symmetric", one, images.PadOptions{Top: 1, Mode: "symmetric"}, []uint8{1, 2, 3, 4, 1, 2, 3, 4}},
			{"one pixel, constant", one, images.PadOptions{Bottom: 1, Fill: []uint8{5, 6, 7, 8}}, []uint8{1, 2, 3, 4, 5, 6, 7, 8}},
			{"nothing", one, images.PadOptions{Mode: "reflect"}, one.pixels},
		} {
			if got := padded(x, c.img, 1, nil, c.o); !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
		}
		flips := cgotorch.FromSlice(x, []bool{false, true})
		if got, want := padded(x, row, 2, flips, images.PadOptions{Left: 1, Mode: "edge"}), []uint8{1, 1, 2, 3, 3, 3, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("the second image flipped: got %v, want %v", got, want)
		}
		if got := padded(x, row, 0, nil, images.PadOptions{Left: 1}); len(got) != 0 {
			t.Errorf("no images: got %v", got)
		}
		if got, want := padded(x, pixelImage{0, 2, 1, nil}, 1, nil, images.PadOptions{Top: 1, Fill: []uint8{4}}), []uint8{4, 4}; !slices.Equal(got, want) {
			t.Errorf("images without rows: got %v, want %v", got, want)
		}
	})
}

func TestPad_Refuses(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for want, o := range map[string]images.PadOptions{
			"left must be from 0 to 32767":  {Left: -1},
			"top must be from 0 to 32767":   {Top: 40000, Mode: "edge"},
			"right must be from 0 to 4":     {Right: 5, Mode: "reflect"},
			"bottom must be from 0 to 4":    {Bottom: 5, Mode: "symmetric"},
			"mode must be from 0 to 3":      {Mode: "mirror"},
			"fill must have one level, or":  {Fill: []uint8{1, 2}},
			"Byte [2, 4, 6, 3]; got Byte [": {Left: 1},
		} {
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images.Pad(x, x.Zeros(cgotorch.Uint8, 2, 4, 5, 3), nil, x.Empty(cgotorch.Uint8, 2, 4, 5, 3), o)
				return nil
			})
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
			if err := o.Check(4, 5, 3); (err == nil) != (o.Left == 1) {
				t.Errorf("Check of %+v: %v", o, err)
			}
		}
	})
}
