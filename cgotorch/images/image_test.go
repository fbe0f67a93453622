package images_test

import (
	"bytes"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"image"
	"image/color"
	"image/png"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// An image survives the way to a tensor and back, and to a PNG file.
func TestFromImage_ToImage(t *testing.T) {
	rgb := image.NewNRGBA(image.Rect(3, 2, 10, 7))
	grey := image.NewGray(image.Rect(0, 0, 4, 3))
	for i := range 35 {
		rgb.SetNRGBA(3+i%7, 2+i/7, color.NRGBA{uint8(i * 7), uint8(255 - i), uint8(i * i), 255})
	}
	for i := range grey.Pix {
		grey.Pix[i] = uint8(20 * i)
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			for name, img := range map[string]image.Image{"RGB": rgb, "grey": grey, "part": rgb.SubImage(image.Rect(4, 3, 6, 6)), "palette": paletted(rgb)} {
				v := images.FromImage(x, img)
				b := img.Bounds()
				if got, want := fmt.Sprint(v.Shape()), fmt.Sprint([]int{b.Dy(), b.Dx(), 3}); got != want || v.DType() != cgotorch.Uint8 {
					t.Fatalf("%s: %s, want shape %s", name, v.String(), want)
				}
				floats := x.DivScalar(x.To(x.Permute(v, 2, 0, 1), cgotorch.Float32), 255)
				for kind, back := range map[string]image.Image{"uint8": images.ToImage(x, v), "float": images.ToImage(x, floats)} {
					var file bytes.Buffer
					must.Do(t, png.Encode(&file, back))
					for y := range b.Dy() {
						for c := range b.Dx() {
							want := color.NRGBAModel.Convert(img.At(b.Min.X+c, b.Min.Y+y))
							if got := back.At(c, y); got != want {
								t.Fatalf("%s, %s: pixel %d, %d is %v, want %v", name, kind, c, y, got, want)
							}
						}
					}
				}
			}
			one := images.ToImage(x, x.Full(cgotorch.Float32, 2, 1, 2, 2))
			if g, ok := one.(*image.Gray); !ok || g.Pix[3] != 255 {
				t.Errorf("one channel gives %#v", one)
			}
		})
		for want, fn := range map[string]func(x *cgotorch.Exec){
			"the image has no pixels": func(x *cgotorch.Exec) { images.FromImage(x, image.NewGray(image.Rectangle{})) },
			"want uint8 [H, W, C]":    func(x *cgotorch.Exec) { images.ToImage(x, x.Ones(cgotorch.Int64, 2, 2, 3)) },
			"want 1, 3 or 4 channels": func(x *cgotorch.Exec) { images.ToImage(x, x.Ones(cgotorch.Uint8, 2, 2, 2)) },
			"want [N, C, H, W]":       func(x *cgotorch.Exec) { images.Grid(x, x.Ones(cgotorch.Float32, 3, 2, 2), images.GridOptions{}) },
		} {
			torchtest.WantError(t, torchtest.TryDo(t, d, fn), cgotorch.ErrInvalidArgument, want, "image_test.go")
		}
	})
}

func paletted(img *image.NRGBA) image.Image {
	p := image.NewPaletted(img.Rect, color.Palette{color.NRGBA{1, 2, 3, 255}, color.NRGBA{200, 100, 0, 255}})
	for i := range p.Pix {
		p.Pix[i] = uint8(i % 2)
	}
	return p
}

// Grid puts the images where torchvision.utils.make_grid puts them.
func TestGrid(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		d := x.Device()
		v := x.Reshape(x.Arange(cgotorch.Float32, 1, 21, nil), 5, 1, 2, 2)
		got := x.Format(x.Select(images.Grid(x, v, images.GridOptions{Columns: 3, Padding: 1, PadValue: -1}), 0, 2))
		want := `float32[7 10]
[[-1. -1. -1. -1. -1. -1. -1. -1. -1. -1.]
 [-1.  1.  2. -1.  5.  6. -1.  9. 10. -1.]
 [-1.  3.  4. -1.  7.  8. -1. 11. 12. -1.]
 [-1. -1. -1. -1. -1. -1. -1. -1. -1. -1.]
 [-1. 13. 14. -1. 17. 18. -1. -1. -1. -1.]
 [-1. 15. 16. -1. 19. 20. -1. -1. -1. -1.]
 [-1. -1. -1. -1. -1. -1. -1. -1. -1. -1.]]`
		if d.IsCUDA() {
			want = "float32[7 10]@cuda:0" + want[len("float32[7 10]"):]
		}
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		n := images.Grid(x, v, images.GridOptions{Normalize: true})
		if low, high := x.Item(x.Min(n)), x.Item(x.Max(n)); low != 0 || high != 1 {
			t.Errorf("the normalised grid has values from %v to %v", low, high)
		}
	})
}
