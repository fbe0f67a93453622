package images

import "github.com/streamtorch/streamtorch/cgotorch"

// MixOptions are the options of [Mix]. The zero value changes nothing.
type MixOptions struct {
	// Erased is a box of each image of the result: int32 [N, 4] of top, left, height and width. nil
	// means no boxes. The box's pixels become Fill, one number a channel in the units of the
	// result. A nil Fill means 0.
	Erased *cgotorch.Tensor
	Fill   []float64

	// Kind is the way to mix an image, its erased box included, with the image before it in the
	// batch. The first image is mixed with the last.
	Kind MixKind
	// Share is, for MixUp, the share of the image itself, from 0 to 1: the lambda of the paper.
	Share float64
	// Top, Left, Bottom and Right bound the box of the image before, for CutMix: rows Top to
	// Bottom-1, columns Left to Right-1.
	Top, Left, Bottom, Right int
}

// MixKind is a way to mix two images.
type MixKind int

const (
	NoMix  MixKind = iota // csrc/kernels/mix.cc numbers them too
	MixUp                 // Share of the image and 1-Share of the image before
	CutMix                // a box of the image before
)

// Mix is [Normalize] with o done to its result, in the same pass. Its results are those of
// erase, MixUp and CutMix of torchvision.transforms.v2, to the bit. torchvision then works on
// the normalised images, with the same boxes and share. This holds in every dtype of out:
// Float32, Float64, Float16 and BFloat16.
func Mix(x *cgotorch.Exec, pixels, flips, table, out *cgotorch.Tensor, o MixOptions) {
	x.Call("streamtorch::mix_images", pixels, flips, table, o.Erased, o.Fill, int(o.Kind), o.Share, []int{o.Top, o.Left, o.Bottom, o.Right}, out)
}

// MixLabels enqueues the labels of mixed images into out, contiguous float32 [N, classes]. The
// class of an image gets share, and the class of the image before it 1-share. The first image
// is mixed with the last. labels is int64 [N]. For CutMix share is the part of the image that
// is its own.
//
// A label below 0, or of classes and above, adds nothing. [cgotorch.Exec.CrossEntropy] takes
// the result as its target. Source: MixUp of torchvision.transforms.v2.
func MixLabels(x *cgotorch.Exec, labels, out *cgotorch.Tensor, share float64) {
	x.Call("streamtorch::mix_labels", labels, share, out)
}
