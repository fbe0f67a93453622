package imageloader

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/ring"
)

func TestEpoch_UsedTwice(t *testing.T) {
	l := open(t, sources(t, numbered(8))[1].path, options())
	batches := l.Epoch(context.Background())
	for batch, err := range batches {
		must.Do(t, err)
		batch.Release()
	}
	for _, err := range batches {
		wantError(t, err, ErrBusy, "used already; call Epoch for each epoch")
	}
}

func TestEpoch_TwoAtOnce(t *testing.T) {
	l := open(t, sources(t, numbered(8))[1].path, options())
	for batch, err := range l.Epoch(context.Background()) {
		must.Do(t, err)
		for _, err := range l.Epoch(context.Background()) {
			wantError(t, err, ErrBusy, "another epoch is being read")
		}
		batch.Release()
	}
	if got := len(read(t, l)); got != 2 {
		t.Errorf("afterwards: got %d batches, want 2", got)
	}
}

// A loop may be left at any batch, by break or panic. Afterwards no goroutine of the epoch runs
// and no buffer is taken. The next epoch is whole.
func TestEpoch_LeftEarly(t *testing.T) {
	for _, s := range sources(t, numbered(40)) {
		t.Run(s.name, func(t *testing.T) {
			o := trainOptions()
			s.change(&o)
			l := open(t, s.path, o)
			for n := range 14 {
				goroutines := runtime.NumGoroutine()
				for batch, err := range l.Epoch(context.Background()) {
					must.Do(t, err)
					batch.Release()
					if batch.Index == n {
						break
					}
				}
				eventually(t, "goroutines after the loop", goroutines, runtime.NumGoroutine)
				func() {
					defer func() {
						if recover() != "mine" {
							t.Error("the panic did not pass through")
						}
					}()
					for batch := range l.Epoch(context.Background()) {
						batch.Release()
						panic("mine")
					}
				}()
			}
			if got := len(read(t, l)); got != 14 {
				t.Errorf("afterwards: got %d batches, want 14", got)
			}
			if err := l.Restore(State{}); err != nil { // ends the reading of the next epoch
				t.Error(err)
			}
			if got := l.ring.Taken(); got != 0 {
				t.Errorf("%d buffers are not free", got)
			}
		})
	}
}

func TestEpoch_ContextEnds(t *testing.T) {
	cause := errors.New("enough")
	for _, s := range sources(t, numbered(40)) {
		t.Run(s.name, func(t *testing.T) {
			o := options()
			s.change(&o)
			l := open(t, s.path, o)
			for n := range 4 {
				ctx, cancel := context.WithCancelCause(context.Background())
				if n == 0 {
					cancel(cause)
				}
				got := 0
				var last error
				for batch, err := range l.Epoch(ctx) {
					if last = err; err != nil {
						continue
					}
					batch.Release()
					if got++; got == n {
						for len(l.current.full) == 0 { // a batch that is ready now must not be delivered after the cancel
							runtime.Gosched()
						}
						cancel(cause)
					}
				}
				if got != n || last != cause {
					t.Errorf("cancelled after %d: got %d batches and error %v", n, got, last)
				}
				cancel(nil)
			}
		})
	}
}

// When all buffers are taken, the epoch waits for a release, the context or Close.
func TestEpoch_AllBuffersTaken(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(l *Loader, held []*HostBatch, cancel context.CancelFunc)
		want error
	}{
		{"release", func(l *Loader, held []*HostBatch, cancel context.CancelFunc) { held[1].Release() }, nil},
		{"context", func(l *Loader, held []*HostBatch, cancel context.CancelFunc) { cancel() }, context.Canceled},
		{"Close", func(l *Loader, held []*HostBatch, cancel context.CancelFunc) { l.Close() }, ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := options()
			o.Buffers = 3
			l := open(t, sources(t, numbered(40))[2].path, o)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var held []*HostBatch
			var err error
			var batch *HostBatch
			for batch, err = range l.Epoch(ctx) {
				if err != nil {
					break
				}
				if held = append(held, batch); len(held) == 3 {
					go func() {
						time.Sleep(10 * time.Millisecond) // by then the loop probably waits. The test also passes if the loop does not wait yet
						test.do(l, held[:3], cancel)
					}()
				}
				if len(held) > 3 {
					break
				}
			}
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("got error %v, want %v", err, test.want)
			}
			for i, batch := range held {
				if batch.Images != nil && int(batch.Images[0]) != 4*i {
					t.Errorf("batch %d begins with pixel %d: a held batch was overwritten", i, batch.Images[0])
				}
				batch.Release()
				batch.Release()
			}
			if got := l.ring.Taken(); got != 0 {
				t.Errorf("%d buffers are not free", got)
			}
		})
	}
}

