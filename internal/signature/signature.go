// Package signature names the kind of a file by its first bytes, for the messages of programs that
// cannot read it.
package signature

import (
	"bytes"
	"strings"
)

// A Kind is a kind of file that no image loader here reads.
type Kind struct {
	Name  string // "a JPEG XL image"
	Cure  string // what to do: "convert it to PNG or JPEG"
	Image bool   // the file is a picture
}

// Packed reports whether the file is compressed, or an archive.
func (k Kind) Packed() bool { return k.Cure == unpack }

const (
	convert = "convert it to PNG or JPEG"
	frames  = "extract its frames as JPEG files"
	unpack  = "unpack it"
)

// kinds are found by the bytes at one place of a file. A signature that begins with a shorter one
// comes before it in the list.
//
// Source: the formats' specifications, and https://www.garykessler.net/library/file_sigs.html
var kinds = []struct {
	at   int
	text string
	kind Kind
}{
	{0, "\xff\x0a", Kind{"a JPEG XL image", convert, true}},
	{0, "\x00\x00\x00\x0cJXL \r\n\x87\n", Kind{"a JPEG XL image", convert, true}},
	{0, "\x00\x00\x00\x0cjP  \r\n\x87\n", Kind{"a JPEG 2000 image", convert, true}},
	{0, "\xff\x4f\xff\x51", Kind{"a JPEG 2000 image", convert, true}},
	{0, "II\xbc\x01", Kind{"a JPEG XR image", convert, true}},
	{0, "8BPS", Kind{"a Photoshop image (PSD)", convert, true}},
	{0, "gimp xcf", Kind{"a GIMP image", convert, true}},
	{0, "v/1\x01", Kind{"an OpenEXR image", "map its values to 8 bits, and " + convert, true}},
	{0, "#?RADIANCE", Kind{"a Radiance HDR image", "map its values to 8 bits, and " + convert, true}},
	{0, "#?RGBE", Kind{"a Radiance HDR image", "map its values to 8 bits, and " + convert, true}},
	{128, "DICM", Kind{"a DICOM image", "choose its window, and " + convert, true}},
	{344, "n+1\x00", Kind{"a NIfTI image", "choose its slices, and " + convert, true}},
	{0, "SIMPLE  =", Kind{"a FITS image", convert, true}},
	{0, "II*\x00\x10\x00\x00\x00CR", Kind{"a camera's raw image (CR2)", "develop it, and " + convert, true}},
	{0, "IIU\x00", Kind{"a camera's raw image (RW2)", "develop it, and " + convert, true}},
	{0, "IIRO", Kind{"a camera's raw image (ORF)", "develop it, and " + convert, true}},
	{0, "IIRS", Kind{"a camera's raw image (ORF)", "develop it, and " + convert, true}},
	{0, "MMOR", Kind{"a camera's raw image (ORF)", "develop it, and " + convert, true}},
	{0, "FUJIFILMCCD-RAW", Kind{"a camera's raw image (RAF)", "develop it, and " + convert, true}},
	{0, "FOVb", Kind{"a camera's raw image (X3F)", "develop it, and " + convert, true}},
	{6, "HEAPCCDR", Kind{"a camera's raw image (CRW)", "develop it, and " + convert, true}},
	{0, "\x00\x00\x01\x00", Kind{"an icon (ICO)", convert, true}},
	{0, "icns", Kind{"an icon (ICNS)", convert, true}},
	{0, "qoif", Kind{"a QOI image", convert, true}},
	{0, "FLIF", Kind{"a FLIF image", convert, true}},
	{0, "BPG\xfb", Kind{"a BPG image", convert, true}},
	{0, "DDS ", Kind{"a DDS texture", convert, true}},
	{0, "\xabKTX", Kind{"a KTX texture", convert, true}},
	{0, "AT&TFORM", Kind{"a DjVu document", "render it as PNG", true}},
	{0, "%PDF-", Kind{"a PDF document", "render it as PNG", true}},
	{0, "%!PS", Kind{"a PostScript document", "render it as PNG", true}},

	{0, "\x1aE\xdf\xa3", Kind{"a video (Matroska or WebM)", frames, false}},
	{0, "FLV\x01", Kind{"a video (FLV)", frames, false}},
	{0, "\x00\x00\x01\xba", Kind{"a video (MPEG)", frames, false}},
	{0, "\x00\x00\x01\xb3", Kind{"a video (MPEG)", frames, false}},
	{0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", Kind{"a video (WMV)", frames, false}},

	{0, "PK\x03\x04", Kind{"a zip file", unpack, false}},
	{0, "PK\x05\x06", Kind{"an empty zip file", unpack, false}},
	{0, "7z\xbc\xaf\x27\x1c", Kind{"a 7z file", unpack, false}},
	{0, "Rar!\x1a\x07", Kind{"a RAR file", unpack, false}},
	{0, "\x1f\x8b", Kind{"a gzip file", unpack, false}},
	{0, "BZh", Kind{"a bzip2 file", unpack, false}},
	{0, "\xfd7zXZ", Kind{"an xz file", unpack, false}},
	{0, "\x28\xb5\x2f\xfd", Kind{"a zstd file", unpack, false}},
	{0, "\x04\x22\x4d\x18", Kind{"an LZ4 file", unpack, false}},
	{0, "\x1f\x9d", Kind{"a file of compress (.Z)", unpack, false}},
	{257, "ustar", Kind{"a tar archive", unpack, false}},

	{0, "\x93NUMPY", Kind{"an array of numpy", "save its images as PNG", false}},
	{0, "\x89HDF\r\n\x1a\n", Kind{"an HDF5 file", "save its images as PNG", false}},
	{0, "MATLAB 5.0", Kind{"a MATLAB file", "save its images as PNG", false}},
	{0, "PAR1", Kind{"a Parquet file", "save its images as files", false}},
	{0, "SQLite format 3\x00", Kind{"an SQLite database", "save its images as files", false}},
	{0, "version https://git-lfs", Kind{"a Git LFS pointer", "run git lfs pull", false}},
}

// Of returns the kind of a file by its first bytes, of which it needs at most 512. `known` is false
// for a kind that it does not know, such as a text, and for the formats of package decode.
func Of(head []byte) (kind Kind, known bool) {
	at := func(place int, text string) bool {
		return len(head) >= place && bytes.HasPrefix(head[place:], []byte(text))
	}
	for _, k := range kinds {
		if at(k.at, k.text) {
			return k.kind, true
		}
	}
	switch {
	case at(4, "ftyp"):
		return media(head), true
	case isTGA(head): // before a cursor, which begins as a TGA without a palette may
		return Kind{"a TGA image", convert, true}, true
	case at(0, "\x00\x00\x02\x00"):
		return Kind{"a cursor (CUR)", convert, true}, true
	case at(0, "RIFF") && at(8, "AVI "):
		return Kind{"a video (AVI)", frames, false}, true
	case at(0, "RIFF") && at(8, "WAVE"):
		return Kind{"a sound (WAV)", "leave it out", false}, true
	case len(head) > 2 && head[0] == 'P' && head[1] >= '1' && head[1] <= '7' && strings.ContainsRune(" \t\r\n", rune(head[2])):
		return Kind{"a Netpbm image (PPM, PGM or PBM)", convert, true}, true
	case len(head) > 1 && (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5):
		return Kind{"a Python pickle", "save its images as files", false}, true
	}
	text := strings.ToLower(string(head[:min(len(head), 512)]))
	text = strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n")
	if strings.HasPrefix(text, "<svg") || (strings.HasPrefix(text, "<?xml") || strings.HasPrefix(text, "<!")) && strings.Contains(text, "<svg") ||
		strings.HasPrefix(text, "<!doctype svg") {
		return Kind{"an SVG drawing", "render it as PNG", true}, true
	}
	return Kind{}, false
}

// isTGA reports whether all fields of a TGA's header have values that they may have.
func isTGA(head []byte) bool {
	if len(head) < 18 || head[12]|head[13] == 0 || head[14]|head[15] == 0 || head[17] >= 0x40 {
		return false
	}
	palette := string(head[3:8]) != "\x00\x00\x00\x00\x00"
	return head[1] <= 1 && palette == (head[1] == 1) && bytes.IndexByte([]byte{1, 2, 3, 9, 10, 11}, head[2]) >= 0 &&
		bytes.IndexByte([]byte{8, 15, 16, 24, 32}, head[16]) >= 0
}

// media returns the kind of a file of ISO's base media format, by the brands that it has.
func media(head []byte) Kind {
	size := int(head[2])<<8 | int(head[3])
	if head[0] != 0 || head[1] != 0 {
		size = len(head)
	}
	brands := string(head[8:max(8, min(len(head), size))])
	first := brands[:min(len(brands), 4)]
	has := func(names ...string) bool {
		for i := 0; i+4 <= len(brands); i += 4 {
			for _, name := range names {
				if brands[i:i+4] == name && i != 4 { // the second is a version
					return true
				}
			}
		}
		return false
	}
	switch {
	case has("avif", "avis"):
		return Kind{"an AVIF image", convert, true}
	case has("heic", "heix", "heim", "heis", "hevc", "hevx", "mif1", "msf1"):
		return Kind{"a HEIC image", convert, true}
	case first == "crx ":
		return Kind{"a camera's raw image (CR3)", "develop it, and " + convert, true}
	case first == "qt  ":
		return Kind{"a video (QuickTime)", frames, false}
	}
	return Kind{"a video (MP4)", frames, false}
}
