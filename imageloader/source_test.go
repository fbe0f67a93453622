package imageloader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/panics"
)

func TestOpenFS(t *testing.T) {
	members := numbered(12)
	fsys := fstest.MapFS{"sets/a.tgz": {Data: gzipOf(tarOf(members))}, "sets/b-0.tar": {Data: tarOf(members[:5])}, "sets/b-1.tar": {Data: tarOf(members[5:])}}
	for _, m := range members {
		fsys["sets/files/"+m.name] = &fstest.MapFile{Data: m.body}
	}
	for _, path := range []string{"sets/a.tgz", "sets/b-{0..1}.tar", "sets/b-*.tar", "sets/files"} {
		for _, buffer := range []int{0, 100} {
			checkLeaks(t)
			o := options()
			o.Reading.ShuffleBuffer, o.Index.Dir = buffer, t.TempDir()
			l := must.Get(OpenFS(fsys, path, o))(t)
			if got := levels(t, l); len(got) != 12 || !slices.IsSorted(got) {
				t.Errorf("%s: images %v", path, got)
			}
			l.Close()
		}
	}
	_, err := OpenFS(fsys, "sets/c.tgz", options())
	wantError(t, err, ErrArchive, "sets/c.tgz: no such file")
	_, err = OpenFS(withoutReadAt{fsys}, "sets/a.tgz", options())
	wantError(t, err, ErrArchive, "sets/a.tgz", "have no ReadAt")
}

// withoutReadAt is a file system whose files have no ReadAt.
type withoutReadAt struct{ fs.FS }

func (w withoutReadAt) Open(name string) (fs.File, error) {
	f, err := w.FS.Open(name)
	return struct{ fs.File }{f}, err
}

// moody is an io.ReaderAt. Some of its reads fail, and some wait until the channel `released` is
// closed.
type moody struct {
	io.ReaderAt
	reads    atomic.Int64
	fail     func(read int64) bool
	slow     func(read int64) bool
	released chan struct{}
}

func (m *moody) ReadAt(p []byte, off int64) (int, error) {
	n := m.reads.Add(1)
	if m.fail != nil && m.fail(n) {
		return 0, errors.New("the line is down")
	}
	if m.slow != nil && m.slow(n) {
		<-m.released
	}
	return m.ReaderAt.ReadAt(p, off)
}

func TestOpenReaderAt_Moody(t *testing.T) {
	packed := gzipOf(tarOf(numbered(30)))
	path := write(t, "a.tgz", packed)
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	for _, test := range []struct {
		name    string
		fail    func(int64) bool
		slow    func(int64) bool
		retries int
		want    string
	}{
		{"steady", nil, nil, 0, ""},
		{"fails now and then", func(n int64) bool { return n%2 == 0 }, nil, 0, ""},
		{"fails for good", func(n int64) bool { return n > 1 }, nil, 1, "the line is down (tried 2 times)"},
		{"fails for good, and no retries", func(n int64) bool { return n > 1 }, nil, -1, "the line is down"},
		{"hangs once", nil, func(n int64) bool { return n == 2 }, 0, ""},
		{"hangs for good", nil, func(n int64) bool { return n > 1 }, 1, "a read took longer than Options.Reading.Timeout, 50ms (tried 2 times)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkLeaks(t)
			m := &moody{ReaderAt: file, fail: test.fail, slow: test.slow, released: make(chan struct{})}
			defer close(m.released)
			o := options()
			o.Reading.ShuffleBuffer, o.Index.NoFile, o.Reading.Retries = 500, true, test.retries
			if test.slow != nil {
				o.Reading.Timeout = 50 * time.Millisecond
			}
			l, err := OpenReaderAt(m, int64(len(packed)), "far/a.tgz", o)
			if err == nil {
				defer l.Close()
				for batch, e := range l.Epoch(context.Background()) {
					if err = e; e == nil {
						batch.Release()
					}
				}
			}
			if test.want != "" {
				wantError(t, err, ErrArchive, "far/a.tgz", test.want)
				return
			}
			must.Do(t, err)
			if got := l.Stats(); got.Samples != 30 || (test.fail != nil || test.slow != nil) != (got.Retries > 0) {
				t.Errorf("%d images, %d retries", got.Samples, got.Retries)
			}
		})
	}
}

// If an archive is not a file of the operating system, its index lies in IndexDir.
func TestOpenReaderAt_Index(t *testing.T) {
	packed := gzipOf(tarOf(noisy(60)))
	file := must.Get(os.Open(write(t, "a.tgz", packed)))(t)
	defer file.Close()
	o := blockOptions()
	o.Reading.ShuffleBuffer, o.Index.NoFile, o.Index.Dir = 1<<20, false, t.TempDir()
	var first string
	for range 2 {
		l := must.Get(OpenReaderAt(file, int64(len(packed)), "far/a.tgz", o))(t)
		got := fmt.Sprint(order(t, l), l.Stats().IndexFiles)
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("got %s, then %s", first, got)
		}
		l.Close()
	}
	if found, _ := filepath.Glob(o.Index.Dir + "/a.tgz-*.index"); len(found) != 1 {
		t.Errorf("index files %v", found)
	}
}

