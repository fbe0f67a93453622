package images

import "github.com/streamtorch/streamtorch/cgotorch"

// Blend enqueues the weighted sum of each image and its changed copies into out, as
// torchvision's AugMix computes it:
//
//	out[n] = weights[n, 0]*pixels[n] + weights[n, 1]*copies[n] + weights[n, 2]*copies[N+n] + …
//
// Each product and each sum is rounded to float32, and the result is rounded down. If flips[n] is
// true, pixels[n] is first mirrored left to right. The copies are not.
//
// pixels and out are contiguous uint8 [N, H, W, C] with C from 1 to 4. copies is contiguous uint8
// [K*N, H, W, C], as [Augment] makes it from K*N lists of steps. weights is contiguous float32
// [N, 1+K]. flips is bool [N], or nil for no flips. out shares no memory with the others. Blend
// fails with [cgotorch.ErrInvalidArgument] for tensors of other shapes.
//
// Source: torchvision.transforms.v2.AugMix
func Blend(x *cgotorch.Exec, pixels, flips, copies, weights, out *cgotorch.Tensor) {
	x.Call("streamtorch::blend_images", pixels, flips, copies, weights, out)
}
