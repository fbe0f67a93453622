package imageloader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

func TestScan(t *testing.T) {
	members := []member{
		{name: "./"},
		{name: "train/cat/1.jpg", body: photo(40, 30)},
		{name: "train/cat/2.jpg", body: photo(40, 30)[:300]},
		{name: "train/dog/3.png", body: solid(3, 5, 7)},
		{name: "train/dog/._3.png", body: []byte("x")},
		{name: "train/dog/3.txt", body: []byte("x")},
		{name: "test/cat/4.jpg", body: solid(4, 100, 80)}, // a PNG by its content
		{name: "test/eel/5.png"},
		{name: "test/../6.png", body: solid(6, 3, 3)},
		{name: "7.png", body: solid(7, 3, 3)},
		{name: "test/cat/8.png", body: claimed(40000, 40000)},
	}
	packed := tarOf(members[1:])
	for path, format := range map[string]string{
		write(t, "a.tar", packed): "tar", write(t, "a.tgz", gzipOf(packed)): "gzip-compressed tar",
	} {
		checkLeaks(t)
		r := must.Get(Scan(context.Background(), path, 0))(t)
		if r.Path != path || r.Format != format || r.Members != 10 || r.Images != 3 {
			t.Errorf("got %+v, want 3 images of 10 members of a %s", r, format)
		}
		for _, test := range []struct{ what, got, want string }{
			{"classes", fmt.Sprint(r.Classes), "[{cat 2} {dog 1} {eel 0}]"},
			{"splits", fmt.Sprint(r.Splits), "[{test 1} {train 2}]"},
			{"formats", fmt.Sprint(r.Formats), "[{JPEG 1} {PNG 2}]"},
			{"ignored", fmt.Sprint(r.Ignored), "[{AppleDouble file (._) 1} {not an image 1}]"},
			{"sizes", fmt.Sprint(r.Smallest, r.Median, r.Largest), "{5 7} {40 30} {100 80}"},
		} {
			if test.got != test.want {
				t.Errorf("%s: got %s, want %s", test.what, test.got, test.want)
			}
		}
		sum := int64(0)
		for _, i := range []int{1, 3, 6} {
			sum += int64(len(members[i].body))
		}
		if r.Bytes != sum || r.FileSize.Min != int64(len(members[3].body)) || r.FileSize.Max > sum {
			t.Errorf("got %d bytes, file sizes %+v, want %d", r.Bytes, r.FileSize, sum)
		}
		var bad []string
		for _, b := range r.Bad {
			bad = append(bad, fmt.Sprintf("%d %s: %s", b.Member, b.Name, b.Reason))
		}
		want := []string{
			"2 train/cat/2.jpg: truncated JPEG", "7 test/eel/5.png: zero bytes", "8 test/../6.png: unsafe name",
			"9 7.png: no class", "10 test/cat/8.png: ",
		}
		for i := range max(len(bad), len(want)) {
			if i >= len(bad) || i >= len(want) || !strings.HasPrefix(bad[i], want[i]) {
				t.Fatalf("bad members: got %q, want %q", bad, want)
			}
		}
	}
}

// Scan judges images as a loader does: an image is usable if and only if a loader reads it.
func TestScan_AsLoader(t *testing.T) {
	for _, s := range sources(t, damaged(numbered(600), 3, 299, 300, 599)) { // the images are more than one part of a scan
		checkLeaks(t)
		r := must.Get(Scan(context.Background(), s.path, 0))(t)
		o := options()
		o.Reading.MaxSkipRate = 0.01
		s.change(&o)
		l := open(t, s.path, o)
		read(t, l)
		stats := l.Stats()
		if r.Images != 596 || stats.Samples != 596 || len(r.Bad) != 4 {
			t.Errorf("%s: got %d images and %d bad, and %d from a loader; want 596 and 4", s.name, r.Images, len(r.Bad), stats.Samples)
		}
	}
}

// The report of an archive that is cut off has the images before the cut.
func TestScan_DamagedArchive(t *testing.T) {
	checkLeaks(t)
	data := tarOf(numbered(40))
	for name, data := range map[string][]byte{"a.tar": data[:len(data)/2], "a.tgz": gzipOf(data[:len(data)/2])} {
		path := write(t, name, data)
		r, err := Scan(context.Background(), path, 0)
		wantError(t, err, ErrArchive, path, "cut short")
		if r.Images < 10 || r.Images > 30 {
			t.Errorf("%s: got %d images, want about 20", name, r.Images)
		}
	}
}

func TestScan_ContextEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	for _, s := range sources(t, numbered(600)) {
		checkLeaks(t)
		if _, err := Scan(ctx, s.path, 0); err != cause {
			t.Errorf("%s: got error %v, want %v", s.name, err, cause)
		}
	}
}

func TestScan_First(t *testing.T) {
	for _, source := range sources(t, numbered(40)) {
		r, err := Scan(context.Background(), source.path, 7)
		if err != nil || r.Images != 7 || r.Median.Width < 4 || r.Median.Width > 8 {
			t.Errorf("%s: %+v, %v", source.path, r, err)
		}
	}
}
