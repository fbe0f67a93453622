package decode

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/internal/ctd"
)

// Transform says which part of an image becomes the result, and the result's size. A Transform is
// a [RandomResizedCrop], a [RandomCrop], a [ResizeCenterCrop] or a [Resize]. They follow
// torchvision's transforms of these names.
type Transform interface {
	set(*ctd.Options)
}

// RandomResizedCrop cuts a box of random area and shape at a random place, and resizes it to
// Height x Width. If none of ten random boxes fits into the image, RandomResizedCrop takes the
// largest box of an allowed shape in the middle.
type RandomResizedCrop struct {
	Height, Width      int
	MinScale, MaxScale float64 // share of the image's area, uniformly random. 0 means MinScale 0.08 and MaxScale 1
	MinRatio, MaxRatio float64 // width / height. Its logarithm is uniformly random. 0 means MinRatio 3/4 and MaxRatio 4/3
}

// RandomCrop adds Padding pixels on each side and cuts Height x Width pixels at a random place.
// It does not resize. An image that is smaller than the crop, with its padding, is refused with
// ErrTooSmall.
type RandomCrop struct {
	Height, Width int
	Padding       int
	// PaddingMode says what pixels lie outside the image, with torchvision's names. "" means
	// "constant". With a padding of 2, a row a b c becomes:
	//
	//   - constant: 0 0 a b c 0 0
	//   - edge: a a a b c c c
	//   - reflect: c b a b c b a
	//   - symmetric: b a a b c c b
	PaddingMode string
}

// ResizeCenterCrop resizes the image so that its shorter side is Resize pixels. It then cuts the
// middle Height x Width pixels. If the resized image is smaller than that, it is padded with 0 on
// both sides.
type ResizeCenterCrop struct {
	Resize        int // length of the shorter side. 0 means the smaller of Height and Width
	Height, Width int
}

// Resize resizes the whole image to Height x Width. It does not keep the image's shape.
type Resize struct {
	Height, Width int
}

// paddingMode returns C's number of a RandomCrop.PaddingMode, or -1.
func paddingMode(name string) int {
	if name == "" {
		return 0
	}
	return slices.Index([]string{"constant", "edge", "reflect", "symmetric"}, name)
}

func (t RandomResizedCrop) set(o *ctd.Options) {
	o.Transform = ctd.RandomResizedCrop
	o.Height, o.Width = narrow(t.Height), narrow(t.Width)
	o.MinScale, o.MaxScale = t.MinScale, t.MaxScale
	o.MinRatio, o.MaxRatio = t.MinRatio, t.MaxRatio
}

func (t RandomCrop) set(o *ctd.Options) {
	o.Transform = ctd.RandomCrop
	o.Height, o.Width = narrow(t.Height), narrow(t.Width)
	o.Padding, o.PaddingMode = narrow(t.Padding), narrow(paddingMode(t.PaddingMode))
}

func (t ResizeCenterCrop) set(o *ctd.Options) {
	o.Transform = ctd.ResizeCenterCrop
	o.Height, o.Width = narrow(t.Height), narrow(t.Width)
	o.Resize = narrow(t.Resize)
	if t.Resize == 0 {
		o.Resize = min(o.Height, o.Width)
	}
}

func (t Resize) set(o *ctd.Options) {
	o.Transform = ctd.Resize
	o.Height, o.Width = narrow(t.Height), narrow(t.Width)
}

// narrow returns v as an int32. If v is too large or too small for that, `narrow` returns the
// largest or smallest int32. C then refuses this value.
func narrow(v int) int32 {
	return int32(max(math.MinInt32, min(v, math.MaxInt32)))
}
