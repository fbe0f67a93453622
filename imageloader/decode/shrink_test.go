package decode

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// waves returns a JPEG file of smooth colours, as in a photograph.
func waves(t testing.TB, width, height int) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			wave := func(v float64) uint8 { return uint8(128 + 100*math.Sin(v)) }
			img.Set(x, y, color.RGBA{wave(float64(x) / 9), wave(float64(y) / 9), wave(float64(x+2*y) / 19), 255})
		}
	}
	var out bytes.Buffer
	must.Do(t, jpeg.Encode(&out, img, &jpeg.Options{Quality: 90}))
	return out.Bytes()
}

func TestOptions_NoShrink(t *testing.T) {
	data := waves(t, 320, 320)
	for _, test := range []struct {
		size    int
		shrinks bool
	}{{80, true}, {20, true}, {81, false}, {320, false}} {
		transform := Resize{Height: test.size, Width: test.size}
		got, _ := decodeOne(t, data, Options{Transform: transform})
		want, _ := decodeOne(t, data, Options{Transform: transform, NoShrink: true})
		if differs := !bytes.Equal(got, want); differs != test.shrinks {
			t.Errorf("320 to %d: NoShrink changes pixels: %v, want %v", test.size, differs, test.shrinks)
		}
		if d := furthest(got, want); d > 8 {
			t.Errorf("320 to %d: shrunk pixels differ by %d", test.size, d)
		}
	}
}
