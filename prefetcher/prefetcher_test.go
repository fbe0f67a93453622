package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestEpoch_Counts(t *testing.T) {
	for _, n := range []int{1, 3, 4, 5, 8, 9, 30} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				loader := open(t, archive(t, n, -1), imageloader.Options{BatchSize: 4})
				p := start(t, loader, d, Options{})
				for epoch := range 3 {
					seen := 0
					eachBatch(t, p, cgotorch.DefaultStream(d), func(x *cgotorch.Exec, b *Batch, images, labels *cgotorch.Tensor) {
						if b.Index != seen/4 || b.Epoch != epoch {
							t.Errorf("%v, want batch %d of epoch %d", b, seen/4, epoch)
						}
						checkBatch(t, x, b, images, labels, seen)
						seen += b.N
					})
					if seen != n {
						t.Errorf("epoch %d: %d images, want %d", epoch, seen, n)
					}
				}
				if s := p.Stats(); s.Samples != 3*n || s.Bytes != int64(3*n*(side*side*3+8+1)) || s.Copy <= 0 {
					t.Errorf("Stats() = %+v for %d samples", s, 3*n)
				}
			})
		})
	}
}

func TestEpoch_BadMemberInTheMiddle(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, 11), imageloader.Options{BatchSize: 4})
		p := start(t, loader, d, Options{})
		batches := 0
		var last error
		for _, err := range p.Epoch(context.Background()) {
			if last = err; err == nil {
				batches++
			}
		}
		if last == nil || !strings.Contains(last.Error(), "class2/011.png") {
			t.Errorf("the epoch ended with %v, want an error that names class2/011.png", last)
		}
		if batches != 2 {
			t.Errorf("%d batches before the error, want 2", batches)
		}
	})
}

func TestEpoch_TwoAtOnce(t *testing.T) {
	torchtest.CheckLeaks(t)
	loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, cgotorch.CPU, Options{})
	for range p.Epoch(context.Background()) {
		for _, err := range p.Epoch(context.Background()) {
			if err == nil {
				t.Fatal("a second epoch began inside the first")
			}
		}
	}
}

func TestClose_InLoop(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var last error
		for _, err := range p.Epoch(context.Background()) {
			if last = err; err == nil {
				p.Close()
			}
		}
		if !errors.Is(last, cgotorch.ErrClosed) {
			t.Errorf("the epoch ended with %v, want ErrClosed", last)
		}
		for _, err := range p.Epoch(context.Background()) {
			if !errors.Is(err, cgotorch.ErrClosed) {
				t.Errorf("Epoch after Close: %v", err)
			}
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// stubborn is a source that yields nothing. It ignores its context and ends when the test closes
// `end`.
type stubborn struct {
	*counted
	end chan bool
}

func (s stubborn) Epoch(context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(func(*imageloader.HostBatch, error) bool) { <-s.end }
}

// Close frees nothing while a loop waits for its first batch, although no slot is in use.
func TestClose_BeforeTheFirstBatch(t *testing.T) {
	torchtest.CheckLeaks(t)
	source := stubborn{newCounted(t, 1, nil), make(chan bool)}
	p := start(t, source, cgotorch.CPU, Options{})
	left := make(chan error)
	go func() {
		var last error
		for _, err := range p.Epoch(context.Background()) {
			last = err
		}
		left <- last
	}()
	running := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.running != nil
	}
	for !running() {
		runtime.Gosched()
	}
	p.Close()
	if p.slots == nil {
		t.Error("the slots are freed under the loop")
	}
	close(source.end)
	if err := <-left; !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("the loop ended with %v, want ErrClosed", err)
	}
}

// vast is a source whose batches are larger than any memory.
type vast struct{ *counted }

func (vast) Shape() (batch, height, width, channels int) { return 1 << 30, 1 << 10, 1 << 10, 3 }

func TestNew_NoMemory(t *testing.T) {
	torchtest.CheckLeaks(t)
	if _, err := New(vast{newCounted(t, 1, nil)}, cgotorch.CPU, Options{}); !errors.Is(err, cgotorch.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
}

func TestFlat(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 4, Train: true})
		p := start(t, loader, d, Options{})
		stream := cgotorch.DefaultStream(d)
		var before, after map[string]int
		for epoch := range 100 {
			eachBatch(t, p, stream, func(*cgotorch.Exec, *Batch, *cgotorch.Tensor, *cgotorch.Tensor) {})
			if epoch == 1 {
				before = cgotorch.LiveHandles()
			}
		}
		stream.Synchronize()
		p.Stats()
		if after = cgotorch.LiveHandles(); after["tensor"] != before["tensor"] || after["event"] > before["event"]+8 {
			t.Errorf("handles grew from %v to %v over 980 batches", before, after)
		}
	})
}

func TestEpoch_SequenceUsedTwice(t *testing.T) {
	torchtest.CheckLeaks(t)
	loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, cgotorch.CPU, Options{})
	batches := p.Epoch(context.Background())
	for range batches {
	}
	for _, err := range batches {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("second loop: %v", err)
		}
	}
}
