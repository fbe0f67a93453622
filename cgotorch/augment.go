package cgotorch

// #include "cgotorch.h"
import "C"

import "runtime"

// MaxImageSteps is the number of steps that [Exec.AugmentImages] takes for an image.
const MaxImageSteps = 8

// ImageSteps returns steps as [Exec.AugmentImages] reads them: float32 [len(steps), S, 8], where S is the length of the longest. Like
// [FromSlice] it waits on a CUDA device; a loop that must not wait copies the same elements from pinned memory.
func (x *Exec) ImageSteps(steps ...[]ImageStep) *Tensor {
	most := 0
	for _, s := range steps {
		most = max(most, len(s))
	}
	var step ImageStep
	data := make([]float32, len(steps)*most*len(step))
	for i, s := range steps {
		for k, step := range s {
			copy(data[(i*most+k)*len(step):], step[:])
		}
	}
	return FromSlice(x, data, int64(len(steps)), int64(most), int64(len(step)))
}

// AugmentImages enqueues into out[n] the image pixels[n], turned left to right where flips says so, behind the steps steps[n, 0],
// steps[n, 1] and so on. pixels and out are contiguous uint8 [N, H, W, C] with C 1 or 3, and share no memory; flips is bool [N], or
// nil for none; steps is float32 [N, S, 8] with S up to [MaxImageSteps], each row an [ImageStep]: a [SharpnessStep], and a step that moves
// pixels, changes nothing but as an image's first. Both devices give the same bytes. It does not
// wait, except on a CUDA device the first time, while its kernel is compiled. It fails with [ErrInvalidArgument].
func (x *Exec) AugmentImages(pixels, flips, steps, out *Tensor) {
	const op = "Exec.AugmentImages"
	x.check(op)
	ts := []*Tensor{pixels, steps, out}
	if flips != nil {
		ts = append(ts, flips)
	}
	for _, t := range ts {
		x.open(op, t)
	}
	x.must(op, C.ct_augment_images(x.c, pixels.h, handleOf(flips), steps.h, out.h), ts...)
	for _, t := range ts {
		runtime.KeepAlive(t)
	}
}

// handleOf is NULL for a tensor that is left out.
func handleOf(t *Tensor) *C.ct_tensor {
	if t == nil {
		return nil
	}
	return t.h
}
