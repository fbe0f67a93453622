package imageloader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

func TestEpoch_BatchSizes(t *testing.T) {
	for _, test := range []struct {
		images, batch int
		dropLast      bool
		want          string // number of images in each batch
	}{
		{1, 1, false, "[1]"},
		{1, 4, false, "[1]"},
		{4, 4, false, "[4]"},
		{4, 4, true, "[4]"},
		{5, 4, false, "[4 1]"},
		{5, 4, true, "[4]"},
		{7, 4, true, "[4]"},
		{8, 4, false, "[4 4]"},
		{12, 1, false, "[1 1 1 1 1 1 1 1 1 1 1 1]"},
	} {
		for _, s := range sources(t, numbered(test.images)) {
			o := options()
			o.BatchSize, o.DropLast = test.batch, test.dropLast
			s.change(&o)
			l := open(t, s.path, o)
			for range 2 {
				var got []int
				next := 0
				for batch := range batchesOf(t, l) {
					if len(batch.Images) != batch.N*4 || len(batch.Labels) != batch.N || len(batch.Flip) != batch.N || len(batch.Names) != batch.N {
						t.Errorf("%s: a batch of %d has %d bytes, %d labels, %d flips, %d names", s.name, batch.N,
							len(batch.Images), len(batch.Labels), len(batch.Flip), len(batch.Names))
					}
					for i := range batch.N {
						if pixel := int(batch.Images[4*i]); pixel != next || batch.Labels[i] != int64(label(next, test.images)) || batch.Flip[i] {
							t.Errorf("%s: image %d: got pixel %d, label %d, flip %v", s.name, next, pixel, batch.Labels[i], batch.Flip[i])
						}
						next++
					}
					if batch.Index != len(got) {
						t.Errorf("%s: got index %d, want %d", s.name, batch.Index, len(got))
					}
					got = append(got, batch.N)
				}
				if fmt.Sprint(got) != test.want {
					t.Errorf("%s: %d images in batches of %d, drop %v: got %v, want %v", s.name, test.images, test.batch, test.dropLast, got, test.want)
				}
				if l.Batches() != len(got) || l.Len() != test.images {
					t.Errorf("%s: got Batches %d, Len %d; want %d, %d", s.name, l.Batches(), l.Len(), len(got), test.images)
				}
			}
		}
	}
}

func TestEpoch_FlipAndColour(t *testing.T) {
	l := open(t, sources(t, numbered(40))[2].path, Options{
		BatchSize: 40, Crop: Crop{Transform: decode.Resize{Height: 2, Width: 3}, HorizontalFlip: 0.5},
	})
	for batch := range batchesOf(t, l) {
		if batch.Height != 2 || batch.Width != 3 || batch.Channels != 3 || len(batch.Images) != 40*18 {
			t.Errorf("got %d x %d x %d, %d bytes", batch.Height, batch.Width, batch.Channels, len(batch.Images))
		}
		flips := 0
		for _, flip := range batch.Flip {
			if flip {
				flips++
			}
		}
		if flips < 5 || flips > 35 {
			t.Errorf("%d of 40 images are to be flipped, want about 20", flips)
		}
		if uintptr(unsafe.Pointer(&batch.Labels[0]))%64 != 0 || uintptr(unsafe.Pointer(&batch.Images[0]))%4096 != 0 {
			t.Errorf("labels at %p, images at %p: not aligned", &batch.Labels[0], &batch.Images[0])
		}
	}
}

