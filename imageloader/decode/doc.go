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
//   - 16-bit grey keeps its upper 8 bits, as 16-bit colour does in Pillow too. Pillow cuts 16-bit grey off at 255.
//   - A JPEG whose entropy-coded data are damaged is an error. Pillow refuses a file that ends early and shows other
//     damage as grey or coloured blocks. (Most wrong bits decode to some picture, and no decoder can tell: of photographs
//     with one to three wrong bytes or bits 28 % are refused.) A file that ends early is refused for every Key. Other damage
//     is not seen where it lies in rows below the box that is cut out, which of a baseline JPEG are not decoded; [Check]
//     sees it.
//   - A PNG with a wrong checksum is an error; one that only lacks its end, after the last pixel, is not.
//   - A transparent pixel of a GIF whose frame has its own palette is black. Pillow shows the palette's colour.
//   - Of GIF animations the first frame is decoded; WebP animations, BMP with run-length coding and TIFF holding JPEG data
//     or CMYK are [ErrUnsupported].
//
// Resized pixels equal those of Pillow 13 exactly, but for images that are shrunk while they are decoded. Older versions
// always begin with the horizontal pass and differ by 1 at most where Pillow 13 does not.
//
// # Shrinking
//
// A JPEG whose box is at least 4, 8 or 16 times the size of the result, in both directions, is decoded at 1/2, 1/4 or 1/8, and
// resized from there. Its pixels then differ from those of torchvision and Pillow: on photographs by 0.5, 0.6 and 0.8 of 255
// on average, and by 28 at an edge. [Options].NoShrink turns it off, for exact pixels. Shrunk, a photograph of 4 million pixels
// takes three quarters of the time; those below 896 pixels on a side are never shrunk for a result of 224.
//
// # Random choices
//
// They depend on [Image].Key alone, never on the order or the number of workers. The generator is Philox4x32-10 with Key as
// its key, low word first, and a counter that is fixed for each choice: 0 for the flip, 1 for the place of a RandomCrop,
// 16+i and 32+i for the shape and the place of try i of a RandomResizedCrop. Each gives two 64-bit numbers: area and ratio,
// or top and left. So the flip of an image does not change with its transform.
//
// # Limits
//
// An image with more than Options.MaxPixels pixels, or a side above a million, is refused before its pixels are decoded. A
// JPEG with more than 100 scans is refused; PNG text and profiles are not inflated.
//
// # Memory
//
// What an image takes follows from its header: a baseline JPEG 3 bytes for each pixel of its box and as much as the file; a
// progressive one 3 bytes too, and 2 for each sample of the whole image, of which 4:2:0 has one and a half a pixel; a PNG 3 bytes
// for each pixel; and those that must be turned upright 3 more. A thread takes up to 16 MiB without asking, and most photographs
// need less. An image that needs more waits until Options.Memory has room for all of it, in the order in which images came to
// wait; one that alone needs more than Options.Memory is decoded while no other one that had to ask is. So however many threads
// and large images there are, decoding takes no more than [Pool.MaxMemory].
//
// GIF, BMP, TIFF and WebP are decoded on Go's heap. They have as many bytes as Options.Memory for themselves, wait in the same
// way, and count 5, 7, 16 (29 with 16 bits a channel) and 13 bytes a pixel. What Go's collector has not freed yet is not counted,
// and neither is [Check], which waits for nobody.
package decode