// readerFunc is a function as an io.ReaderAt.
type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// Close also waits for an epoch that another goroutine is just leaving. After Close nothing reads
// the archive any more.
func TestLoader_Close_WhileLeaving(t *testing.T) {
	checkLeaks(t)
	data := tarOf(numbered(200))
	var mu sync.Mutex
	seen := map[int64]int{}
	again := func(off int64) int { // counts the reads of the second epoch
		mu.Lock()
		defer mu.Unlock()
		if seen[off]++; seen[off] == 2 && off >= 512 { // Open reads the first header twice
			seen[-1]++
		}
		return seen[-1]
	}
	var inside atomic.Int64
	release := make(chan struct{})
	o := options()
	o.Train, o.BatchSize, o.Buffers, o.Workers = true, 50, 8, 1
	l := must.Get(OpenReaderAt(readerFunc(func(p []byte, off int64) (int, error) {
		if again(off) > 30 {
			inside.Add(1)
			defer inside.Add(-1)
			<-release
		}
		return bytes.NewReader(data).ReadAt(p, off)
	}), int64(len(data)), "far.tar", o))(t)
	left := make(chan struct{})
	go func() {
		defer close(left)
		for batch, err := range l.Epoch(context.Background()) {
			if err != nil {
				t.Error(err)
				return
			}
			batch.Release()
			for inside.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			return // the end of the loop waits for the reads of the next epoch
		}
	}()
	for leaving := false; !leaving; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		leaving = inside.Load() > 0 && l.current == nil && l.ahead == nil
		l.mu.Unlock()
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		closeWhole(t, l)
	}()
	select {
	case <-closed:
		t.Errorf("Close has returned, and %d reads are under way", inside.Load())
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	<-closed
	<-left
}

// If the disk is slow, Bottleneck names reading, also while the archive is read for the first
// time.
func TestStats_Bottleneck_SlowReader(t *testing.T) {
	packed := gzipOf(tarOf(noisy(250)))
	o := blockOptions()
	o.Train, o.Labels.Classes, o.Index.NoFile = false, []string{"a", "b", "c"}, true
	l := must.Get(OpenReaderAt(readerFunc(func(p []byte, off int64) (int, error) {
		time.Sleep(150 * time.Millisecond)
		return bytes.NewReader(packed).ReadAt(p, off)
	}), int64(len(packed)), "far.tgz", o))(t)
	defer closeWhole(t, l)
	for range 2 {
		before := l.Stats()
		read(t, l)
		if s := l.Stats().Since(before); !strings.HasPrefix(s.Bottleneck(), "read") {
			t.Errorf("got %q, read %v, inflate %v", s.Bottleneck(), s.Read, s.Inflate)
		}
	}
}

// A panic in the program's ReadAt comes out of Open, or of the loop over the epoch, with its stack.
// It is not tried again, and all goroutines end.
func TestOpenReaderAt_Panics(t *testing.T) {
	packed := gzipOf(tarOf(numbered(30)))
	var reads int64
	for timeout := range 2 {
		for n := int64(1); n == 1 || reads >= n-1; n++ {
			checkLeaks(t)
			m := &moody{ReaderAt: bytes.NewReader(packed), fail: func(k int64) bool {
				if reads = k; k == n {
					panic("mine")
				}
				return false
			}}
			o := options()
			o.Reading.ShuffleBuffer, o.Index.NoFile, o.Reading.Timeout = 500, true, time.Duration(timeout)*time.Minute
			raised := func() (raised any) {
				defer func() { raised = recover() }()
				l, err := OpenReaderAt(m, int64(len(packed)), "far/a.tgz", o)
				if err != nil {
					return err
				}
				defer l.Close()
				for batch, err := range l.Epoch(context.Background()) {
					if err != nil {
						return err
					}
					batch.Release()
				}
				return nil
			}()
			if reads < n {
				if raised != nil {
					t.Errorf("without a panic: %v", raised)
				}
				break
			}
			if _, isPanic := raised.(*panics.Panic); !isPanic || !strings.Contains(fmt.Sprint(raised), "source_test.go:") {
				t.Errorf("read %d panics: got %v, want the panic with its stack", n, raised)
			}
		}
		if reads < 3 {
			t.Errorf("only %d reads", reads)
		}
		reads = 0
	}
}

func TestOpen_NilSource(t *testing.T) {
	for name, open := range map[string]func() (*Loader, error){
		"OpenFS":       func() (*Loader, error) { return OpenFS(nil, "a.tgz", options()) },
		"OpenReaderAt": func() (*Loader, error) { return OpenReaderAt(nil, 9, "a.tgz", options()) },
	} {
		if _, err := open(); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "is nil") {
			t.Errorf("%s of nil: %v", name, err)
		}
	}
}

// wrongReader returns counts that io.ReaderAt forbids, after some reads.
type wrongReader struct {
	io.ReaderAt
	reads atomic.Int64
	count int
}

func (r *wrongReader) ReadAt(p []byte, off int64) (int, error) {
	if r.reads.Add(1) > 3 {
		return r.count, nil
	}
	return r.ReaderAt.ReadAt(p, off)
}

// Readers that break their contract give an error, and do not end the process.
func TestOpenReaderAt_Wrong(t *testing.T) {
	data := gzipOf(tarOf(heavy(20, 1<<18)))
	for _, size := range []int64{-1, -1 << 62} {
		_, err := OpenReaderAt(bytes.NewReader(data), size, "a.tgz", options())
		wantError(t, err, ErrInvalidOptions, "a.tgz", fmt.Sprint(size))
	}
	for _, count := range []int{-5, 1 << 30} {
		checkLeaks(t)
		o := options()
		o.Reading.ShuffleBuffer, o.Index.NoFile, o.Reading.Retries = 1000, true, -1
		_, err := OpenReaderAt(&wrongReader{ReaderAt: bytes.NewReader(data), count: count}, int64(len(data)), "a.tgz", o)
		wantError(t, err, ErrArchive, "a.tgz", fmt.Sprintf("returned %d: mend the reader", count))
	}
	_, err := OpenFS(os.DirFS(t.TempDir()), "/data/a.tgz", options())
	wantError(t, err, ErrArchive, "/data/a.tgz", "without a slash")
}
