// Package images has operators of the library's own on batches of images. They flip, augment,
// normalise and mix uint8 pixels on the device.
//
// Each function enqueues one operator on its Exec's stream. It does not wait, except for the
// compilation of the kernel on a CUDA device the first time. The caller owns all tensors. A
// function that fails unwinds to the Do, as every operator does. The error of unsuitable
// arguments is [cgotorch.ErrInvalidArgument]. Nothing is recorded for backward. On the CPU and
// on CUDA the results are equal to the bit.
package images