// If a batch is not released before Close, its memory stays until its Release.
func TestLoader_Close_UnreleasedBatches(t *testing.T) {
	l := open(t, sources(t, numbered(40))[1].path, options())
	before := arena.Pages()
	var held []*HostBatch
	for batch, err := range l.Epoch(context.Background()) {
		must.Do(t, err)
		if held = append(held, batch); len(held) == 2 {
			break
		}
	}
	for range 2 {
		must.Do(t, l.Close())
	}
	for i, batch := range held {
		if got := int(batch.Images[0]); got != 4*i {
			t.Errorf("after Close, batch %d begins with pixel %d, want %d", i, got, 4*i)
		}
		if got := arena.Pages(); got != before {
			t.Errorf("with %d batches unreleased: got %d bytes of batches, want %d", len(held)-i, got, before)
		}
		batch.Release()
		batch.Release()
	}
	if got, want := arena.Pages(), before-l.Memory().Batches; got != want {
		t.Errorf("after the last Release: got %d bytes of batches, want %d", got, want)
	}
}

func TestLoader_Close_ThenUse(t *testing.T) {
	l := open(t, sources(t, numbered(8))[1].path, options())
	l.Close()
	_, err := tryRead(l)
	wantError(t, err, ErrClosed)
	wantError(t, l.Restore(State{}), ErrClosed)
	wantError(t, l.Pin(&recorder{}), ErrClosed)
	if l.Len() != 8 || len(l.Classes()) != 3 || l.Stats().Batches != 0 {
		t.Errorf("after Close: Len %d, Classes %v, Stats %+v", l.Len(), l.Classes(), l.Stats())
	}
	if n, height, width, channels := l.Shape(); n != 4 || height != 2 || width != 2 || channels != 1 {
		t.Errorf("after Close: got shape %d %d %d %d", n, height, width, channels)
	}
}

// Close may be called in the loop's body and on other goroutines, at every batch of an epoch.
func TestLoader_Close_Anywhere(t *testing.T) {
	for _, s := range sources(t, numbered(24)) {
		t.Run(s.name, func(t *testing.T) {
			for n := range 6 {
				for _, elsewhere := range []bool{false, true} {
					o := options()
					s.change(&o)
					l := open(t, s.path, o)
					var closers sync.WaitGroup
					got := 0
					for batch, err := range l.Epoch(context.Background()) {
						if err != nil {
							if !errors.Is(err, ErrClosed) {
								t.Errorf("got error %v, want ErrClosed", err)
							}
							break
						}
						batch.Release()
						if got++; got <= n {
							continue
						}
						if !elsewhere {
							l.Close()
							continue
						}
						for range 2 {
							closers.Add(1)
							go func() {
								defer closers.Done()
								l.Close()
							}()
						}
					}
					closers.Wait()
					if !elsewhere && got != n+1 {
						t.Errorf("closed after batch %d: got %d batches", n, got)
					}
				}
			}
		})
	}
}

// A goroutine that does not run the loop may release the batches.
func TestHostBatch_Release_Elsewhere(t *testing.T) {
	l := open(t, sources(t, numbered(40))[2].path, options())
	taken := make(chan *HostBatch, 2)
	done := make(chan int)
	go func() {
		sum := 0
		for batch := range taken {
			sum += batch.N
			batch.Release()
			batch.Release()
		}
		done <- sum
	}()
	for range 20 {
		for batch, err := range l.Epoch(context.Background()) {
			must.Do(t, err)
			taken <- batch
		}
	}
	close(taken)
	if got := <-done; got != 800 {
		t.Errorf("got %d images, want 800", got)
	}
}

func TestLoader_Pin(t *testing.T) {
	l := open(t, sources(t, numbered(8))[1].path, options())
	var first, second recorder
	few := recorder{most: 1}
	for _, p := range []*recorder{&first, &second, &few, &second} {
		if err := l.Pin(p); err != nil && (p != &few || !errors.Is(err, errTooMany)) {
			t.Fatal(err)
		}
	}
	if len(first.pinned) != 0 || len(few.pinned) != 0 {
		t.Errorf("%d buffers are pinned by a Pinner that is no more the loader's, %d by one that failed", len(first.pinned), len(few.pinned))
	}
	bytes := 0
	for begin, n := range second.pinned {
		bytes += n
		if uintptr(unsafe.Pointer(begin))%uintptr(ring.PageBytes) != 0 || n%ring.PageBytes != 0 {
			t.Errorf("%d bytes at %p are not whole pages", n, begin)
		}
	}
	if want := l.Memory().Batches; bytes != want {
		t.Errorf("%d bytes are pinned, want all %d", bytes, want)
	}
	if got := len(read(t, l)); got != 2 {
		t.Errorf("got %d batches, want 2", got)
	}
	if len(second.written) < 2 {
		t.Errorf("%d fillings were told, want one for each batch", len(second.written))
	}
	var held *HostBatch
	for batch, err := range l.Epoch(context.Background()) {
		must.Do(t, err)
		wantError(t, l.Pin(&first), ErrBusy)
		held = batch
		break
	}
	l.Close()
	if len(second.pinned) == 0 {
		t.Error("memory of an unreleased batch is not pinned any more")
	}
	if held.Release(); len(second.pinned) != 0 {
		t.Errorf("%d buffers are pinned after the last Release", len(second.pinned))
	}
}

