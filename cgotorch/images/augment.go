package images

import "github.com/streamtorch/streamtorch/cgotorch"

// MaxSteps is the largest number of steps that [Augment] takes for one image.
const MaxSteps = 8

// Steps returns the given lists of steps as a tensor that [Augment] reads: float32 [len(steps),
// S, 8]. S is the length of the longest list. On a CUDA device Steps waits until the stream has
// copied the elements. A loop that must not wait can copy the same elements from page-locked
// memory, with [cgotorch.CopyFrom]. The Do owns the result.
func Steps(x *cgotorch.Exec, steps ...[]Step) *cgotorch.Tensor {
	most := 0
	for _, s := range steps {
		most = max(most, len(s))
	}
	var step Step
	data := make([]float32, len(steps)*most*len(step))
	for i, s := range steps {
		for k, step := range s {
			copy(data[(i*most+k)*len(step):], step[:])
		}
	}
	return cgotorch.FromSlice(x, data, int64(len(steps)), int64(most), int64(len(step)))
}

// Augment enqueues the augmentation of each image pixels[n] into out[n]. If flips[n] is true, it
// first mirrors the image left to right. Then it applies the steps steps[n, 0], steps[n, 1] and
// so on.
//
// pixels and out are contiguous uint8 [N, H, W, C] with C 1 or 3, and share no memory. flips is
// bool [N], or nil for no flips. steps is float32 [N, S, 8]. S is at most [MaxSteps], and each
// row of 8 elements is a [Step]. out and steps may have several times N rows. Their row m is then
// for image m mod N.
//
// A step that leads works only as the first step of its image: see [Step.Leads]. At a later
// position it changes nothing.
func Augment(x *cgotorch.Exec, pixels, flips, steps, out *cgotorch.Tensor) {
	x.Call("streamtorch::augment_images", pixels, flips, steps, out)
}
