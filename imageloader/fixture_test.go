package imageloader

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
)

// member is a member of a test archive.
type member struct {
	name string
	body []byte
	kind byte // type in the tar header. 0 means a regular file
	link string
}

// solid returns a PNG of one grey level. The level shows which image a batch holds.
func solid(level, width, height int) []byte {
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = uint8(level)
	}
	var out bytes.Buffer
	if err := png.Encode(&out, img); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// photo returns a JPEG of many colours.
func photo(width, height int) []byte {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			img.Set(x, y, color.RGBA{uint8(7 * x), uint8(5 * y), uint8(x * y), 255})
		}
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, img, nil); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// claimed returns a PNG whose header claims a size that its data do not have.
func claimed(width, height uint32) []byte {
	data := solid(0, 1, 1)
	binary.BigEndian.PutUint32(data[16:], width)
	binary.BigEndian.PutUint32(data[20:], height)
	binary.BigEndian.PutUint32(data[29:], crc32.ChecksumIEEE(data[12:29]))
	return data
}

// numbered returns n images. The grey level of each image is its number. The first third of the
// images is in class a, the next in class b, the last in class c. The sizes of the images differ.
func numbered(n int) []member {
	members := make([]member, n)
	for i := range members {
		members[i] = member{name: fmt.Sprintf("train/%c/%03d.png", 'a'+label(i, n), i), body: solid(i, 4+i%5, 4+i%3)}
	}
	return members
}

// label returns the label of image i of numbered(n).
func label(i, n int) int { return 3 * i / n }

func tarOf(members []member) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: m.kind, Linkname: m.link, Mode: 0o644, Size: int64(len(m.body))}
		if m.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		w.Write(m.body)
	}
	w.Close()
	return out.Bytes()
}

func gzipOf(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(data)
	w.Close()
	return out.Bytes()
}

// write writes a file for the test and returns its path.
func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, data, 0o644))
	return path
}

func writeDirectory(t testing.TB, members []member) string {
	t.Helper()
	root := t.TempDir()
	for _, m := range members {
		path := filepath.Join(root, m.name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, m.body, 0o644))
	}
	return root
}

// source is one way to store the same images.
type source struct {
	name   string
	path   string
	order  string // kind of order. Sources of one kind give images in the same order
	change func(*Options)
}

// sources stores members in every way that a loader reads. The names of members must be in order.
func sources(t testing.TB, members []member) []source {
	t.Helper()
	keep := func(*Options) {}
	packed := tarOf(members)
	tgz := write(t, "a.tgz", gzipOf(packed))
	return []source{
		{"directory", writeDirectory(t, members), "even", keep},
		{"tar", write(t, "a.tar", packed), "even", keep},
		{"tgz", tgz, "even", keep},
		{"tgz in blocks", write(t, "blocks.tgz", gzipOf(packed)), "blocks", func(o *Options) { o.Reading.ShuffleBuffer = 500 }},
		{"tgz streamed, then in blocks", write(t, "streamed.tgz", gzipOf(packed)), "streamed first", func(o *Options) {
			o.Reading.ShuffleBuffer = 500
			o.Labels.Classes = []string{"a", "b", "c"}
		}},
		{"tgz without index file", write(t, "none.tgz", gzipOf(packed)), "streamed first", func(o *Options) {
			o.Reading.ShuffleBuffer = 500
			o.Labels.Classes = []string{"a", "b", "c"}
			o.Index.NoFile = true
		}},
	}
}

// options returns the options of most tests: images of 2 x 2 grey pixels.
func options() Options {
	return Options{BatchSize: 4, Crop: Crop{Transform: decode.Resize{Height: 2, Width: 2}, Channels: 1}}
}

// open opens a loader. When the test ends, the loader is closed and checked for leaks.
func open(t testing.TB, path string, o Options) *Loader {
	t.Helper()
	checkLeaks(t)
	l := must.Get(Open(path, o))(t)
	t.Cleanup(func() { closeWhole(t, l) })
	return l
}

// closeWhole closes a loader. It fails the test if memory of compressed images was not given
// back.
func closeWhole(t testing.TB, l *Loader) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := l.memory.Out(); n != 0 {
		t.Errorf("%d pieces of memory were not given back", n)
	}
}

// recorder is a Pinner that records its calls.
type recorder struct {
	pinned  map[*byte]int // number of bytes of each buffer, by the buffer's first byte
	most    int           // number of buffers that can be pinned, 0 for all
	written [][]byte
}

