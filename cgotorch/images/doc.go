// Package images has operators on batches of images. They are the library's own and work on the
// device. They flip, pad, augment, blur, blend, normalise and mix uint8 pixels. [JPEGDecoder]
// decodes files for package imageloader/decode. [FromImage], [ToImage] and [Grid] lead from Go's
// images to tensors and back.
//
// Each other function on tensors, except [Steps] and [NormalizationTable], enqueues one operator on
// its Exec's stream. On a CUDA device the first call waits until the kernel is compiled. Later
// calls do not wait. The caller owns the tensors of the arguments. A function that fails unwinds to
// the Do, as every operator does. For unsuitable arguments the error is
// [cgotorch.ErrInvalidArgument]. Nothing is recorded for backward. On the CPU and on CUDA the
// results are equal to the bit.
package images
