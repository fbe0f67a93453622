package decode

import (
	"image"
	"image/color"
)

// flatten copies an image to RGB, or to grey if the image is grey. Alpha is dropped. If a channel
// has 16 bits, the upper 8 are kept.
func flatten(img image.Image) picture {
	b := img.Bounds()
	out := picture{width: b.Dx(), height: b.Dy(), channels: 3}
	switch img.(type) {
	case *image.Gray, *image.Gray16:
		out.channels = 1
	}
	out.pix = make([]byte, out.width*out.height*out.channels)
	row := rowsOf(img)
	for y := range out.height {
		row(y, out.pix[y*out.width*out.channels:][:out.width*out.channels])
	}
	return out
}

// rowsOf returns a function that writes row y of an image into `to`. Rows are counted from 0.
func rowsOf(img image.Image) func(y int, to []byte) {
	switch img := img.(type) {
	case *image.Gray:
		return func(y int, to []byte) { copy(to, img.Pix[y*img.Stride:]) }
	case *image.Gray16:
		return func(y int, to []byte) { pick(to, img.Pix[y*img.Stride:], 1, 2, 2) }
	case *image.NRGBA:
		return func(y int, to []byte) { pick(to, img.Pix[y*img.Stride:], 3, 4, 1) }
	case *image.NRGBA64:
		return func(y int, to []byte) { pick(to, img.Pix[y*img.Stride:], 3, 8, 2) }
	case *image.Paletted:
		rgb := triples(img.Palette)
		return func(y int, to []byte) {
			for x, index := range img.Pix[y*img.Stride:][:len(to)/3] {
				copy(to[3*x:3*x+3], rgb[index][:])
			}
		}
	case *image.YCbCr:
		return rowsOfVP8(img)
	case *image.NYCbCrA:
		return rowsOfVP8(&img.YCbCr)
	}
	if opaque, ok := img.(interface{ Opaque() bool }); ok && opaque.Opaque() {
		switch img := img.(type) {
		case *image.RGBA:
			return func(y int, to []byte) { pick(to, img.Pix[y*img.Stride:], 3, 4, 1) }
		case *image.RGBA64:
			return func(y int, to []byte) { pick(to, img.Pix[y*img.Stride:], 3, 8, 2) }
		}
	}
	min := img.Bounds().Min
	return func(y int, to []byte) { // mostly for colours that are multiplied by alpha
		for x := range len(to) / 3 {
			c := color.NRGBAModel.Convert(img.At(min.X+x, min.Y+y)).(color.NRGBA)
			to[3*x], to[3*x+1], to[3*x+2] = c.R, c.G, c.B
		}
	}
}

// pick copies the first `channels` values of each pixel. In `from`, a pixel has `pixel` bytes,
// and a value has `value` bytes. pick copies only the first byte of each value, which is the
// upper byte.
func pick(to, from []byte, channels, pixel, value int) {
	for len(to) > 0 {
		for c := range channels {
			to[c] = from[c*value]
		}
		to, from = to[channels:], from[min(pixel, len(from)):]
	}
}
