// Package decode turns encoded images into crops of one size: uint8 pixels, height x width x
// channels, ready for a batch.
//
// A [Pool] owns threads outside the Go scheduler. [Pool.Decode] takes a whole batch, crosses into C
// once, and returns when every image is done. A file that cannot be decoded is an error in its own
// [Result]. The rest of the batch is still right.
//
// # What is decoded
//
// libjpeg-turbo decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK. libpng
// decodes all kinds of PNG. Go decodes GIF (the first frame), BMP, TIFF and WebP, and the same pool
// transforms them.
//
// # Pixels
//
// Colours are those of Pillow's convert("RGB"), or of its convert("L") with Channels 1. [Resize]
// and the other transforms compute the results of torchvision on a Pillow image with antialiased
// bilinear interpolation. Known differences:
//
//   - The EXIF orientation is applied, before the transform. torchvision's default loader ignores
//     it.
//   - 16-bit grey keeps its upper 8 bits, as 16-bit colour does in Pillow too. Pillow cuts 16-bit
//     grey off at 255.
//   - A JPEG whose entropy-coded data are damaged is an error. Pillow refuses a file that ends
//     early and shows other damage as grey or coloured blocks. Most wrong bits decode to some
//     picture, and no decoder can tell: of photographs with one to three wrong bytes or bits 28 %
//     are refused. A file that ends early is refused for every Key. The rows of a baseline JPEG
//     below the box are not decoded. Other damage there is not seen, except by [Check].
//   - A PNG with a wrong checksum is an error. A PNG that only lacks its end, after the last pixel,
//     is not.
//   - A transparent pixel of a GIF whose frame has its own palette is black. Pillow shows the
//     palette's colour.
//   - Of GIF animations the first frame is decoded. WebP animations, BMP with run-length coding and
//     TIFF holding JPEG data or CMYK are [ErrUnsupported].
//
// Resized pixels equal those of Pillow 13 exactly, but for images that are shrunk while they are
// decoded. Older versions always begin with the horizontal pass. They differ by 1 at most where
// Pillow 13 does not begin so.
//
// # Shrinking
//
// A JPEG whose box is at least 4, 8 or 16 times the size of the result is decoded at 1/2, 1/4 or
// 1/8. The factor holds for both directions. The result is resized from there. Its pixels then
// differ from those of torchvision and Pillow. On photographs they differ by 0.5, 0.6 and 0.8 of
// 255 on average, and by 28 at an edge. [Options].NoShrink turns shrinking off, for exact pixels.
// Shrunk, a photograph of 4 million pixels takes three quarters of the time. Photographs below 896
// pixels on a side are never shrunk for a result of 224.
//
// # Random draws
//
// Random draws depend on [Image].Key alone, never on the order or the number of workers. The
// generator is Philox4x32-10 with Key as its key, low word first. Its counter is fixed for each
// draw: 0 for the flip, 1 for the place of a RandomCrop. Try i of a RandomResizedCrop has 16+i for
// the shape and 32+i for the place. Each draw gives two 64-bit numbers: area and ratio, or top and
// left. So the flip of an image does not change with its transform.
//
// # Limits
//
// An image with more than Options.MaxPixels pixels, or a side above a million, is refused before
// its pixels are decoded. A JPEG with more than 100 scans is refused. PNG text and profiles are not
// inflated.
//
// # Memory
//
// The memory of an image follows from its header:
//
//   - A baseline JPEG takes 3 bytes for each pixel of its box and as much as the file.
//   - A progressive JPEG takes 3 bytes too, and 2 for each sample of the whole image. 4:2:0 has one
//     and a half samples a pixel.
//   - A PNG takes 3 bytes for each pixel.
//   - An image that must be turned upright takes 3 more.
//
// A thread takes up to 16 MiB without asking, and most photographs need less. An image that needs
// more waits until Options.Memory has room for all of it. Images are served in the order in which
// they came to wait. An image that alone needs more than Options.Memory is decoded while no other
// image that had to ask is. So decoding takes no more than [Pool.MaxMemory], however many threads
// and large images there are.
//
// GIF, BMP, TIFF and WebP are decoded on Go's heap. They have as many bytes as Options.Memory for
// themselves, and wait in the same way. They count 5, 7, 16 (29 with 16 bits a channel) and 13
// bytes a pixel. Garbage that Go's collector has not freed yet is not counted. Neither is [Check],
// which does not wait for memory.
package decode
