package images

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// PadMode says which pixels [Pad] adds.
type PadMode int

const (
	PadConstant  PadMode = iota // Fill; the numbers must equal those in csrc/kernels/border.h
	PadEdge                     // the nearest pixel of the image
	PadReflect                  // the image mirrored about its outermost pixels
	PadSymmetric                // the image mirrored about its edges, so that the outermost pixels come twice
)

// PadOptions are the options of [Pad]. The zero value adds nothing.
type PadOptions struct {
	// Left, Top, Right and Bottom are numbers of pixels, 0 or above. With PadReflect they are below
	// the image's width or height. With PadSymmetric they are at most the width or height.
	Left, Top, Right, Bottom int
	Mode                     PadMode
	Fill                     []uint8 // colour for PadConstant: one level, or one for each channel; nil means 0
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
	x.Call("streamtorch::pad_images", pixels, flips, []int{o.Left, o.Top, o.Right, o.Bottom}, int(o.Mode), fill, out)
}

// Check returns an error if images of this height, width and number of channels cannot be padded.
func (o PadOptions) Check(height, width, channels int) error {
	if o.Mode < PadConstant || o.Mode > PadSymmetric {
		return fmt.Errorf("Mode is %d; it must be from %d to %d", o.Mode, PadConstant, PadSymmetric)
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
		case PadReflect:
			most = side.size - 1
		case PadSymmetric:
			most = side.size
		}
		if side.pixels < 0 || side.pixels > most {
			return fmt.Errorf("%s is %d; it must be from 0 to %d for images of %d x %d pixels", side.name, side.pixels, most, height, width)
		}
	}
	return nil
}
