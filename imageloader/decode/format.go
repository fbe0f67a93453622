package decode

import "bytes"

// Format is the kind of an image file. The first bytes of the file decide it.
type Format int

// The formats that are decoded.
const (
	Unknown Format = iota
	JPEG
	PNG
	GIF
	BMP
	TIFF
	WebP
)

// String returns the usual spelling: "JPEG", "WebP", "unknown".
func (f Format) String() string {
	switch f {
	case JPEG:
		return "JPEG"
	case PNG:
		return "PNG"
	case GIF:
		return "GIF"
	case BMP:
		return "BMP"
	case TIFF:
		return "TIFF"
	case WebP:
		return "WebP"
	}
	return "unknown"
}

// Sniff returns the format that data begins with. It looks at no more than 18 bytes. So a file
// that is cut off or damaged after its signature still has its format.
func Sniff(data []byte) Format {
	begins := func(prefix string) bool { return len(data) >= len(prefix) && string(data[:len(prefix)]) == prefix }
	switch {
	case begins("\xff\xd8"):
		return JPEG
	case begins("\x89PNG"):
		return PNG
	case begins("GIF87a"), begins("GIF89a"):
		return GIF
	case begins("II*\x00"), begins("MM\x00*"), begins("II+\x00"), begins("MM\x00+"):
		return TIFF
	case begins("RIFF") && len(data) >= 12 && bytes.Equal(data[8:12], []byte("WEBP")):
		return WebP
	case begins("BM") && len(data) >= 18 && data[15] == 0 && data[16] == 0 && data[17] == 0:
		return BMP // Words begin with "BM" too. So the header's length, bytes 14 to 17, must be less than 256.
	}
	return Unknown
}
