// Package decode turns encoded images into crops of one size: uint8 pixels, height x width x channels, ready for a batch.
//
// A [Pool] owns threads outside the Go scheduler. [Pool.Decode] takes a whole batch, crosses into C once, and returns when
// every image is done. A file that cannot be decoded is an error in its own [Result]; the rest of the batch is still right.
//
// # What is decoded
//
// JPEG (baseline and progressive; grey, YCbCr, RGB, CMYK, YCCK) by libjpeg-turbo and PNG (all kinds) by libpng. GIF (its
// first frame), BMP, TIFF and WebP are decoded by Go and transformed by the same pool.
//
// # Pixels
//
// Colours are those of Pillow's convert("RGB"), or of its convert("L") with Channels 1, and [Resize] and the other
// transforms compute what torchvision computes on a Pillow image with antialiased bilinear interpolation. Known differences:
//
//   - The EXIF orientation is applied, before the transform. torchvision's default loader ignores it.
//   - 16-bit grey PNG keeps its upper 8 bits, as 16-bit colour does in Pillow too. Pillow cuts 16-bit grey off at 255.
//   - A JPEG whose entropy-coded data are damaged is an error. Pillow refuses a file that ends early and shows other
//     damage as grey or coloured blocks.
//   - A transparent pixel of a GIF whose frame has its own palette is black. Pillow shows the palette's colour.
//
// # Random choices
//
// They depend on [Image].Key alone, never on the order or the number of workers. The generator is Philox4x32-10 with Key as
// its key; each choice has a fixed counter, so that the flip of an image does not change with its transform.
//
// # Limits
//
// An image with more than Options.MaxPixels pixels is refused before its pixels are decoded. Decoding takes up to 4 bytes a
// pixel for each worker, and 10 for a progressive JPEG. A JPEG with more than 100 scans is refused.
package decode
