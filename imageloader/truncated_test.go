package imageloader

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"testing"
)

// whole returns the number of members that lie completely in `packed`, which is the first part of
// their .tar.
func whole(packed []byte, members []member) (count int) {
	at := 0
	for _, m := range members {
		if at += 512 + len(m.body); at > len(packed) {
			break
		}
		count++
		at = roundUp(at, 512)
	}
	return count
}

// An archive that is cut anywhere gives an error. With AllowTruncated, it gives the images before
// the cut. The images are the same in each epoch and for every way to read the archive.
func TestOptions_AllowTruncated(t *testing.T) {
	members := numbered(24)
	packed := tarOf(members)
	zipped := gzipOf(packed)
	given := func(o *Options) { o.Labels.Classes = []string{"a", "b", "c"} }
	for cut := 1; cut < len(packed)+len(zipped); cut += 397 {
		type way struct {
			name   string
			data   []byte
			buffer int
			change func(*Options)
		}
		var ways []way
		least := 0
		if cut < len(packed) {
			ways = []way{{"tar", packed[:cut], 0, nil}}
			least = whole(packed[:cut], members)
		} else {
			data := zipped[:cut-len(packed)]
			ways = []way{{"tgz", data, 0, nil}, {"tgz in blocks", data, 500, nil}, {"tgz streamed", data, 500, given}}
			if z, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
				content, _ := io.ReadAll(z)
				least = whole(content, members)
			}
		}
		var last []int
		for i, w := range ways {
			what := fmt.Sprintf("%s cut at %d of %d and %d", w.name, cut, len(packed), len(zipped))
			path := write(t, "cut", w.data)
			o := options()
			o.Reading.ShuffleBuffer = w.buffer
			if w.change != nil {
				w.change(&o)
			}
			if l, err := Open(path, o); err == nil {
				if _, err = tryRead(l); err == nil {
					t.Errorf("%s: no error", what)
				}
				l.Close()
			}
			o.Reading.AllowTruncated = true
			l, err := Open(path, o)
			if least == 0 {
				if err == nil {
					_, err = tryRead(l)
					l.Close()
				}
				if err == nil {
					continue // the library's inflater finds more in a .tgz than the standard library
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			for epoch := range 2 {
				got := levels(t, l)
				if want := last; i > 0 && !slices.Equal(got, want) {
					t.Errorf("%s, epoch %d: got images %v, want %v", what, epoch, got, want)
				}
				for j, level := range got {
					if level != j {
						t.Errorf("%s, epoch %d: got images %v", what, epoch, got)
						break
					}
				}
				if len(got) < least || w.name == "tar" && len(got) > least || len(got) > len(members) {
					t.Errorf("%s, epoch %d: got %d images, want %d", what, epoch, len(got), least)
				}
				last = got
			}
			if s := l.Stats(); len(s.Truncated) != 1 || l.Len() != len(last) || len(s.IndexFiles) > 0 {
				t.Errorf("%s: truncated %q, Len %d, index files %q", what, s.Truncated, l.Len(), s.IndexFiles)
			}
			closeWhole(t, l)
		}
	}
}

// With AllowTruncated, a WebDataset that is cut anywhere gives the samples before the cut.
func TestOptions_AllowTruncated_WebDataset(t *testing.T) {
	packed := tarOf(samplesOf(10, "cls", func(l int) string { return fmt.Sprint(l) }))
	for cut := 4 * 512; cut < len(packed); cut += 512 {
		o := options()
		o.Reading.AllowTruncated = true
		l := open(t, write(t, "a.tar", packed[:cut]), o)
		got := labelsOf(t, l)
		for i, pair := range got {
			if want := fmt.Sprintf("%02d:%d", i, label(i, 10)); pair != want {
				t.Fatalf("cut at %d: got %v", cut, got)
			}
		}
		if want := cut / (6 * 512); len(got) < want || len(got) > want+1 {
			t.Errorf("cut at %d: got %d images, want %d", cut, len(got), want)
		}
		l.Close()
	}
}
