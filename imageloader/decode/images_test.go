package decode

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// testdata/make.py made the images, and Pillow's pixels of these images.

func read(t testing.TB, path ...string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...)))(t)
}

func names(t testing.TB, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", folder))
	if err != nil || len(entries) == 0 {
		t.Fatalf("testdata/%s: %d files, %v", folder, len(entries), err)
	}
	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}
	return out
}

// pixelsOf returns the pixels of a PNG as RGB or grey. It decodes without this package.
func pixelsOf(t testing.TB, data []byte, channels int) (pix []byte, height, width int) {
	t.Helper()
	img := must.Get(png.Decode(bytes.NewReader(data)))(t)
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			pix = append(pix, []byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)}[:channels]...)
		}
	}
	return pix, b.Dy(), b.Dx()
}

// decodeOne decodes one image with a pool of its own.
func decodeOne(t testing.TB, data []byte, options Options) ([]byte, Result) {
	t.Helper()
	pool := newPool(t, options)
	height, width, channels := pool.Size()
	dst := bytes.Repeat([]byte{0xAB}, height*width*channels)
	results := make([]Result, 1)
	must.Do(t, pool.Decode([]Image{{Data: data}}, dst, results))
	return dst, results[0]
}

func newPool(t testing.TB, options Options) *Pool {
	t.Helper()
	if options.Workers == 0 {
		options.Workers = 2
	}
	pool := must.Get(NewPool(options))(t)
	t.Cleanup(func() { pool.Close() })
	return pool
}

// furthest returns the largest difference between got and want at one index.
func furthest(got, want []byte) int {
	most := 0
	for i := range want {
		most = max(most, int(got[i])-int(want[i]), int(want[i])-int(got[i]))
	}
	return most
}

