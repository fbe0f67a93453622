package decode

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

var update = flag.Bool("update", false, "write testdata/kinds.txt anew, with the Python of CGOTORCH_PEER")

// A kind is an image file that is made here. A new kind is one line of tiffKinds, bmpKinds or
// gifKinds.
type kind struct {
	name string
	data []byte
	// refused is the begin of the error, where the kind is not decoded. like is the name of a kind
	// with the same pixels, where Pillow does not read this kind, or reads it wrong. Without both,
	// the pixels have the checksum of Pillow's pixels in testdata/kinds.txt.
	refused, like string
}

// value returns sample c of a pixel of the picture that all kinds show.
func value(x, y, c int) int { return (x*9 + y*23 + c*71 + x*y) & 255 }

// gifKinds makes GIF files of 12 x 9 pixels, with a frame of 7 x 5.
func gifKinds(t testing.TB) (out []kind) {
	colours := func(n, seed int) (p color.Palette) {
		for i := range n {
			p = append(p, color.RGBA{byte(i*29 + seed), byte(i*71 + 2*seed), byte(240 - i*13 - seed), 255})
		}
		return p
	}
	add := func(name string, global, local int, transparent int, at image.Rectangle, patch func(data []byte) []byte) {
		p := colours(max(global, local), 7)
		frame := image.NewPaletted(at, p)
		for i := range frame.Pix {
			frame.Pix[i] = byte(value(i%7, i/7, 0) % len(p))
		}
		file := &gif.GIF{Image: []*image.Paletted{frame}, Delay: []int{0}, Config: image.Config{Width: 12, Height: 9}}
		if global > 0 {
			file.Config.ColorModel = colours(global, 50)
			if local == 0 {
				file.Config.ColorModel = p
			}
		}
		if transparent >= 0 {
			p[transparent] = color.RGBA{}
		}
		var data bytes.Buffer
		must.Do(t, gif.EncodeAll(&data, file))
		b := data.Bytes()
		if patch != nil {
			b = patch(b)
		}
		out = append(out, kind{name: "gif " + name, data: b})
	}
	inside, whole := image.Rect(3, 2, 10, 7), image.Rect(0, 0, 12, 9)
	for _, transparent := range []int{-1, 0, 5} {
		// Go writes a transparent entry as black. The palette gets its colour back.
		visible := func(b []byte) []byte {
			if transparent < 0 {
				return b
			}
			i := bytes.Index(b, []byte{0x21, 0xf9, 4}) + 8 // the frame, whose palette is behind 10 bytes
			at := 13
			if b[i+9]&0x80 != 0 {
				at = i + 10
			}
			copy(b[at+3*transparent:], []byte{200, 100, 50})
			return b
		}
		add(fmt.Sprint("palette, transparent ", transparent), 16, 0, transparent, whole, visible)
		add(fmt.Sprint("palette, frame inside, transparent ", transparent), 16, 0, transparent, inside, visible)
		add(fmt.Sprint("palette of the frame, transparent ", transparent), 0, 8, transparent, whole, visible)
		add(fmt.Sprint("both palettes, frame inside, transparent ", transparent), 4, 16, transparent, inside, visible)
	}
	add("frame above the screen", 16, 0, -1, inside, func(b []byte) []byte {
		b[6], b[8] = 9, 6
		return b
	})
	return out
}

// pixelsOfKind returns the checksum of an image's pixels, at their own size.
func pixelsOfKind(t *testing.T, data []byte) (uint32, error) {
	if err := Check(data); err != nil {
		return 0, err
	}
	info, err := Probe(data)
	if err != nil {
		return 0, err
	}
	size := Resize{Height: info.Height, Width: info.Width}
	if info.Orientation > 4 {
		size = Resize{Height: info.Width, Width: info.Height}
	}
	pix, result := decodeOne(t, data, Options{Transform: size, Workers: 1})
	return crc32.ChecksumIEEE(append(fmt.Appendf(nil, "%dx%d ", size.Width, size.Height), pix...)), result.Err
}

// Each kind of TIFF, BMP and GIF has the pixels of Pillow, or is refused by its name.
func TestPool_Decode_Kinds(t *testing.T) {
	all := slices.Concat(tiffKinds(t), bmpKinds(), gifKinds(t))
	const stored = "testdata/kinds.txt"
	if python := os.Getenv("CGOTORCH_PEER"); python != "" {
		dir := t.TempDir()
		for i, k := range all {
			must.Do(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d %s", i, strings.ReplaceAll(k.name, "/", " "))), k.data, 0o600))
		}
		got := must.Get(exec.Command(python, "testdata/kinds.py", dir).Output())(t)
		want, _ := os.ReadFile(stored)
		if *update {
			must.Do(t, os.WriteFile(stored, got, 0o644))
		} else if !bytes.Equal(got, want) {
			t.Errorf("Pillow's pixels are not those of %s: run this test with -update", stored)
		}
	}
	text := must.Get(os.ReadFile(stored))(t)
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = sum
	}
	tested := map[string]bool{}
	for _, k := range all {
		if tested[k.name] {
			t.Errorf("%s is there twice", k.name)
		}
		tested[k.name] = true
		sum, err := pixelsOfKind(t, k.data)
		if k.refused != "" {
			if !errors.Is(err, ErrUnsupported) || !strings.HasPrefix(err.Error(), k.refused) {
				t.Errorf("%s: got %v, want %q", k.name, err, k.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		if got := fmt.Sprintf("%08x", sum); got != want[cmp.Or(k.like, k.name)] {
			t.Errorf("%s: the checksum is %s, want %q", k.name, got, want[cmp.Or(k.like, k.name)])
		}
	}
}
