// Package images has operators of the library's own on batches of images: they flip, augment, normalise and mix
// uint8 pixels on the device.
//
// Each function enqueues one operator on its Exec's stream and does not wait, except on a CUDA device the first
// time, while the kernel is compiled. The caller owns all tensors. A function that fails unwinds to the Do, as
// every operator does; the error of unsuitable arguments is [cgotorch.ErrInvalidArgument]. Nothing is recorded for
// backward. On the CPU and on CUDA the results are equal to the bit.
package images
