package images

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// FromImage returns the pixels of an image of Go's package image: uint8 [H, W, 3], RGB, on x's
// device. Transparent pixels keep their colour, as with Pillow's convert("RGB"). FromImage waits
// until CUDA has read the pixels. The Do owns the result. An image without pixels fails with
// [cgotorch.ErrInvalidArgument].
func FromImage(x *cgotorch.Exec, img image.Image) *cgotorch.Tensor {
	const op = "images.FromImage"
	if img == nil || img.Bounds().Empty() {
		refuse(x, op, "the image has no pixels")
	}
	bounds := img.Bounds()
	rgba, ok := img.(*image.NRGBA)
	if !ok {
		rgba = image.NewNRGBA(image.Rect(0, 0, bounds.Dx(), bounds.Dy()))
		draw.Draw(rgba, rgba.Rect, img, bounds.Min, draw.Src)
	}
	pixels := make([]byte, 0, 3*bounds.Dx()*bounds.Dy())
	for row := range bounds.Dy() {
		line := rgba.Pix[row*rgba.Stride:]
		for column := range bounds.Dx() {
			pixels = append(pixels, line[4*column:4*column+3]...)
		}
	}
	return cgotorch.FromSlice(x, pixels, int64(bounds.Dy()), int64(bounds.Dx()), 3)
}

// ToImage returns a tensor as an image, for instance for png.Encode. t is one of
//
//	uint8 [H, W, C]                    levels from 0 to 255
//	float32 or another float [C, H, W]  levels from 0 to 1, as PyTorch's images; others are clamped
//
// C is 1 for grey, 3 for RGB, or 4 for RGB and alpha. A grey image is an [image.Gray], and any
// other an [image.NRGBA]. ToImage waits for x's stream. It fails with [cgotorch.ErrInvalidArgument]
// for any other tensor.
func ToImage(x *cgotorch.Exec, t *cgotorch.Tensor) image.Image {
	const op = "images.ToImage"
	if t.Dim() != 3 || t.DType() != cgotorch.Uint8 && !t.DType().IsFloat() {
		refuse(x, op, "the tensor is %s, want uint8 [H, W, C], or floats [C, H, W]", t)
	}
	var bytes []uint8
	var shape []int64
	x.NoGrad().NoAutocast().Tidy(func() *cgotorch.Tensor {
		y := x.NoGrad().NoAutocast()
		v := y.Detach(t)
		if v.DType().IsFloat() {
			v = y.To(y.Round(y.MulScalar(y.Clamp(y.To(y.Permute(v, 1, 2, 0), cgotorch.Float32), 0, 1), 255)), cgotorch.Uint8)
		}
		shape = v.Shape()
		bytes = cgotorch.ToSlice[uint8](y, v)
		return nil
	})
	height, width, channels := int(shape[0]), int(shape[1]), int(shape[2])
	if channels == 1 {
		return &image.Gray{Pix: bytes, Stride: width, Rect: image.Rect(0, 0, width, height)}
	}
	if channels != 3 && channels != 4 {
		refuse(x, op, "the tensor is %s, want 1, 3 or 4 channels", t)
	}
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		p := color.NRGBA{bytes[channels*i], bytes[channels*i+1], bytes[channels*i+2], 255}
		if channels == 4 {
			p.A = bytes[channels*i+3]
		}
		img.SetNRGBA(i%width, i/width, p)
	}
	return img
}

// GridOptions are the options of [Grid].
type GridOptions struct {
	Columns   int     // images side by side; 0 means 8
	Padding   int     // pixels between images and around them; 0 means 2; below 0 means none
	PadValue  float64 // value of these pixels
	Normalize bool    // map the smallest value to 0 and the largest to 1
}

// Grid returns images [N, C, H, W] as one image [C, height, width], row by row. Images of one
// channel get three. It does not wait. The Do owns the result. Grid fails with
// [cgotorch.ErrInvalidArgument] for a tensor without four dimensions or without elements.
//
// Source: torchvision.utils.make_grid
func Grid(x *cgotorch.Exec, batch *cgotorch.Tensor, o GridOptions) *cgotorch.Tensor {
	if batch.Dim() != 4 || batch.Numel() == 0 {
		refuse(x, "images.Grid", "the images are %s, want [N, C, H, W] with elements", batch)
	}
	if o.Columns <= 0 {
		o.Columns = 8
	}
	switch {
	case o.Padding == 0:
		o.Padding = 2
	case o.Padding < 0:
		o.Padding = 0
	}
	return x.NoGrad().Tidy(func() *cgotorch.Tensor {
		y := x.NoGrad()
		v := y.Detach(batch)
		if v.Shape()[1] == 1 {
			v = y.Cat([]*cgotorch.Tensor{v, v, v}, 1)
		}
		if o.Normalize {
			low := y.Min(v)
			v = y.Div(y.Sub(v, low), y.Clamp(y.Sub(y.Max(v), low), 1e-5, nil))
		}
		shape := v.Shape()
		n, height, width := int(shape[0]), int(shape[2]), int(shape[3])
		if n == 1 {
			return y.Squeeze(v, 0)
		}
		columns := min(o.Columns, n)
		rows := (n + columns - 1) / columns
		grid := y.Full(v.DType(), o.PadValue, shape[1], int64(rows*(height+o.Padding)+o.Padding), int64(columns*(width+o.Padding)+o.Padding))
		for i := range n {
			top, left := i/columns*(height+o.Padding)+o.Padding, i%columns*(width+o.Padding)+o.Padding
			y.CopyInPlace(y.Narrow(y.Narrow(grid, 1, top, height), 2, left, width), y.Select(v, 0, i))
		}
		return grid
	})
}

func refuse(x *cgotorch.Exec, op, format string, args ...any) {
	x.Fail(op, &cgotorch.Error{Op: op, Kind: cgotorch.ErrInvalidArgument, Message: fmt.Sprintf(format, args...)})
}
