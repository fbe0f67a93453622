package images

import "github.com/streamtorch/streamtorch/cgotorch"

// MaxBlur is the largest height and width of a kernel of [GaussianBlur].
const MaxBlur = 63

// GaussianBlur enqueues the images of `pixels`, each blurred by its own Gaussian, into out. The
// kernel has `height` x `width` pixels, which are odd and at most [MaxBlur]. sigmas is float32
// [N, 2]: for each image the standard deviations down and across, in pixels. A number that is not
// above 0 leaves the image as it is in that direction. Beyond its border the image is reflected. So
// height/2 must be below the image's height, and width/2 below its width.
//
// pixels and out are contiguous uint8 [N, H, W, C] with C from 1 to 4, and share no memory.
// GaussianBlur fails with [cgotorch.ErrInvalidArgument] for a size outside its range, and for
// tensors of other shapes.
//
// The result equals torchvision's, except that a level may differ by 1 where torchvision's exact
// result lies near a half. torchvision adds all products in another order.
//
// Source: torchvision.transforms.v2.GaussianBlur
func GaussianBlur(x *cgotorch.Exec, pixels, sigmas, out *cgotorch.Tensor, height, width int) {
	x.Call("streamtorch::blur_images", pixels, sigmas, height, width, out)
}
