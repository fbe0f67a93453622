package imageloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// hostile has an archive that is damaged or made to do harm. It also has the result that a loader
// must give for this archive.
type hostile struct {
	name      string
	data      []byte
	directory bool // the archive is a directory of nine images, and data is not used

	before, after func(t *testing.T, path string) // called with the path of the archive before and after Open

	// `fails` is a part of the error's text, for every MaxSkipRate. If `fails` is "", and `images`
	// and `skips` are 0, any outcome without harm is right.
	fails  string
	images int    // usable images in an epoch. -1 means nine, or eight with one skipped image
	skips  int    // unusable images. With a MaxSkipRate of 0 they are an error
	says   string // part of the text of the error for unusable images

	failures *int // number of failures. Only the first three are printed

	changes bool // the archive changes, but a loader that holds the images does not see it
	loose   bool // an error is a right outcome too
	few     bool // the archive is read in fewer ways than the other archives
	slow    bool
	memory  int // most bytes of heap. 0 means 100 MiB, or 300 MiB for a slow case
}

// The text of each error must tell the user what to do. `advice` matches every such text.
var advice = regexp.MustCompile(`again|remove it|decompress it|unpack|names must|join them|git lfs pull|can be read|raise MaxPixels|Options\.|rename|delete that`)

func (c hostile) fail(t *testing.T, format string, args ...any) {
	t.Helper()
	if *c.failures++; *c.failures <= 3 {
		t.Errorf(format, args...)
	}
}

func (c hostile) sub(t *testing.T, name string) { t.Run(name, c.run) }

// run reads the archive in every way, two epochs each time.
func (c hostile) run(t *testing.T) {
	if c.slow && testing.Short() {
		t.Skip("takes some seconds")
	}
	checkLeaks(t)
	c.failures = new(int)
	began := time.Now()
	runs := 0
	memory := peak(func() {
		for _, train := range []bool{false, true} {
			for _, given := range []bool{false, true} {
				for _, buffer := range []int{0, 700} {
					for _, rate := range []float64{0, 0.9} {
						if c.few && (given != train || train != (buffer > 0)) || c.slow && (train != given || given != (buffer > 0) || given != (rate > 0)) {
							continue
						}
						o := options()
						o.Train, o.Reading.ShuffleBuffer, o.Reading.MaxSkipRate, o.Workers, o.Index.Dir = train, buffer, rate, 2, t.TempDir()
						if given {
							o.Labels.Classes = []string{"a", "b", "c", "caf\xe9"}
						}
						way := fmt.Sprintf("train %v, classes %v, buffer %d, rate %v", train, given, buffer, rate)
						within(t, time.Minute, func() { c.read(t, way, o) })
						runs++
					}
				}
			}
		}
	})
	c.scan(t)
	took := time.Since(began)
	most := cmp.Or(c.memory, 100<<20)
	if c.slow {
		most = max(most, 300<<20)
	}
	if memory > most {
		t.Errorf("%d MiB of heap", memory>>20)
	}
	if took > 2*time.Second || memory > 50<<20 {
		t.Logf("%v for %d ways, %d MiB", took, runs, memory>>20)
	}
}

// read reads the archive in one way.
func (c hostile) read(t *testing.T, way string, o Options) {
	path := ""
	if c.directory {
		path = writeDirectory(t, numbered(9))
	} else {
		path = write(t, "a.tgz", c.data)
	}
	if c.before != nil {
		c.before(t, path)
	}
	outcome := func(err error, images, skipped int) {
		if err != nil {
			c.judge(t, way, path, o, err)
			return
		}
		held := !c.directory && o.Reading.ShuffleBuffer == 0 && len(c.data) > 0 && c.data[0] == 0x1f
		switch {
		case c.changes && held:
		case c.fails != "":
			c.fail(t, "%s: no error, %d images", way, images)
		case c.images < 0 && images+skipped == 9 && skipped <= 1:
		case c.loose, c.fails == "" && c.images == 0 && c.skips == 0:
		case images != c.images || skipped != c.skips:
			c.fail(t, "%s: %d images and %d skipped, want %d and %d", way, images, skipped, c.images, c.skips)
		case c.skips > 0 && o.Reading.MaxSkipRate == 0:
			c.fail(t, "%s: no error", way)
		}
	}
	l, err := Open(path, o)
	if err != nil {
		outcome(err, 0, 0)
		return
	}
	defer closeWhole(t, l)
	if c.after != nil {
		if err := l.Restore(State{}); err != nil { // drops images that were read before the change
			t.Errorf("%s: Restore: %v", way, err)
		}
		c.after(t, path)
	}
	skipped := 0
	for range 2 {
		images := 0
		for batch, err := range l.Epoch(context.Background()) {
			if err != nil {
				outcome(err, 0, 0)
				return
			}
			images += batch.N
			batch.Release()
		}
		total := 0
		for n := range maps.Values(l.Stats().Skipped) {
			total += n
		}
		outcome(nil, images, total-skipped)
		skipped = total
	}
}

// scan checks the report of Scan for the archive.
func (c hostile) scan(t *testing.T) {
	if c.directory || c.before != nil || c.after != nil {
		return
	}
	path := write(t, "a.tgz", c.data)
	within(t, time.Minute, func() {
		report, err := Scan(context.Background(), path, 0)
		switch {
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)), c.fails == "" && err != nil && !errors.As(err, new(*Error)):
			c.fail(t, "Scan: got %v, want %q", err, c.fails)
		case c.fails == "" && !c.loose && c.images > 0 && (err != nil || report.Images != c.images || len(report.Bad) != c.skips):
			c.fail(t, "Scan: got %d images and %d bad, %v; want %d and %d", report.Images, len(report.Bad), err, c.images, c.skips)
		}
	})
}

// judge checks that an error is right and that its text says enough.
func (c hostile) judge(t *testing.T, way, path string, o Options, err error) {
	text := err.Error()
	full := (*Error)(nil)
	switch {
	case !errors.As(err, &full):
		c.fail(t, "%s: %T %v", way, err, err)
		return
	case !strings.Contains(text, path) || strings.Contains(text, "\n"):
		c.fail(t, "%s: not a line that names the archive: %q", way, text)
	case len(text) > 8000:
		c.fail(t, "%s: a text of %d bytes", way, len(text))
	case !advice.MatchString(text):
		c.fail(t, "%s: says nothing of what to do: %s", way, text)
	case errors.Is(err, decode.ErrInternal), errors.Is(err, decode.ErrOutOfMemory):
		c.fail(t, "%s: %v", way, err)
	}
	switch {
	case c.fails != "":
		if errors.Is(err, ErrBadMember) || !strings.Contains(text, c.fails) {
			c.fail(t, "%s: got %q, want %q in it", way, text, c.fails)
		}
	case c.loose, c.fails == "" && c.images == 0 && c.skips == 0:
	case c.images < 0 || c.skips > 0:
		if o.Reading.MaxSkipRate > 0 {
			c.fail(t, "%s: got %q, though it may be skipped", way, text)
		} else if !errors.Is(err, ErrBadMember) || full.Member == 0 || !strings.Contains(text, "MaxSkipRate") || !strings.Contains(text, c.says) {
			c.fail(t, "%s: got %q, want an unusable image, named, and %q", way, text, c.says)
		}
	default:
		c.fail(t, "%s: %v", way, err)
	}
}