var errTooMany = errors.New("no more memory can be locked")

func (r *recorder) Pin(memory []byte) error {
	if r.pinned == nil {
		r.pinned = map[*byte]int{}
	}
	if r.most > 0 && len(r.pinned) == r.most {
		return errTooMany
	}
	r.pinned[&memory[0]] = len(memory)
	return nil
}

func (r *recorder) Unpin(memory []byte)      { delete(r.pinned, &memory[0]) }
func (r *recorder) HostWrites(memory []byte) { r.written = append(r.written, memory) }

// checkLeaks fails the test if the test leaves goroutines, memory of batches or open files at its
// end.
func checkLeaks(t testing.TB) {
	t.Helper()
	before := leaktest.Used(t)
	pages := arena.Pages()
	t.Cleanup(func() {
		eventually(t, "goroutines", before.Goroutines, runtime.NumGoroutine)
		eventually(t, "open files", before.Files, func() int { return leaktest.Used(t).Files })
		if got := arena.Pages(); got != pages {
			t.Errorf("memory of batches: got %d bytes, want %d", got, pages)
		}
	})
}

// eventually waits up to five seconds until the function `count` returns `want` or less.
// Otherwise it fails the test.
func eventually(t testing.TB, what string, want int, count func() int) {
	t.Helper()
	got := count()
	for deadline := time.Now().Add(5 * time.Second); got > want && time.Now().Before(deadline); got = count() {
		time.Sleep(time.Millisecond)
	}
	if got > want {
		stacks := make([]byte, 1<<16)
		t.Errorf("%s: got %d, want %d\n%s", what, got, want, stacks[:runtime.Stack(stacks, true)])
	}
}

// batchesOf reads one epoch. It ends the test at an error, and releases each batch after its turn.
func batchesOf(t testing.TB, l *Loader) iter.Seq[*HostBatch] {
	return func(yield func(*HostBatch) bool) {
		t.Helper()
		for batch, err := range l.Epoch(context.Background()) {
			must.Do(t, err)
			more := yield(batch)
			batch.Release()
			if !more {
				return
			}
		}
	}
}

// read reads one epoch and returns a line for each batch. The line has everything that must be
// equal when the batch is read again.
func read(t testing.TB, l *Loader) []string {
	t.Helper()
	return must.Get(tryRead(l))(t)
}

func tryRead(l *Loader) ([]string, error) {
	var lines []string
	for batch, err := range l.Epoch(context.Background()) {
		if err != nil {
			return lines, err
		}
		lines = append(lines, line(batch))
		batch.Release()
	}
	return lines, nil
}

func line(b *HostBatch) string {
	short := make([]string, len(b.Names))
	for i, name := range b.Names {
		short[i] = filepath.Base(name)
	}
	return fmt.Sprintf("epoch %d batch %d of %d: %s labels %v flips %v pixels %x", b.Epoch, b.Index, b.N,
		strings.Join(short, " "), b.Labels, b.Flip, b.Images)
}

// readStates reads epochs. It returns the line and the state of each batch.
func readStates(t testing.TB, l *Loader, epochs int) (lines []string, states []State) {
	t.Helper()
	for range epochs {
		for batch := range batchesOf(t, l) {
			lines, states = append(lines, line(batch)), append(states, batch.State)
		}
	}
	return lines, states
}

// wantRest restores a new loader to a state. The loader must give the lines `want` until the given
// number of epochs is over.
func wantRest(t *testing.T, what, path string, o Options, s State, epochs int, want []string) {
	t.Helper()
	l := open(t, path, o)
	defer l.Close()
	must.Do(t, l.Restore(s))
	var got []string
	for range epochs - s.Epoch {
		got = append(got, read(t, l)...)
	}
	wantLines(t, what, got, want)
}

// levels reads one epoch and returns the first pixel of each image. For images that the function
// `numbered` made, this pixel is the number of the image.
func levels(t testing.TB, l *Loader) []int {
	t.Helper()
	var all []int
	for batch := range batchesOf(t, l) {
		each := batch.Height * batch.Width * batch.Channels
		for i := range batch.N {
			all = append(all, int(batch.Images[i*each]))
		}
	}
	return all
}

// wantLines fails the test at the first line that is different in `got` and `want`.
func wantLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s: line %d of %d, want %d: got\n%q\nwant\n%q", what, i, len(got), len(want), got[min(i, len(got)):min(i+1, len(got))],
				want[min(i, len(want)):min(i+1, len(want))])
		}
	}
}
