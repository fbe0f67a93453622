package decode

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"

	"golang.org/x/image/webp"
)

// webpFile is an image of one frame, with the size of the canvas.
type webpFile struct {
	data   []byte
	header Info
}

// openWebP reads the headers. It refuses animations. It also refuses a frame whose size is not the
// canvas's size. Go's decoder would make an image of the frame's size, and DecodeConfig does not
// tell that size.
func openWebP(data []byte) (*webpFile, error) {
	in := &source{Reader: *bytes.NewReader(data)}
	config, err := webp.DecodeConfig(in)
	info := Info{Format: WebP, Width: config.Width, Height: config.Height, Channels: 3, Bits: 8, ColorSpace: rgb}
	switch config.ColorModel {
	case color.YCbCrModel:
		info.ColorSpace = ycbcr
	case color.NYCbCrAModel:
		info.Channels, info.ColorSpace, info.Alpha = 4, ycbcr, true
	}
	for at := 12; at+8 <= len(data); {
		body := data[at+8:]
		width, height := -1, -1 // no frame
		switch string(data[at : at+4]) {
		case "ANIM", "ANMF":
			return nil, refuse(ErrUnsupported, "animated WebP")
		case "VP8 ":
			if len(body) >= 10 {
				width, height = int(binary.LittleEndian.Uint16(body[6:]))&0x3fff, int(binary.LittleEndian.Uint16(body[8:]))&0x3fff
			}
		case "VP8L":
			if len(body) >= 5 {
				bits := binary.LittleEndian.Uint32(body[1:])
				width, height = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
				info.Channels, info.ColorSpace, info.Alpha = 3, rgb, bits>>28&1 != 0
				if info.Alpha {
					info.Channels = 4
				}
			}
		}
		if width >= 0 && err == nil && (width != config.Width || height != config.Height) {
			return nil, refuse(ErrCorrupt, "corrupt WebP: a frame of %dx%d in a canvas of %dx%d", width, height,
				config.Width, config.Height)
		}
		at += 8 + int(binary.LittleEndian.Uint32(data[at+4:]))
		at += at & 1
	}
	if err != nil {
		return nil, in.refusal(WebP, err)
	}
	return &webpFile{data, info}, nil
}

func (f *webpFile) info() Info { return f.header }

// decode returns the pixels as RGB. Alpha is dropped.
func (f *webpFile) decode() (picture, error) {
	in := &source{Reader: *bytes.NewReader(f.data)}
	img, err := webp.Decode(in)
	if err != nil {
		return picture{}, in.refusal(WebP, err)
	}
	out := picture{width: f.header.Width, height: f.header.Height, channels: 3}
	out.pix = make([]byte, out.width*out.height*3)
	var row func(y int, to []byte)
	switch img := img.(type) {
	case *image.NRGBA:
		row = func(y int, to []byte) {
			for from := img.Pix[y*img.Stride:]; len(to) > 0; to, from = to[3:], from[4:] {
				copy(to[:3], from)
			}
		}
	case *image.YCbCr:
		row = rowsOfVP8(img)
	case *image.NYCbCrA:
		row = rowsOfVP8(&img.YCbCr)
	default:
		return picture{}, refuse(ErrInternal, "WebP decoded to %T", img)
	}
	for y := range out.height {
		row(y, out.pix[y*out.width*3:][:out.width*3])
	}
	return out, nil
}

// rowsOfVP8 returns a function that writes row y of a lossy WebP. It uses the colour formula of
// studio video, in which luma is 16 to 235. image.YCbCr would use the formula of JPEG. Colour
// samples are interpolated with the method of libwebp, because Pillow shows those pixels.
func rowsOfVP8(img *image.YCbCr) func(y int, to []byte) {
	width, height := img.Rect.Dx(), img.Rect.Dy()
	across, down := (width+1)/2, (height+1)/2
	return func(y int, to []byte) {
		near := y / 2
		far := min(max(near-1+y%2*2, 0), down-1)
		blue, blueFar := img.Cb[near*img.CStride:][:across], img.Cb[far*img.CStride:][:across]
		red, redFar := img.Cr[near*img.CStride:][:across], img.Cr[far*img.CStride:][:across]
		for x, luma := range img.Y[y*img.YStride:][:width] {
			u, v := between(blue, blueFar, x), between(red, redFar, x)
			l := int(luma) * 19077 >> 8
			to[3*x] = clip6(l + v*26149>>8 - 14234)
			to[3*x+1] = clip6(l - u*6419>>8 - v*13320>>8 + 8708)
			to[3*x+2] = clip6(l + u*33050>>8 - 17685)
		}
	}
}

// between returns the colour sample at pixel x. `near` is the row of samples that covers the pixel,
// and `far` is the next nearest row. The nearest sample counts 9/16, each of its two neighbours
// 3/16, and the diagonal sample 1/16. The result is rounded twice.
func between(near, far []byte, x int) int {
	i := x / 2
	j := i - 1 + x%2*2
	a, c := int(near[i]), int(far[i])
	if j < 0 || j >= len(near) {
		return (3*a + c + 2) >> 2
	}
	b, d := int(near[j]), int(far[j])
	return ((a+3*b+3*c+d+8)>>3 + a) >> 1
}

// clip6 drops the lowest 6 bits, which are a fraction, and limits the result to 0 to 255.
func clip6(v int) byte { return byte(max(0, min(v>>6, 255))) }
