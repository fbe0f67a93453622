package imageloader

import (
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/arena"
)

// The used memory stays below the bound that Memory gives before the first batch, for every way
// to read the archive. The images need almost no memory for decoding. Package decode has a test
// for that memory.
func TestLoader_Memory(t *testing.T) {
	members := heavy(60, 1<<20)
	packed := tarOf(members)
	tgz := write(t, "a.tgz", stored(packed))
	for _, test := range []struct {
		name, path string
		buffer     int
		classes    []string
	}{
		{"tar", write(t, "a.tar", packed), 8 << 20, nil},
		{"tgz kept", tgz, 0, nil},
		{"tgz in blocks", tgz, 8 << 20, nil},
		{"tgz streamed", tgz, 8 << 20, []string{"a", "b", "c"}},
		{"less than an image", tgz, 1 << 10, nil},
	} {
		o := Options{
			BatchSize: 4, Train: true, Crop: Crop{Transform: decode.Resize{Height: 64, Width: 64}}, Reading: Reading{ShuffleBuffer: test.buffer}, Labels: Labels{Classes: test.classes}, Index: Index{NoFile: true}, Workers: 2,
		}
		before := arena.Total()
		l := open(t, test.path, o)
		said := l.Memory()
		most := peakFrom(before, func() {
			for range 2 {
				for range batchesOf(t, l) {
				}
			}
		})
		total := func(m Memory) int { return m.Batches + m.Compressed + m.Inflate + m.Decode }
		if now := l.Memory(); total(now) > total(said) {
			t.Errorf("%s: then %+v, before %+v", test.name, now, said)
		}
		l.Close()
		t.Logf("%s: %d MiB, said %+v", test.name, most>>20, said)
		const rest = 4 << 20 // bytes of Go's heap for everything else
		if bound := said.Compressed + said.Inflate + rest; most > bound {
			t.Errorf("%s: %d MiB, and Memory said %d: %+v", test.name, most>>20, bound>>20, said)
		}
		if height := 4 * 64 * 64 * 3 * 4; said.Batches < height || said.Batches > 2*height {
			t.Errorf("%s: four batches of 4 images of 64 x 64 take %d bytes", test.name, said.Batches)
		}
	}
}
