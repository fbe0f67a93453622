package images

import "github.com/streamtorch/streamtorch/cgotorch"

// MixOptions are the options of [Mix]. The zero value changes nothing.
type MixOptions struct {
	// Erased has a box for each image of the result: int32 [N, 4] of top, left, height and width. nil
	// means no boxes. The pixels in a box become Fill, which has one number for each channel, in the
	// units of the result. A nil Fill means 0.
	Erased *cgotorch.Tensor
	Fill   []float64

	// Kind is the way to mix each image with the image before it in the batch. The first image is
	// mixed with the last. Boxes are erased before the mixing.
	Kind MixKind
	// Share is for MixUp. It is the share of the image itself, from 0 to 1: the lambda of the paper.
	Share float64
	// Top, Left, Bottom and Right are for CutMix. They bound the box that comes from the previous
	// image in the batch: rows Top to Bottom-1, columns Left to Right-1.
	Top, Left, Bottom, Right int
}

// MixKind is a way to mix two images.
type MixKind int

const (
	_      MixKind = iota // no mixing; the numbers must equal those in csrc/kernels/mix.cc
	MixUp                 // Share times the image, plus 1-Share times the image before it
	CutMix                // the image, with a box from the image before it
)

// Mix enqueues the work of [Normalize], and applies o to the normalised images in the same pass.
// The result equals that of torchvision.transforms.v2 to the bit: erase, MixUp or CutMix on the
// normalised images, with the same boxes and share. This holds if the dtype of `out` is Float32,
// Float64, Float16 or BFloat16.
func Mix(x *cgotorch.Exec, pixels, flips, table, out *cgotorch.Tensor, o MixOptions) {
	x.Call("streamtorch::mix_images", pixels, flips, table, o.Erased, o.Fill, int(o.Kind), o.Share, []int{o.Top, o.Left, o.Bottom, o.Right}, out)
}

// MixLabels enqueues the labels of mixed images into out, contiguous float32 [N, classes]. labels
// is int64 [N]. In the row of an image, the class of this image gets the number `share`. The
// class of the image before it in the batch gets 1-share. The first image is mixed with the last.
// For CutMix, `share` is the fraction of the image's pixels that are its own.
//
// A label that is negative or too large for the classes adds nothing.
// [cgotorch.Exec.CrossEntropy] takes the result as its target. The arithmetic is that of MixUp in
// torchvision.transforms.v2.
func MixLabels(x *cgotorch.Exec, labels, out *cgotorch.Tensor, share float64) {
	x.Call("streamtorch::mix_labels", labels, share, out)
}
