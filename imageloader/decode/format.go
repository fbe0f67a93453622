package decode

import "github.com/streamtorch/streamtorch/internal/signature"

// Format is the kind of an image file. The first bytes of the file decide it. 0 is another kind of
// file.
type Format int

// The formats that are decoded.
const (
	JPEG = Format(signature.JPEG)
	PNG  = Format(signature.PNG)
	GIF  = Format(signature.GIF)
	BMP  = Format(signature.BMP)
	TIFF = Format(signature.TIFF)
	WebP = Format(signature.WebP)
)

// String returns the usual spelling: "JPEG", "WebP", "unknown".
func (f Format) String() string { return signature.Picture(f).String() }

// Sniff returns the format that data begins with. It looks at no more than 18 bytes. So a file
// that is cut off or damaged after its signature still has its format.
func Sniff(data []byte) Format { return Format(signature.PictureOf(data)) }