func TestPool_Decode_EveryKind(t *testing.T) {
	for _, name := range names(t, "good") {
		tolerance := 0
		if strings.HasSuffix(name, ".jpg") {
			tolerance = 1 // two versions of libjpeg may round differently
		}
		data := read(t, "good", name)
		want, height, width := pixelsOf(t, read(t, "want", name+".png"), 3)
		got, result := decodeOne(t, data, Options{Transform: Resize{Height: height, Width: width}})
		if result.Err != nil {
			t.Errorf("%s: %v", name, result.Err)
			continue
		}
		if result.Width != width || result.Height != height {
			t.Errorf("%s: got a source of %dx%d, want %dx%d", name, result.Width, result.Height, width, height)
		}
		if d := furthest(got, want); d > tolerance {
			t.Errorf("%s: differs from Pillow by %d", name, d)
		}
		if err := Check(data); err != nil {
			t.Errorf("%s: Check: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join("testdata", "want", name+".L.png")); err != nil {
			continue
		}
		want, height, width = pixelsOf(t, read(t, "want", name+".L.png"), 1)
		got, result = decodeOne(t, data, Options{Transform: Resize{Height: height, Width: width}, Channels: 1})
		if d := furthest(got, want); result.Err != nil || d > tolerance {
			t.Errorf("%s as grey: differs from Pillow by %d, %v", name, d, result.Err)
		}
	}
}

func TestPool_Decode_BadImages(t *testing.T) {
	refused := map[string]struct {
		kind error
		text string
	}{
		"zero-bytes.jpg":           {ErrNotAnImage, "zero bytes"},
		"zeros.jpg":                {ErrNotAnImage, "not an image (1000 bytes, all 0)"},
		"text.jpg":                 {ErrNotAnImage, `not an image (starts with "This is no image")`},
		"page.jpg":                 {ErrNotAnImage, `not an image (starts with "<!DOCTYPE html>\x0a")`},
		"two-bytes.jpg":            {ErrTruncated, "truncated JPEG"},
		"header-only.jpg":          {ErrTruncated, "truncated JPEG"},
		"half.jpg":                 {ErrTruncated, "truncated JPEG"},
		"no-end.jpg":               {ErrTruncated, "truncated JPEG"},
		"half-progressive.jpg":     {ErrTruncated, "truncated JPEG"},
		"half-with-end.jpg":        {ErrCorrupt, "corrupt JPEG: premature end of data segment"},
		"flipped-bit.jpg":          {ErrCorrupt, "corrupt JPEG: "},
		"tables-only.jpg":          {ErrCorrupt, "corrupt JPEG: "},
		"40000x40000.jpg":          {ErrTooLarge, "40000x40000 is 1600 Mpx, above the limit of 100 Mpx: raise MaxPixels"},
		"130-scans.jpg":            {ErrTooLarge, "progressive JPEG with 130 scans, above the limit of 100"},
		"lossless.jpg":             {ErrUnsupported, "Unsupported JPEG process: SOF type 0xc3"},
		"12-bit.jpg":               {ErrUnsupported, "Unsupported JPEG data precision 12"},
		"five-bytes.png":           {ErrTruncated, "truncated PNG"},
		"signature-only.png":       {ErrTruncated, "truncated PNG"},
		"half.png":                 {ErrTruncated, "truncated PNG"},
		"flipped-bit.png":          {ErrCorrupt, "corrupt PNG: wrong checksum in IDAT"},
		"wrong-checksum.png":       {ErrCorrupt, "corrupt PNG: wrong checksum in IDAT"},
		"too-few-rows.png":         {ErrCorrupt, "corrupt PNG: "},
		"no-palette.png":           {ErrCorrupt, "corrupt PNG: "},
		"40000x40000.png":          {ErrTooLarge, "40000x40000 is 1600 Mpx, above the limit of 100 Mpx: raise MaxPixels"},
		"2000000x1.png":            {ErrTooLarge, "2000000x1 has a side above the limit of 1000000 pixels"},
		"header-only.gif":          {ErrTruncated, "truncated GIF"},
		"half.gif":                 {ErrTruncated, "truncated GIF"},
		"half.bmp":                 {ErrTruncated, "truncated BMP"},
		"half.tif":                 {ErrTruncated, "truncated TIFF"},
		"half.webp":                {ErrTruncated, "truncated WebP"},
		"40000x40000.gif":          {ErrTooLarge, "40000x40000 is 1600 Mpx, above the limit of 100 Mpx: raise MaxPixels"},
		"40000x40000.bmp":          {ErrTooLarge, "40000x40000 is 1600 Mpx, above the limit of 100 Mpx: raise MaxPixels"},
		"40000x40000.tif":          {ErrTooLarge, "40000x40000 is 1600 Mpx, above the limit of 100 Mpx: raise MaxPixels"},
		"no-width.tif":             {ErrCorrupt, "corrupt TIFF: 0x18 pixels"},
		"rle.bmp":                  {ErrUnsupported, "BMP of an unsupported kind"},
		"jpeg.tif":                 {ErrUnsupported, "TIFF with unsupported "},
		"big.tif":                  {ErrUnsupported, "BigTIFF"},
		"zstd.tif":                 {ErrUnsupported, "TIFF with unsupported "},
		"grey-alpha.tif":           {ErrUnsupported, "TIFF with unsupported "},
		"ycbcr.tif":                {ErrUnsupported, "TIFF with unsupported "},
		"float.tif":                {ErrUnsupported, "TIFF with unsupported "},
		"animated.webp":            {ErrUnsupported, "animated WebP"},
		"frame-above-canvas.webp":  {ErrCorrupt, "corrupt WebP: a frame of 16383x16383 in a canvas of 33x27"},
		"frame-without-width.webp": {ErrCorrupt, "corrupt WebP: a frame of 0x27 in a canvas of 33x27"},
	}
	for _, name := range names(t, "bad") {
		want, ok := refused[name]
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		data := read(t, "bad", name)
		got, result := decodeOne(t, data, Options{Transform: Resize{Height: 4, Width: 4}})
		for _, err := range []error{result.Err, Check(data)} {
			if !errors.Is(err, want.kind) || !strings.HasPrefix(err.Error(), want.text) {
				t.Errorf("%s: got %v; want %q, %v", name, err, want.text, want.kind)
			}
			if refusal := new(Error); !errors.As(err, &refusal) {
				t.Errorf("%s: %T is not an *Error", name, err)
			}
		}
		if !bytes.Equal(got, make([]byte, len(got))) {
			t.Errorf("%s: its pixels are not 0", name)
		}
	}
}

// A bad image, at any place in the batch, does not change the good images.
func TestPool_Decode_BadAmongGood(t *testing.T) {
	good := read(t, "good", "420.jpg")
	want, _ := decodeOne(t, good, Options{Transform: Resize{Height: 9, Width: 9}})
	var images []Image
	for _, name := range names(t, "bad") {
		images = append(images, Image{Data: good}, Image{Data: read(t, "bad", name)})
	}
	pool := newPool(t, Options{Transform: Resize{Height: 9, Width: 9}})
	dst, results := make([]byte, len(images)*len(want)), make([]Result, len(images))
	must.Do(t, pool.Decode(images, dst, results))
	for i, result := range results {
		part := dst[i*len(want) : (i+1)*len(want)]
		if i%2 == 0 && (result.Err != nil || !bytes.Equal(part, want)) {
			t.Errorf("image %d: %v, pixels equal: %v", i, result.Err, bytes.Equal(part, want))
		}
		if i%2 == 1 && result.Err == nil {
			t.Errorf("image %d is bad and has no error", i)
		}
	}
}

func TestProbe(t *testing.T) {
	tests := []struct {
		name string
		want Info
	}{
		{"420.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 1}},
		{"progressive.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, true, 1}},
		{"keep-rgb.jpg", Info{JPEG, 25, 18, 3, 8, "RGB", false, false, 1}},
		{"grey.jpg", Info{JPEG, 25, 18, 1, 8, "grey", false, false, 1}},
		{"cmyk.jpg", Info{JPEG, 25, 18, 4, 8, "CMYK", false, false, 1}},
		{"ycck.jpg", Info{JPEG, 25, 18, 4, 8, "YCCK", false, false, 1}},
		{"exif6.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 6}},
		{"exif6-big-endian.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 6}},
		{"exif8-long.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 8}},
		{"exif9.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 1}},
		{"exif-cut.jpg", Info{JPEG, 25, 18, 3, 8, "YCbCr", false, false, 1}},
		{"grey1.png", Info{PNG, 25, 18, 1, 1, "grey", false, false, 1}},
		{"rgba16.png", Info{PNG, 25, 18, 4, 16, "RGB", true, false, 1}},
		{"grey-transparent-colour.png", Info{PNG, 25, 18, 1, 8, "grey", true, false, 1}},
		{"palette4.png", Info{PNG, 25, 18, 1, 4, "palette", false, false, 1}},
		{"palette8-alpha.png", Info{PNG, 25, 18, 1, 8, "palette", true, false, 1}},
		{"interlaced-rgb.png", Info{PNG, 25, 18, 3, 8, "RGB", false, true, 1}},
		{"exif3-at-end.png", Info{PNG, 25, 18, 3, 8, "RGB", false, false, 3}},
		{"frame-in-screen.gif", Info{GIF, 20, 15, 1, 8, "palette", false, false, 1}},
		{"24.bmp", Info{BMP, 25, 18, 3, 8, "RGB", false, false, 1}},
		{"8.bmp", Info{BMP, 25, 18, 1, 8, "palette", false, false, 1}},
		{"grey16.tif", Info{TIFF, 25, 18, 1, 16, "grey", false, false, 1}},
		{"alpha.tif", Info{TIFF, 25, 18, 4, 8, "RGB", true, false, 1}},
		{"exif6.tif", Info{TIFF, 25, 18, 3, 8, "RGB", false, false, 6}},
		{"lossy.webp", Info{WebP, 33, 27, 3, 8, "YCbCr", false, false, 1}},
		{"exif6.webp", Info{WebP, 25, 18, 3, 8, "RGB", false, false, 6}},
	}
	for _, test := range tests {
		if got, err := Probe(read(t, "good", test.name)); err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v; want %+v", test.name, got, err, test.want)
		}
	}
	// Probe reads the header of an image that is too large to decode.
	for _, name := range []string{"40000x40000.jpg", "40000x40000.png", "40000x40000.gif", "40000x40000.bmp"} {
		if got, err := Probe(read(t, "bad", name)); err != nil || got.Width != 40000 || got.Height != 40000 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"zero-bytes.jpg", "text.jpg", "two-bytes.jpg", "header-only.gif", "12-bit.jpg"} {
		if got, err := Probe(read(t, "bad", name)); err == nil && name != "12-bit.jpg" || got != (Info{}) && err != nil {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestSniff(t *testing.T) {
	for _, name := range names(t, "good") {
		want := map[string]Format{".jpg": JPEG, ".png": PNG, ".gif": GIF, ".bmp": BMP, ".tif": TIFF, ".webp": WebP}[filepath.Ext(name)]
		if got := Sniff(read(t, "good", name)); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	for _, data := range []string{"", "B", "BM", "BMW is a car, not a bitmap", "RIFF\x00\x00\x00\x00WAVEfmt ", "GIF", "II*", "\x89PN", "\xff"} {
		if got := Sniff([]byte(data)); got != 0 {
			t.Errorf("%q: got %v", data, got)
		}
	}
}

func TestCheckSize(t *testing.T) {
	if err := checkSize(GIF, 10_000, 10_000, defaultMaxPixels); err != nil {
		t.Errorf("100 Mpx: %v", err)
	}
	if err := checkSize(GIF, 10_000, 10_001, defaultMaxPixels); !errors.Is(err, ErrTooLarge) {
		t.Errorf("100.01 Mpx: %v", err)
	}
}

// A panic of a decoder gives ErrCorrupt and does not end the program.
func TestCatch(t *testing.T) {
	err := func() (err error) {
		defer catch(TIFF, &err)
		var img *image.Gray
		_ = img.Pix
		return nil
	}()
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "TIFF") {
		t.Errorf("got %v", err)
	}
}
