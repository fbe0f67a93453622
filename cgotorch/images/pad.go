package images

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// padModes are the values of PadOptions.Mode. Their numbers equal those in csrc/kernels/border.h.
func padModes() []string { return []string{"constant", "edge", "reflect", "symmetric"} }

// PadOptions are the options of [Pad]. The zero value adds nothing.
type PadOptions struct {
	// Left, Top, Right and Bottom are numbers of pixels, 0 or above. With "reflect" they are below
	// the image's width or height. With "symmetric" they are at most the width or height.
	Left, Top, Right, Bottom int
	// Mode says which pixels are added, with torchvision's names. "constant", or "", adds Fill.
	// "edge" adds the nearest pixel of the image. "reflect" mirrors the image about its outermost
	// pixels. "symmetric" mirrors it about its edges, so that the outermost pixels come twice.
	Mode string
	Fill []uint8 // colour for "constant": one level, or one for each channel; nil means 0
}

// Size returns the height and the width of padded images.
func (o PadOptions) Size(height, width int) (int, int) {
	return o.Top + height + o.Bottom, o.Left + width + o.Right
}

// Pad enqueues the images of `pixels`, with pixels added around each, into out. If flips[n] is
// true, image n is first mirrored left to right. pixels is contiguous uint8 [N, H, W, C] with C
// from 1 to 4. flips is bool [N], or nil for no flips. out is contiguous uint8 [N, Top+H+Bottom,
// Left+W+Right, C] and shares no memory with pixels.
//
// Pad fails with [cgotorch.ErrInvalidArgument] for a number of pixels outside its range, and for
// tensors of other shapes. The result equals torchvision's to the bit.
//
// Source: torchvision.transforms.v2.Pad
func Pad(x *cgotorch.Exec, pixels, flips, out *cgotorch.Tensor, o PadOptions) {
	var fill []int
	for _, level := range o.Fill {
		fill = append(fill, int(level))
	}
	x.Call("streamtorch::pad_images", pixels, flips, []int{o.Left, o.Top, o.Right, o.Bottom}, o.mode(), fill, out)
}

// mode returns the number of Mode, or -1.
func (o PadOptions) mode() int { return slices.Index(padModes(), cmp.Or(o.Mode, "constant")) }

// Check returns an error if images of this height, width and number of channels cannot be padded.
func (o PadOptions) Check(height, width, channels int) error {
	if o.mode() < 0 {
		return fmt.Errorf("Mode is %q; it must be one of %v", o.Mode, padModes())
	}
	if n := len(o.Fill); n > 1 && n != channels {
		return fmt.Errorf("Fill has %d levels; it must have none, one, or %d, one for each channel", n, channels)
	}
	for _, side := range []struct {
		name         string
		pixels, size int
	}{{"Left", o.Left, width}, {"Top", o.Top, height}, {"Right", o.Right, width}, {"Bottom", o.Bottom, height}} {
		most := math.MaxInt16
		switch o.Mode {
		case "reflect":
			most = side.size - 1
		case "symmetric":
			most = side.size
		}
		if side.pixels < 0 || side.pixels > most {
			return fmt.Errorf("%s is %d; it must be from 0 to %d for images of %d x %d pixels", side.name, side.pixels, most, height, width)
		}
	}
	return nil
}
