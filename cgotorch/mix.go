package cgotorch

// #include "cgotorch.h"
import "C"

import (
	"fmt"
	"runtime"
)

// ImageMix says what [Exec.MixImages] does to the normalised images of a batch. The zero value does nothing.
type ImageMix struct {
	// Erased, int32 [N, 4] or nil for none, is a box of each image, in the result: top, left, height and width. Its pixels become Fill, of
	// one number a channel, in the units of the result; nil means 0.
	Erased *Tensor
	Fill   []float64

	// Mix says how an image, its erased box included, is mixed with the one before it in the batch, the first with the last.
	Mix MixKind
	// Lambda is, for MixUp, the share of the image itself, from 0 to 1.
	Lambda float64
	// Top, Left, Bottom and Right bound, for CutMix, what comes from the image before: rows Top to Bottom-1, columns Left to Right-1.
	Top, Left, Bottom, Right int
}

// MixKind is a way to mix two images.
type MixKind int32

const (
	NoMix  MixKind = C.CT_MIX_NONE
	MixUp  MixKind = C.CT_MIX_UP  // Lambda of the image and 1-Lambda of the one before
	CutMix MixKind = C.CT_MIX_CUT // a box of the one before
)

// MixImages is [Exec.NormalizeImages] with m done to its result, in the same pass: what torchvision.transforms.v2's erase, MixUp and
// CutMix make of the normalised images with the same boxes and lambda, to the bit, in every dtype of out. It takes Float32, Float64,
// Float16 and BFloat16. It does not wait, except on a CUDA device the first time, while its kernel is compiled. It fails with
// [ErrInvalidArgument].
func (x *Exec) MixImages(pixels, flips, table, out *Tensor, m ImageMix) {
	const op = "Exec.MixImages"
	x.check(op)
	ts := []*Tensor{pixels, table, out}
	for _, t := range []*Tensor{flips, m.Erased} {
		if t != nil {
			ts = append(ts, t)
		}
	}
	for _, t := range ts {
		x.open(op, t)
	}
	c := C.ct_mix{kind: C.int32_t(m.Mix), lambda: C.double(m.Lambda),
		top: C.int32_t(m.Top), left: C.int32_t(m.Left), bottom: C.int32_t(m.Bottom), right: C.int32_t(m.Right)}
	if shape := pixels.Shape(); len(m.Fill) > 0 && len(shape) == 4 && int64(len(m.Fill)) != shape[3] || len(m.Fill) > len(c.fill) {
		x.s.fail(&Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Shapes: pixels.String(),
			Message: fmt.Sprintf("Fill has %d values; it must have one for each channel", len(m.Fill))})
	}
	for i, v := range m.Fill {
		c.fill[i] = C.double(v)
	}
	x.must(op, C.ct_mix_images(x.c, pixels.h, handleOf(flips), table.h, handleOf(m.Erased), &c, out.h), ts...)
	for _, t := range ts {
		runtime.KeepAlive(t)
	}
}

// MixLabels enqueues into out, contiguous float32 [N, classes], what torchvision's MixUp makes of labels, int64 [N]: lambda for the
// class of an image and 1-lambda for that of the one before it, the first with the last; CutMix's lambda is the share of the image
// that is its own. A label below 0, or of classes and above, adds nothing. [Exec.CrossEntropy] takes the result as its target. It does not
// wait, except on a CUDA device the first time, while its kernel is compiled. It fails with [ErrInvalidArgument].
func (x *Exec) MixLabels(labels, out *Tensor, lambda float64) {
	const op = "Exec.MixLabels"
	x.check(op)
	x.open(op, labels)
	x.open(op, out)
	x.must(op, C.ct_mix_labels(x.c, labels.h, C.double(lambda), out.h), labels, out)
	runtime.KeepAlive(labels)
	runtime.KeepAlive(out)
}
