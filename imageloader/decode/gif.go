package decode

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/gif"
	"slices"
)

// gifFile is the first image of a GIF file: the whole picture, which the format calls the screen,
// and the frame that lies on it.
type gifFile struct {
	data          []byte
	width, height int
	palette       [256][3]byte
	transparent   int // an entry of the palette, or -1
}

// openGIF reads what is before the pixels of the first frame. A frame may be larger than the
// screen. The screen then grows.
func openGIF(data []byte) (*gifFile, error) {
	const header, screen, frame = 6, 13, 10 // bytes up to the screen, of both, and of a frame's description
	const hasPalette = 0x80
	truncated := refuse(ErrTruncated, "truncated GIF")
	if len(data) < screen {
		return nil, truncated
	}
	f := &gifFile{data: data, transparent: -1}
	number := func(at int) int { return int(binary.LittleEndian.Uint16(data[at:])) }
	f.width, f.height = number(header), number(header+2)
	// colours reads the palette at `at`. It returns where the palette ends.
	colours := func(flags byte, at int) int {
		count := 2 << (flags & 7)
		f.palette = [256][3]byte{}
		for i := range min(count, (len(data)-at)/3) {
			f.palette[i] = [3]byte(data[at+3*i:])
		}
		return at + 3*count
	}
	at, found := screen, data[10]&hasPalette != 0
	if found {
		at = colours(data[10], at)
	}
	for at+frame <= len(data) {
		switch data[at] {
		case '!': // an extension: its kind, then blocks that begin with their length
			const control, hasTransparent = 0xf9, 1
			if data[at+1] == control && data[at+2] >= 4 && data[at+3]&hasTransparent != 0 {
				f.transparent = int(data[at+6])
			}
			for at += 2; at < len(data) && data[at] != 0; {
				at += 1 + int(data[at])
			}
			at++
		case ',':
			if flags := data[at+9]; flags&hasPalette != 0 {
				colours(flags, at+frame)
				found = true
			}
			right, bottom := number(at+1)+number(at+5), number(at+3)+number(at+7)
			if right > f.width || bottom > f.height {
				f.width, f.height = max(right, f.width), max(bottom, f.height)
				f.data = slices.Clone(data)
				binary.LittleEndian.PutUint16(f.data[header:], uint16(f.width))
				binary.LittleEndian.PutUint16(f.data[header+2:], uint16(f.height))
			}
			if !found {
				return nil, refuse(ErrUnsupported, "GIF without a palette is unsupported")
			}
			return f, nil
		case ';':
			return nil, refuse(ErrCorrupt, "corrupt GIF: no image")
		default:
			return nil, refuse(ErrCorrupt, "corrupt GIF: unknown block type %#x", data[at])
		}
	}
	return nil, truncated
}

func (f *gifFile) info() Info {
	return Info{Format: GIF, Width: f.width, Height: f.height, Channels: 1, Bits: 8, ColorSpace: palette, Alpha: f.transparent >= 0}
}

// decode returns the screen as RGB. Around the frame, it has the colour of the transparent entry
// of the palette, or of entry 0 if no entry is transparent. Transparent pixels have their colour
// in the palette. A pixel outside the palette is black.
func (f *gifFile) decode() (picture, error) {
	in := &source{Reader: *bytes.NewReader(f.data)}
	img, err := gif.Decode(in)
	if err != nil {
		return picture{}, in.refusal(GIF, err)
	}
	frame := img.(*image.Paletted)
	out := picture{pix: make([]byte, f.width*f.height*3), width: f.width, height: f.height, channels: 3}
	ground := f.palette[max(f.transparent, 0)]
	for i := 0; i < len(out.pix) && frame.Rect != image.Rect(0, 0, f.width, f.height); i += 3 {
		*(*[3]byte)(out.pix[i:]) = ground
	}
	for y := range frame.Rect.Dy() {
		to := out.pix[((frame.Rect.Min.Y+y)*f.width+frame.Rect.Min.X)*3:]
		for x, index := range frame.Pix[y*frame.Stride:][:frame.Rect.Dx()] {
			*(*[3]byte)(to[3*x:]) = f.palette[index]
		}
	}
	return out, nil
}
