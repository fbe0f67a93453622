package signature

// Picture is a format of images that package decode reads.
type Picture int

// The formats that package decode reads.
const (
	NoPicture Picture = iota
	JPEG
	PNG
	GIF
	BMP
	TIFF
	WebP
)

// String returns the usual spelling: "JPEG", "WebP", "unknown".
func (p Picture) String() string {
	names := [...]string{"unknown", "JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP"}
	if p < 0 || int(p) >= len(names) {
		p = NoPicture
	}
	return names[p]
}

// PictureOf returns the format that data begins with. It looks at no more than 18 bytes. So a file
// that is cut off or damaged after its signature still has its format.
func PictureOf(data []byte) Picture {
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
	case begins("RIFF") && len(data) >= 12 && string(data[8:12]) == "WEBP":
		return WebP
	case begins("BM") && len(data) >= 18 && data[15] == 0 && data[16] == 0 && data[17] == 0:
		return BMP // Words begin with "BM" too. So the header's length, bytes 14 to 17, must be less than 256.
	}
	return NoPicture
}
