// Package decode turns encoded images into crops of one size. The result is uint8 pixels, height
// x width x channels, ready for a batch.
//
// A [Pool] owns threads outside the Go scheduler. [Pool.Decode] takes a whole batch, usually
// crosses into C once, and returns when every image is done. A file that cannot be decoded is an
// error in its own [Result]. The rest of the batch is still right.
//
// # What is decoded
//
// libjpeg-turbo decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK. libpng
// decodes all kinds of PNG. Go decodes GIF (the first frame), BMP, TIFF and WebP. The pool's
// threads then transform the images that Go decoded.
//
// # Pixels
//
// Colours are the colours of Pillow's convert("RGB"). With Channels 1, the grey levels are the
// grey levels of convert("L"). [Resize] and the other transforms compute the results of
// torchvision on a Pillow image, with antialiased bilinear interpolation. These differences are
// known:
//
//   - The EXIF orientation is applied before the transform. torchvision's default loader ignores
//     the orientation.
//   - 16-bit grey keeps its upper 8 bits. Pillow keeps the upper 8 bits of 16-bit colour, but sets
//     all 16-bit grey values above 255 to 255.
//   - A JPEG with damaged entropy-coded data is an error. Pillow refuses a file that ends early,
//     and shows other damage as grey or coloured blocks. No decoder finds all damage, because
//     most wrong bits decode to some picture. 28 % of the photographs with one to three wrong
//     bytes or bits are refused.
//   - The box is the part of an image that becomes the result. A baseline JPEG is not decoded
//     below the box, so only [Check] finds damage there. But a JPEG file that ends early is
//     always refused, wherever the box lies.
//   - A PNG with a wrong checksum is an error. A PNG is no error when it lacks only the data
//     after its last pixel.
//   - Only the first frame of a GIF animation is decoded. WebP animations and a GIF without a
//     palette are [ErrUnsupported].
//   - A TIFF has grey of 1, 2, 4, 8 or 16 bits, a palette of 1 to 8 bits, or RGB or CMYK of 8
//     or 16 bits, with up to six samples a pixel. Its strips, tiles or planes are uncompressed,
//     or have LZW, Deflate, PackBits or fax codes (Group 3 in one dimension, Group 4). Every
//     other kind is ErrUnsupported, and the error has its name: BigTIFF, JPEG data, Zstandard,
//     YCbCr, grey with alpha, floats, and so on. Only the first image of the file is decoded.
//   - In a TIFF of 16-bit grey, 0 may be white. Its grey levels are inverted, as with 8 bits.
//     Pillow does not invert them. Pillow reads uncompressed planes of 16 bits as if they had 8.
//   - BMP with run-length coding, and bit fields of more than 8 bits, are ErrUnsupported. Headers
//     of 12 to 124 bytes are read.
//
// Resized pixels equal those of Pillow 13 exactly, except for images that are shrunk while they
// are decoded. Older versions of Pillow always begin with the horizontal pass. Where Pillow 13
// begins with the vertical pass, their pixels differ by at most 1.
//
// # Shrinking
//
// A JPEG whose box is at least 4, 8 or 16 times the size of the result is decoded at 1/2, 1/4 or
// 1/8. This must hold for the height and for the width. The shrunk image is then resized to the
// result. Its pixels differ from the pixels of torchvision and Pillow. On photographs the average
// differences are 0.5, 0.6 and 0.8 of 255. At an edge the difference is up to 28.
//
// [Options].NoShrink turns shrinking off, for exact pixels. With shrinking, a photograph of 4
// million pixels takes three quarters of the time. Photographs below 896 pixels on a side are
// never shrunk for a result of 224.
//
// # Random draws
//
// The random numbers of an image depend on [Image].Key alone, never on the order or the number of
// workers. The generator is Philox4x32-10. It has a key and a counter. The generator's key is
// [Image].Key, low word first. Each use of random numbers has a counter value of its own. The
// flip has the value 0, and the place of a RandomCrop has 1. Try i of a RandomResizedCrop has
// 16+i for the shape and 32+i for the place. One counter value gives two 64-bit numbers: area and
// ratio, or top and left. The flip of an image does not change with its transform, because the
// flip has its own counter value.
//
// # Limits
//
// An image with more than Options.MaxPixels pixels, or a side above a million, is refused before
// its pixels are decoded. A JPEG with more than 100 scans is refused. PNG text and profiles are
// not inflated.
//
// # Memory
//
// The memory of an image follows from its header:
//
//   - A baseline JPEG takes 3 bytes for each pixel of its box, and as many bytes as the file.
//   - A progressive JPEG takes the 3 bytes too, and 2 bytes for each sample of the whole image.
//     An image in 4:2:0 has one and a half samples a pixel.
//   - A PNG takes 3 bytes for each pixel.
//   - An image that must be turned upright takes 3 more bytes for each pixel.
//
// A thread may take up to 16 MiB without a wait, and most photographs need less. An image that
// needs more waits until Options.Memory has room for all its memory. Images are served in the
// order in which they began to wait. One image may alone need more than Options.Memory. Such an
// image is decoded when no other image uses any of Options.Memory. So decoding never takes more
// than [Pool.MaxMemory].
//
// GIF, BMP, TIFF and WebP are decoded on Go's heap. For these formats there is a second limit of
// Options.Memory bytes, and images wait for it in the same way. A BMP counts 3 bytes a pixel, a
// TIFF 4, a GIF 5 and a WebP 13. Garbage that Go's collector has not freed yet is not counted.
// [Check] is not counted, because it does not wait for memory.
package decode