func TestEpoch_Skip(t *testing.T) {
	members := damaged(numbered(20), 0, 7, 8, 19)
	members[3].name = "train/../003.png"
	members[13].name = "/train/b/013.png"
	packed := tarOf(members)
	want := []int{1, 2, 4, 5, 6, 9, 10, 11, 12, 14, 15, 16, 17, 18}
	for _, s := range []source{
		{"tar", write(t, "a.tar", packed), "even", func(*Options) {}},
		{"tgz", write(t, "a.tgz", gzipOf(packed)), "even", func(*Options) {}},
		{"blocks", write(t, "a.tgz", gzipOf(packed)), "blocks", func(o *Options) { o.Reading.ShuffleBuffer = 500 }},
		{"streamed, classes given", write(t, "a.tgz", gzipOf(packed)), "streamed first", func(o *Options) {
			o.Reading.ShuffleBuffer, o.Labels.Classes = 500, []string{"a", "b", "c"}
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			o := options()
			o.Reading.MaxSkipRate = 0.3
			s.change(&o)
			l := open(t, s.path, o)
			for epoch := range 2 {
				if got := levels(t, l); !slices.Equal(got, want) {
					t.Errorf("got images %v, want %v", got, want)
				}
				stats := l.Stats()
				if got, want := fmt.Sprint(stats.Skipped), fmt.Sprintf("map[not an image:%d unsafe name:%d]", 4+4*epoch, 2+2*epoch); got != want {
					t.Errorf("got skipped %v, want %v", got, want)
				}
				if len(stats.Examples) != maxExamples || !strings.Contains(stats.Examples[0], "member 1 (train/a/000.png): ") {
					t.Errorf("got examples %q", stats.Examples)
				}
				if got := stats.Samples; got != 14*(epoch+1) {
					t.Errorf("got %d samples, want %d", got, 14*(epoch+1))
				}
			}

			o.Reading.MaxSkipRate = 0.29 // allows 5 of 20 images, not 6
			l = open(t, s.path, o)
			_, err := tryRead(l)
			wantError(t, err, ErrBadMember, "6 of 20 images are unusable, and Options.Reading.MaxSkipRate is 0.29: member 1 (train/a/000.png): ")

			o.Reading.MaxSkipRate = 0
			checkLeaks(t)
			if l, err = Open(s.path, o); err == nil {
				_, err = tryRead(l)
				l.Close()
			}
			wantError(t, err, ErrBadMember, "; remove it, or let some be skipped with Options.Reading.MaxSkipRate")
		})
	}
}

// If names and sizes alone make too many images unusable, Open fails.
func TestOpen_TooManyUnusable(t *testing.T) {
	checkLeaks(t)
	members := numbered(10)
	for i := range 3 {
		members[i].name = "/" + members[i].name
	}
	for path, data := range map[string][]byte{"a.tar": tarOf(members), "a.tgz": gzipOf(tarOf(members))} {
		o := options()
		o.Reading.MaxSkipRate = 0.2
		path = write(t, path, data)
		_, err := Open(path, o)
		wantError(t, err, ErrBadMember, path, "3 of 10 images are unusable, and Options.Reading.MaxSkipRate is 0.2: member 1 (/train/a/000.png): unsafe name")
		o.Reading.MaxSkipRate = 0
		_, err = Open(path, o)
		wantError(t, err, ErrBadMember, path+": member 1 (/train/a/000.png): unsafe name")
	}
}

// The epoch ends as soon as too many images are unusable, and not only after its last image.
func TestEpoch_TooManyEarly(t *testing.T) {
	members := damaged(numbered(40), 0, 1, 2, 3, 4, 5, 6, 7, 8)
	for _, s := range sources(t, members)[:4] { // leaves out the last two, whose number of images is not known
		o := options()
		o.Reading.MaxSkipRate = 0.2
		s.change(&o)
		lines, err := tryRead(open(t, s.path, o))
		wantError(t, err, ErrBadMember, "9 of 40 images are unusable")
		if len(lines) > 0 && s.name != "directory" { // the test does not check this for a directory
			t.Errorf("%s: got %d batches before the error", s.name, len(lines))
		}
	}
}

// An epoch that goes on from a state says how many images were unusable before.
func TestEpoch_TooMany_Restored(t *testing.T) {
	for want, bad := range map[string][]int{"MaxSkipRate is 0.1 (3 of them were found before": {0, 1, 2}, "names some): member 10 (": {0, 1, 2, 9}} {
		path := write(t, "a.tar", tarOf(damaged(numbered(20), bad...)))
		o := options()
		o.Reading.MaxSkipRate = 0.5
		var state State
		for batch, err := range open(t, path, o).Epoch(context.Background()) {
			must.Do(t, err)
			state = batch.State
			batch.Release()
			break
		}
		_, err := tryRestore(t, path, func(o *Options) { o.Reading.MaxSkipRate = 0.1 }, state)
		wantError(t, err, ErrBadMember, fmt.Sprintf("%d of 20 images are unusable, ", len(bad)), want)
	}
}

func TestEpoch_AllUnusable(t *testing.T) {
	for _, s := range sources(t, damaged(numbered(4), 0, 1, 2, 3)) {
		o := options()
		o.Reading.MaxSkipRate = 1
		s.change(&o)
		l := open(t, s.path, o)
		_, err := tryRead(l)
		wantError(t, err, ErrBadMember, "4 of 4 images are unusable: member ")
	}
}

