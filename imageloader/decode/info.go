package decode

import (
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/ctd"
)

// Info is the content of an image's header.
type Info struct {
	Format        Format
	Width, Height int    // as stored, without the EXIF orientation
	Channels      int    // as stored, with alpha; 1 for a palette
	Bits          int    // bits of a channel, or of a palette index
	ColorSpace    string // of the stored channels: "grey", "RGB", "YCbCr", "CMYK", "YCCK" or "palette"
	Alpha         bool   // the image has an alpha channel or a transparent colour
	Progressive   bool   // the image is a progressive JPEG or an interlaced PNG
	Orientation   int    // EXIF orientation, 1 to 8; 1 where the file has none
}

// These are values of Info.ColorSpace.
const (
	grey    = "grey"
	rgb     = "RGB"
	ycbcr   = "YCbCr"
	cmyk    = "CMYK"
	palette = "palette"
)

// Probe reads the header of an image of any [Format], without decoding the pixels. It fails with
// an *[Error].
func Probe(data []byte) (Info, error) {
	if format := Sniff(data); format.foreign() {
		info, err := probeForeign(data, format)
		return info, named(err, data)
	}
	var out ctd.Info
	if err := take(ctd.Probe(bytesOf(data), uintptr(len(data)), &out)); err != nil {
		return Info{}, named(err, data)
	}
	return Info{
		Format: Format(out.Format), Width: int(out.Width), Height: int(out.Height), Channels: int(out.Channels),
		Bits: int(out.Bits), ColorSpace: [...]string{"", grey, rgb, ycbcr, cmyk, "YCCK", palette}[out.ColorSpace], Alpha: out.Alpha != 0,
		Progressive: out.Progressive != 0, Orientation: int(out.Orientation),
	}, nil
}

// Check decodes the whole image and drops its pixels. nil means that a [Pool] with the default
// MaxPixels decodes the image. Check decodes on the calling goroutine and returns when it is
// done. It fails with the *[Error] that the pool would give.
func Check(data []byte) error {
	if format := Sniff(data); format.foreign() {
		_, err := decodeForeign(data, format, defaultMaxPixels)
		return named(err, data)
	}
	return named(take(ctd.Check(bytesOf(data), uintptr(len(data)), 0)), data)
}

func bytesOf(data []byte) *uint8 {
	return unsafe.SliceData(data)
}
