package imageloader

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// heavy returns n images of `size` bytes each. Most of the bytes come after the end of the image.
func heavy(n, size int) []member {
	body := append(photo(8, 8), make([]byte, size)...)[:size]
	members := make([]member, n)
	for i := range members {
		members[i] = member{name: fmt.Sprintf("%c/%03d.jpg", 'a'+i%3, i), body: body}
	}
	return members
}

// stored returns a gzip file in which `data` is not compressed. Its segments are 2 MiB.
func stored(data []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.NoCompression)
	w.Write(data)
	w.Close()
	return out.Bytes()
}

// within fails the test when f takes longer than `limit`. The test then does not hang.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("still not done after %v", limit)
	}
}

// A batch that is larger than the memory for its compressed images is decoded in parts. The
// number of its images does not change.
func TestEpoch_BatchAboveShuffleBuffer(t *testing.T) {
	members := heavy(30, 1<<18)
	members[11].body = []byte("no image")
	packed := tarOf(members)
	tgz := write(t, "a.tgz", stored(packed))
	for name, path := range map[string]string{"tar": write(t, "a.tar", packed), "directory": writeDirectory(t, members), "tgz": tgz, "streamed": tgz} {
		for _, train := range []bool{false, true} {
			for _, dropLast := range []bool{false, true} {
				o := Options{BatchSize: 12, Train: train, Crop: Crop{Transform: decode.Resize{Height: 2, Width: 2}}, Reading: Reading{MaxSkipRate: 0.5}, DropLast: dropLast, Index: Index{NoFile: true}}
				want := ""
				for _, buffer := range []int{0, 700 << 10, 1000} {
					o.Reading.ShuffleBuffer = buffer
					if name == "streamed" {
						o.Labels.Classes = []string{"a", "b", "c"}
					}
					l := open(t, path, o)
					within(t, 30*time.Second, func() {
						for range 2 {
							var sizes []int
							for batch, err := range l.Epoch(context.Background()) {
								if err != nil {
									t.Error(err)
									return
								}
								sizes = append(sizes, batch.N)
								batch.Release()
							}
							got := fmt.Sprint(sizes)
							if want = map[bool]string{false: "[12 12 5]", true: "[12 12]"}[dropLast]; got != want {
								t.Errorf("%s, train %v, buffer of %d: batches of %v, want %v", name, train, buffer, got, want)
							}
						}
					})
				}
			}
		}
	}
}

// An error reaches the consumer while the reader waits for memory.
func TestEpoch_ErrorWhileMemoryIsShort(t *testing.T) {
	path := write(t, "a.tgz", stored(tarOf(heavy(30, 1<<20))))
	o := Options{BatchSize: 2, Crop: Crop{Transform: decode.Resize{Height: 2, Width: 2}}, Reading: Reading{ShuffleBuffer: 4 << 20}, Index: Index{NoFile: true}}
	l := open(t, path, o)
	within(t, 30*time.Second, func() {
		var err error
		first := true
		for batch, e := range l.Epoch(context.Background()) {
			if err = e; err != nil {
				break
			}
			if first {
				first = false
				must.Check(t, os.Truncate(path, 9<<20))
			}
			batch.Release()
		}
		if !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "open it again") {
			t.Errorf("got %v", err)
		}
	})
}

// The compressed images that are not decoded yet take no more memory than the size of the shuffle
// buffer plus the bytes of the current read.
func TestEpoch_MemoryOfImagesOnTheirWay(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 160 MiB three times")
	}
	members := heavy(40, 4<<20)
	packed := tarOf(members)
	tgz := write(t, "a.tgz", gzipOf(packed))
	for name, path := range map[string]string{"tar": write(t, "a.tar", packed), "tgz": tgz, "streamed": tgz} {
		o := Options{BatchSize: 64, Crop: Crop{Transform: decode.Resize{Height: 2, Width: 2}}, Reading: Reading{ShuffleBuffer: 1 << 20}, Index: Index{NoFile: true}, Workers: 1}
		if name == "streamed" {
			o.Labels.Classes = []string{"a", "b", "c"}
		}
		most := peak(func() {
			l := open(t, path, o)
			if got := len(read(t, l)); got != 1 {
				t.Errorf("%s: %d batches", name, got)
			}
		})
		t.Logf("%s: %d MiB", name, most>>20)
		if most > 120<<20 {
			t.Errorf("%s: %d MiB of heap for images of 4 MiB and a buffer of 1 MiB", name, most>>20)
		}
	}
}