// Open does not read the part of the archive that is damaged. The epoch gives the batches before
// this part, and then an error.
func TestEpoch_ArchiveDamagedLater(t *testing.T) {
	data := gzipOf(tarOf(numbered(40)))
	o := options()
	o.Reading.ShuffleBuffer, o.Labels.Classes = 500, []string{"a", "b", "c"}
	l := open(t, write(t, "a.tgz", data[:len(data)-20]), o)
	lines, err := tryRead(l)
	wantError(t, err, ErrArchive, "cut short")
	if len(lines) == 0 {
		t.Errorf("got no batches before the error")
	}
	if _, err := tryRead(l); !errors.Is(err, ErrArchive) { // the next epoch fails too
		t.Errorf("next epoch: got error %v", err)
	}
}

// Most images are unusable. A batch is then completed from several parts, and every buffer comes
// back.
func TestEpoch_ManySkipped(t *testing.T) {
	const n = 60
	var most []int
	for i := range n {
		if i%10 != 9 || i == 59 {
			most = append(most, i)
		}
	}
	for _, test := range []struct {
		images int
		bad    []int
		want   string
	}{
		{n, most, "[9 19 29 39 49]"},
		{6, []int{3, 4, 5}, "[0 1 2]"}, // no image of the last part is usable
	} {
		for _, s := range sources(t, damaged(numbered(test.images), test.bad...)) {
			o := options()
			o.BatchSize, o.Reading.MaxSkipRate, o.Workers = 3, 1, 2
			s.change(&o)
			l := open(t, s.path, o)
			for range 20 {
				if got := fmt.Sprint(levels(t, l)); got != test.want {
					t.Fatalf("%s: images %s, want %s", s.name, got, test.want)
				}
				if l.ring.Taken() != 0 {
					t.Fatalf("%s: %d buffers are not free", s.name, l.ring.Taken())
				}
			}
			l.Close()
		}
	}
}

// A batch without an image, which nobody gets, is not taken for one that was dropped.
func TestEpoch_EmptyBatch_NotLost(t *testing.T) {
	o := options()
	o.BatchSize, o.Reading.MaxSkipRate, o.Buffers = 8, 0.5, 1
	l := open(t, write(t, "a.tar", tarOf(damaged(numbered(9), 8))), o)
	for range 3 {
		for range batchesOf(t, l) {
			runtime.GC()
			time.Sleep(600 * time.Millisecond) // the loader looks for lost buffers while it waits for one
		}
		runtime.GC()
	}
}

// The loop is left while images are being decoded. Afterwards the buffers of these images are
// free, and nothing writes to the buffers.
func TestEpoch_LeftEarly_WaitsForDecoding(t *testing.T) {
	members := numbered(12)
	for i := range members {
		members[i].body = solid(7, 1500, 1500)
	}
	o := options()
	o.BatchSize, o.Workers = 3, 1
	l := open(t, write(t, "a.tar", tarOf(members)), o)
	for range 5 {
		for batch, err := range l.Epoch(context.Background()) {
			must.Do(t, err)
			batch.Release()
			break
		}
		b := must.Get(take(l.ring, context.Background()))(t)
		others := []*buffer{b}
		for len(l.ring.Free) > 0 {
			b, _ := take(l.ring, context.Background())
			others = append(others, b)
		}
		for _, b := range others {
			clear(b.Parts.images)
		}
		l.pool.Decode(nil, nil, nil)
		time.Sleep(30 * time.Millisecond) // a thread that still decodes would write now
		for _, b := range others {
			if i := bytes.IndexFunc(b.Parts.images, func(r rune) bool { return r != 0 }); i >= 0 {
				t.Fatal("a free buffer was written to")
			}
			l.ring.Give(b)
		}
	}
}

// A batch size above the number of images gives one batch of all images. With DropLast it is an
// error, and not an empty epoch.
func TestEpoch_BatchSizeAboveImages(t *testing.T) {
	path := write(t, "a.tar", tarOf(numbered(20)))
	o := options()
	o.BatchSize = math.MaxInt
	l := open(t, path, o)
	if got := read(t, l); len(got) != 1 || l.Batches() != 1 {
		t.Errorf("%d batches, Batches %d", len(got), l.Batches())
	}
	o.BatchSize, o.DropLast = 21, true
	_, err := Open(path, o)
	wantError(t, err, ErrInvalidOptions, "Options.DropLast leaves nothing of "+path+": BatchSize is 21, and an epoch has 20 images")
}
