package imageloader

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// foreigners are the beginnings of files that are not read, and how messages name them.
var foreigners = []struct {
	extension, head string
	name, cure      string
}{
	{".jxl", "\xff\x0a\x7f\x02", "a JPEG XL image", "convert it to PNG or JPEG"},
	{".dcm", strings.Repeat("\x00", 128) + "DICM\x02\x00", "a DICOM image", "convert it to PNG or JPEG"},
	{".avif", "\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1", "an AVIF image", "convert it to PNG or JPEG"},
	{".heic", "\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "a HEIC image", "convert it to PNG or JPEG"},
	{".svg", "<?xml version=\"1.0\"?>\n<svg width=\"4\"/>", "an SVG drawing", "render it as PNG"},
	{".pdf", "%PDF-1.7\n%\xe2\xe3", "a PDF document", "render it as PNG"},
	{".psd", "8BPS\x00\x01", "a Photoshop image (PSD)", "convert it to PNG or JPEG"},
	{".exr", "v/1\x01\x02\x00", "an OpenEXR image", "map its values to 8 bits"},
	{".jp2", "\x00\x00\x00\x0cjP  \r\n\x87\n", "a JPEG 2000 image", "convert it to PNG or JPEG"},
	{".raf", "FUJIFILMCCD-RAW 0201", "a camera's raw image (RAF)", "develop it"},
	{".cr3", "\x00\x00\x00\x18ftypcrx \x00\x00\x00\x01crx isom", "a camera's raw image (CR3)", "develop it"},
	{".ppm", "P6\n2 2\n255\n", "a Netpbm image", "convert it to PNG or JPEG"},
	{".mp4", "\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2", "a video (MP4)", "extract its frames"},
	{".mkv", "\x1aE\xdf\xa3\x01\x00", "a video (Matroska or WebM)", "extract its frames"},
	{".zip", "PK\x03\x04\x14\x00", "a zip file", "unpack it"},
	{".tar", string(tarOf([]member{{name: "a/1.png"}})), "a tar archive", "unpack it"},
	{".7z", "7z\xbc\xaf\x27\x1c\x00", "a 7z file", "unpack it"},
	{".npy", "\x93NUMPY\x01\x00", "an array of numpy", "save its images"},
}

// A file that is not read is named, with what to do: in an archive by its name, with the name of an
// image, and in place of an archive.
func TestOpen_Foreigners(t *testing.T) {
	checkLeaks(t)
	for _, f := range foreigners {
		data := []byte(f.head + strings.Repeat("\x01\x02", 600))
		if f.extension != ".tar" && f.extension != ".zip" {
			_, err := Open(write(t, "a"+f.extension, data), options())
			wantError(t, err, ErrArchive, "a"+f.extension+": neither gzip nor tar but "+f.name, f.cure)
		}

		members := append(numbered(3), member{name: "train/a/9.jpg", body: data})
		o := options()
		_, err := tryRead(open(t, write(t, "a.tar", tarOf(members)), o))
		wantError(t, err, ErrBadMember, "member 4 (train/a/9.jpg): ", f.name, f.cure)
		if strings.Contains(err.Error(), `\x`) {
			t.Errorf("%s: raw bytes: %v", f.extension, err)
		}
		if _, err := decode.Probe(data); err == nil || !strings.Contains(err.Error(), f.name) || errors.Is(err, decode.ErrUnsupported) == errors.Is(err, decode.ErrNotAnImage) {
			t.Errorf("Probe of %s: %v", f.extension, err)
		}

		path := write(t, "b.tar", tarOf([]member{{name: "train/a/1" + f.extension, body: data}, {name: "train/b/2" + strings.ToUpper(f.extension), body: data}}))
		_, err = Open(path, o)
		want := map[string][]string{
			".tar": {"archive inside (.tar)", "unpack the archives in it, and give their folder, or a pattern such as FOLDER/*.tar"}, ".zip": {"archive inside (.zip)", "unpack"}, ".7z": {"archive inside (.7z)", "unpack"},
			".mp4": {"video (.mp4)", "extract the videos' frames"}, ".mkv": {"video (.mkv)", "extract the videos' frames"}, ".npy": {"not an image", ""},
		}[f.extension]
		if want == nil {
			want = []string{"image of a format that is not read (" + f.extension + ")", "convert the images to PNG or JPEG"}
		}
		wantError(t, err, ErrNoImages, append(want, "passed over: 2 ")...)
		if _, scanned := Scan(context.Background(), path, 0); scanned == nil || scanned.Error() != err.Error() {
			t.Errorf("Scan: %v, Open: %v", scanned, err)
		}
	}
	for _, image := range []string{"a.jpg", "a.png"} {
		data := photo(8, 8)
		if image == "a.png" {
			data = solid(1, 8, 8)
		}
		_, err := Open(write(t, image, data), options())
		wantError(t, err, ErrArchive, image+": neither gzip nor tar but one image (", "give the folder that holds its classes")
	}
}

// Classes of a report are in the order of their labels.
func TestScan_OrderOfLabels(t *testing.T) {
	for name, members := range map[string][]member{
		"directories": named("0/a 1/b 10/c 2/d 03/e"), "names": named("cat/a Dog/b 10/c 2/d"), "labels": beside("%03d", "png", "cls"), "mixed": append(beside("x/%03d", "cls", "png"), member{name: "x/99.cls", body: []byte("10")}, member{name: "x/99.png", body: solid(1, 2, 2)}),
	} {
		path := write(t, "a.tar", tarOf(members))
		report, err := Scan(context.Background(), path, 0)
		must.Do(t, err)
		classes := open(t, path, options()).Classes()
		last := -1
		for _, c := range report.Classes {
			at := -1
			for i, class := range classes {
				if class == c.Name {
					at = i
				}
			}
			if at <= last {
				t.Errorf("%s: %v, labels %v", name, report.Classes, classes)
			}
			last = at
		}
	}
}
