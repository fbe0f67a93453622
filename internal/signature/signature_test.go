package signature

import (
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	for _, test := range []struct{ head, want string }{
		{"\xff\x0a\x00", "a JPEG XL image"}, {"\x00\x00\x00\x0cJXL \r\n\x87\n", "a JPEG XL image"},
		{"\x00\x00\x00\x0cjP  \r\n\x87\n\x00", "a JPEG 2000 image"}, {"\xff\x4f\xff\x51\x00", "a JPEG 2000 image"},
		{strings.Repeat("\x00", 128) + "DICM\x02\x00", "a DICOM image"},
		{"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00mif1avifmiaf", "an AVIF image"}, {"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00mif1avifmiaf", "an AVIF image"},
		{"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "a HEIC image"}, {"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1heic", "a HEIC image"},
		{"\x00\x00\x00\x18ftypcrx \x00\x00\x00\x01crx isom", "a camera's raw image (CR3)"}, {"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41", "a video (MP4)"},
		{"\x00\x00\x00\x14ftypqt  \x00\x00\x02\x00qt  ", "a video (QuickTime)"}, {"\x00\x00\x00\x08ftyp", "a video (MP4)"}, {"\xff\xff\xff\xffftypheic", "a HEIC image"},
		{"<svg xmlns=\"http://www.w3.org/2000/svg\">", "an SVG drawing"}, {"\ufeff<?xml version=\"1.0\"?>\n<!-- a -->\n<svg>", "an SVG drawing"},
		{"%PDF-1.7\n", "a PDF document"}, {"8BPS\x00\x01", "a Photoshop image (PSD)"}, {"v/1\x01\x02", "an OpenEXR image"},
		{"II*\x00\x10\x00\x00\x00CR\x02\x00", "a camera's raw image (CR2)"}, {"FUJIFILMCCD-RAW 0201", "a camera's raw image (RAF)"},
		{"\x1aE\xdf\xa3\x01", "a video (Matroska or WebM)"}, {"RIFF\x00\x00\x00\x00AVI LIST", "a video (AVI)"}, {"\x00\x00\x01\xba", "a video (MPEG)"},
		{"PK\x03\x04\x14", "a zip file"}, {"7z\xbc\xaf\x27\x1c", "a 7z file"}, {"Rar!\x1a\x07\x01\x00", "a RAR file"}, {"\x1f\x8b\x08", "a gzip file"},
		{strings.Repeat("a", 257) + "ustar\x0000", "a tar archive"}, {"P6\n2 2\n255\n", "a Netpbm image (PPM, PGM or PBM)"}, {"\x93NUMPY\x01", "an array of numpy"},
		{"\x80\x04\x95", "a Python pickle"}, {"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"}, {"\x00\x00\x01\x00\x01\x00", "an icon (ICO)"},

		{"\x00\x00\x02\x00\x01\x00\x10\x10\x00\x00\x00\x00\x20\x00I\x00\x00\x00", "a cursor (CUR)"}, {"\x00\x00\x02\x00", "a cursor (CUR)"},
		{"\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x25\x00\x1d\x00\x18\x00", "a TGA image"}, {"\x00\x01\x09\x00\x00\x32\x00\x18\x00\x00\x00\x00\x25\x00\x1d\x00\x08\x00", "a TGA image"},
		{"\x05\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x01\x00\x01\x20\x28", "a TGA image"},

		{"", ""}, {"\x00", ""}, {"P", ""}, {"This is no image", ""}, {"<!DOCTYPE html>\n<html>", ""}, {"<?xml version=\"1.0\"?><a/>", ""}, {"\xff\xd8\xff\xe0", ""}, {"\x89PNG\r\n\x1a\n", ""},
		{"II*\x00\x08\x00\x00\x00", ""}, {"RIFF\x00\x00\x00\x00WEBPVP8 ", ""}, {"GIF89a", ""}, {"BM", ""}, {"Pages", ""}, {strings.Repeat("\x00", 512), ""},
	} {
		kind, known := Of([]byte(test.head))
		if kind.Name != test.want || known != (test.want != "") || known && kind.Cure == "" {
			t.Errorf("%.40q: got %+v, want %q", test.head, kind, test.want)
		}
	}
	for i, a := range kinds { // no signature hides a later one
		for _, b := range kinds[i+1:] {
			if a.at == b.at && strings.HasPrefix(b.text, a.text) {
				t.Errorf("%q comes before %q", a.text, b.text)
			}
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x1cftypavif\x00\x00\x00\x00mif1"))
	f.Fuzz(func(_ *testing.T, head []byte) { Of(head) })
}
