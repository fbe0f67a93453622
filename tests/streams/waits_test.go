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
	"github.com/streamtorch/streamtorch/prefetcher"
)

// endless gives the same images for ever.
type endless struct {
	slab   *cgotorch.HostSlab
	n, hw  int
	labels []int64
}

func (e *endless) Shape() (batch, height, width, channels int) { return e.n, e.hw, e.hw, 3 }
func (e *endless) Pin() error                                  { return e.slab.Pin() }
func (e *endless) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; ctx.Err() == nil; i++ {
			b := &imageloader.HostBatch{N: e.n, Height: e.hw, Width: e.hw, Channels: 3, Index: i, Images: e.slab.Bytes()[8*e.n:],
				Labels: e.labels, Flip: make([]bool, e.n)}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// A whole training step is enqueued while the stream is held up: nothing in it waits for the device. A read in the step does,
// which shows that the test would see it.
func TestStep_DoesNotWait(t *testing.T) {
	if n, err := cgotorch.CUDACount(); n == 0 {
		t.Skip(err)
	}
	d := cgotorch.CUDA(0)
	source := &endless{n: 16, hw: 64}
	var err error
	if source.slab, err = cgotorch.NewHostSlab(source.n*8 + source.n*source.hw*source.hw*3); err != nil {
		t.Fatal(err)
	}
	defer source.slab.Close()
	source.labels = make([]int64, source.n)
	ahead, err := prefetcher.New(source, d, prefetcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ahead.Close()
	stream, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var model nn.Module
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		model = vision.NewResNet18(x, vision.Options{Classes: 10})
		nn.To(x, model, nn.ToOptions{ChannelsLast: true})
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.01, Momentum: 0.9, Nesterov: true}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Close(model)
	defer opt.Close()
	schedule := optim.OneCycle(100, optim.OneCycleOptions{})

	const warm = 4 // until memory is allocated and algorithms are chosen
	step := 0
	for batch, err := range ahead.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		reads := step == warm+1
		var held *cgotorch.Event
		var loss *cgotorch.HostRead
		if step >= warm {
			if err := stream.Synchronize(); err != nil {
				t.Fatal(err)
			}
			if err := stream.Do(func(x *cgotorch.Exec) error { x.Sleep(50 * time.Millisecond); held = x.Record(); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		opt.SetScale(schedule(step))
		began := time.Now()
		err := stream.Do(func(x *cgotorch.Exec) error {
			images, labels := batch.Use(x)
			opt.ZeroGrad()
			ax := x.Autocast(cgotorch.BFloat16)
			l := nn.CrossEntropy(ax, model.Forward(ax, images), labels, nn.CrossEntropyOptions{})
			x.Backward(l)
			optim.ClipGradNorm(x, opt.Params(), 1)
			opt.Step(x)
			if reads {
				x.Item(l)
			} else {
				loss = x.ReadAsync(l)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if held != nil {
			t.Logf("a step that reads its loss: %v; the Do returned after %v, behind 50 ms of work", reads, time.Since(began))
			done, err := held.Query()
			if err != nil {
				t.Fatal(err)
			}
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
