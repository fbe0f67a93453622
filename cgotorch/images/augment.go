package images

import "github.com/streamtorch/streamtorch/cgotorch"

// MaxSteps is the largest number of steps that [Augment] takes for an image.
const MaxSteps = 8

// Steps returns steps as [Augment] reads them: float32 [len(steps), S, 8], where S is the
// length of the longest list. On a CUDA device it waits until the steps are staged. A loop that
// must not wait copies the same elements from page-locked memory. The Do owns the result.
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

// Augment enqueues the augmentation of each image pixels[n] into out[n]. The image is turned
// left to right where flips[n] is true. The steps steps[n, 0], steps[n, 1] and so on follow.
//
// pixels and out are contiguous uint8 [N, H, W, C] with C 1 or 3, and share no memory. flips is
// bool [N], or nil for none. steps is float32 [N, S, 8] with S up to [MaxSteps]; each row is a
// [Step].
//
// A [Sharpness] step must be the first of its image, and so must a step that moves pixels. A
// later step of this kind changes nothing.
func Augment(x *cgotorch.Exec, pixels, flips, steps, out *cgotorch.Tensor) {
	x.Call("streamtorch::augment_images", pixels, flips, steps, out)
}
