package streams

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// endless is a source of batches that yields the same images again and again.
type endless struct {
	memory []byte // the images
	pinner imageloader.Pinner
	n, hw  int
	labels []int64
}

// newEndless makes a source with batches of n images of hw x hw. The end of the test frees its
// memory.
func newEndless(t testing.TB, n, hw int) *endless {
	t.Helper()
	memory := must.Get(arena.MapPages(n * hw * hw * 3))(t)
	e := &endless{memory: memory, n: n, hw: hw, labels: make([]int64, n)}
	t.Cleanup(func() {
		if e.pinner != nil {
			e.pinner.Unpin(memory)
		}
		arena.UnmapPages(memory)
	})
	return e
}

func (e *endless) Shape() (batch, height, width, channels int) { return e.n, e.hw, e.hw, 3 }

func (e *endless) Pin(p imageloader.Pinner) error {
	e.pinner = p
	return p.Pin(e.memory)
}

func (e *endless) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; ctx.Err() == nil; i++ {
			b := &imageloader.HostBatch{N: e.n, Height: e.hw, Width: e.hw, Channels: 3, Index: i, Images: e.memory,
				Labels: e.labels, Flip: make([]bool, e.n)}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// training is a ResNet-18 with all objects of a training step.
type training struct {
	ahead    *prefetcher.Prefetcher
	stream   *cgotorch.Stream
	model    nn.Module
	opt      *optim.Optimizer
	schedule optim.Schedule
}

// newTraining makes a training on batches of n images of hw x hw. The end of the test closes it.
func newTraining(t *testing.T, d cgotorch.Device, n, hw int) *training {
	t.Helper()
	r := &training{schedule: optim.OneCycle(100, optim.OneCycleOptions{})}
	var err error
	if r.ahead, err = prefetcher.New(newEndless(t, n, hw), d, prefetcher.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.ahead.Close() })
	r.stream = torchtest.NewStream(t, d)
	torchtest.DoOn(t, r.stream, func(x *cgotorch.Exec) error {
		r.model = cgotorch.Must(vision.New(x, "resnet18", vision.Options{Classes: 10}))
		nn.To(x, r.model, nn.ToOptions{ChannelsLast: true})
		r.opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.01, Momentum: 0.9, Nesterov: true}, optim.Group{Params: nn.Parameters(r.model)})
		return err
	})
	t.Cleanup(func() { nn.Close(r.model) })
	t.Cleanup(func() { r.opt.Close() })
	return r
}

// step enqueues a whole training step on a batch and returns its loss.
func (r *training) step(x *cgotorch.Exec, batch *prefetcher.Batch) (loss *cgotorch.Tensor) {
	images, labels := batch.Use(x)
	r.opt.ZeroGrad()
	ax := x.Autocast(cgotorch.BFloat16)
	loss = nn.CrossEntropy(ax, r.model.Forward(ax, images), labels, nn.CrossEntropyOptions{LabelSmoothing: 0.1})
	x.Backward(loss)
	optim.ClipGradNorm(x, r.opt.Params(), 1)
	r.opt.Step(x)
	return loss
}

// A whole training step is enqueued while earlier work keeps the stream busy. No part of the step
// waits for the device. A control step that reads its loss does wait, so the test can see a wait.
func TestStep_DoesNotWait(t *testing.T) {
	d := torchtest.CUDA(t)
	r := newTraining(t, d, 16, 64)

	const warm = 4 // during these steps memory is allocated and algorithms are chosen
	step := 0
	for batch, err := range r.ahead.Epoch(context.Background()) {
		must.Do(t, err)
		reads := step == warm+1
		var held *cgotorch.Event
		var loss *cgotorch.HostRead
		if step >= warm {
			must.Do(t, r.stream.Synchronize())
			torchtest.DoOn(t, r.stream, func(x *cgotorch.Exec) { torchtest.Sleep(x, 50*time.Millisecond); held = x.Record() })
		}
		r.opt.SetScale(r.schedule(step))
		began := time.Now()
		torchtest.DoOn(t, r.stream, func(x *cgotorch.Exec) {
			l := r.step(x, batch)
			if reads {
				x.Item(l)
			} else {
				loss = x.ReadAsync(l)
			}
		})
		if held != nil {
			t.Logf("a step that reads its loss: %v; the Do returned after %v, behind 50 ms of work", reads, time.Since(began))
			done := must.Get(held.Query())(t)
			if done != reads {
				t.Errorf("a step that reads its loss: %v; it waited for the device: %v", reads, done)
			}
			held.Close()
		}
		if loss != nil {
			if v, err := loss.Item(); !(v > 0) || err != nil {
				t.Errorf("the loss is %v, %v", v, err)
			}
			loss.Close()
		}
		if step++; step > warm+1 {
			break
		}
	}
}