// Memory, goroutines and threads are the same after many batches as after a few.
func TestLoader_Flat(t *testing.T) {
	for _, s := range sources(t, numbered(12)) {
		t.Run(s.name, func(t *testing.T) {
			o := trainOptions()
			o.Workers = 2
			s.change(&o)
			l := open(t, s.path, o)
			epochs := func(n int) leaktest.Usage {
				for range n {
					for range batchesOf(t, l) {
					}
				}
				for batch := range l.Epoch(context.Background()) {
					batch.Release()
					break // ends the reading of the next epoch
				}
				runtime.GC()
				return leaktest.Used(t)
			}
			few := epochs(100)
			many := epochs(400)
			if many.Goroutines > few.Goroutines {
				t.Errorf("goroutines: %d, then %d", few.Goroutines, many.Goroutines)
			}
			if many.Threads > few.Threads+2 { // the Go scheduler may have started up to two more
				t.Errorf("threads: %d, then %d", few.Threads, many.Threads)
			}
			// A leak of 5 kB in each of 1,600 batches would show.
			if many.Resident > few.Resident+8<<20 && !leaktest.RaceDetector() {
				t.Errorf("resident memory: %d kB, then %d", few.Resident>>10, many.Resident>>10)
			}
		})
	}
}

func TestStats(t *testing.T) {
	members := numbered(10)
	bytes := int64(0)
	for _, m := range members {
		bytes += int64(len(m.body))
	}
	for _, s := range sources(t, members) {
		o := options()
		s.change(&o)
		l := open(t, s.path, o)
		read(t, l)
		got := l.Stats()
		if got.Batches != 3 || got.Samples != 10 || got.Bytes != bytes || got.Decode <= 0 || got.ConsumerWait <= 0 {
			t.Errorf("%s: got %+v, want 3 batches, 10 samples, %d bytes", s.name, got, bytes)
		}
		if got.Elapsed <= 0 || got.Workers <= 0 || got.Read <= 0 && got.Inflate <= 0 || !regexp.MustCompile(`^(decode|consumer|read|inflate), \d+\.\d of \d+ cores$`).MatchString(got.Bottleneck()) {
			t.Errorf("%s: got %+v, bound by %s", s.name, got, got.Bottleneck())
		}
		if since := l.Stats().Since(got); since.Batches != 0 || since.Samples != 0 || since.Elapsed != 0 || since.Bottleneck() != "nothing yet" {
			t.Errorf("%s: since then %+v", s.name, since)
		}
		if len(got.Skipped) != 0 || len(got.Examples) != 0 {
			t.Errorf("%s: got %+v, want nothing skipped", s.name, got)
		}
		read(t, l)
		if got := fmt.Sprint(l.Stats().Samples); got != "20" {
			t.Errorf("%s: after two epochs: got %s samples, want 20", s.name, got)
		}
	}
}

// A loop that drops its batches without Release ends with an error. A loop whose batches another
// goroutine releases late does not.
func TestHostBatch_Dropped(t *testing.T) {
	o := options()
	o.Buffers = 2
	l := open(t, sources(t, numbered(400))[2].path, o)
	var last error
	batches := 0
	for batch, err := range l.Epoch(context.Background()) {
		if last = err; err == nil {
			batches += min(batch.N, 1)
		}
	}
	if batches != 2 || last == nil || !strings.Contains(last.Error(), "all 2 buffers belong to batches that were dropped without Release") {
		t.Errorf("%d batches, and %v", batches, last)
	}

	l.ring.ForgetLost() // nobody reads the dropped batches, so Close may free their memory

	l = open(t, sources(t, numbered(12))[2].path, o)
	held := make(chan *HostBatch, 2)
	go func() {
		time.Sleep(3 * shortestPatience) // meanwhile the loop waits for a buffer
		for batch := range held {
			batch.Release()
		}
	}()
	batches = 0
	for batch, err := range l.Epoch(context.Background()) {
		must.Do(t, err)
		held <- batch
		batches++
	}
	close(held)
	if batches == 0 {
		t.Error("no batches")
	}
}
