package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestSlot_FlipIsLeftToRight(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 4, Crop: imageloader.Crop{HorizontalFlip: 1}})
		p := start(t, loader, d, Options{Mean: []float64{0}, Std: []float64{1}})
		eachBatch(t, p, cgotorch.DefaultStream(d), func(x *cgotorch.Exec, _ *Batch, images, _ *cgotorch.Tensor) {
			values := cgotorch.ToSlice[float32](x, images)
			for px := range side {
				want := float64(pixel(0, side-1-px, 0, 0)) / 255
				if got := float64(values[px]); math.Abs(got-want) > 1e-6 {
					t.Errorf("column %d is %v, want %v", px, got, want)
				}
			}
		})
	})
}

// A slot is not refilled while a Do that outlives the loop body uses it.
func TestSlot_DoOutlivesBody(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		side := torchtest.NewStream(t, d)
		begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			if batch.Index == 0 {
				go func() {
					ended <- side.Do(func(x *cgotorch.Exec) error {
						images, labels := batch.Use(x)
						begun <- true
						<-goOn
						checkBatch(t, x, batch, images, labels, 0)
						return nil
					})
				}()
				<-begun
			}
			if batch.Index == 4 {
				break
			}
		}
		p.Close() // while the Do still holds a slot
		close(goOn)
		must.Check(t, <-ended)
	})
}

// A Do reads the slot after the loop body has ended. The slot is written again, or its memory
// freed, only after these reads.
func TestSlot_DoOutlivesBody_InOrder(t *testing.T) {
	for _, test := range []struct {
		name        string
		last        int
		closeInside bool
	}{{"refilled", 4, false}, {"closed", 0, false}, {"closed in the loop", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
				p := start(t, loader, d, Options{Depth: 1})
				stream := torchtest.NewStream(t, d)
				begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
				end := func() {
					close(goOn)
					must.Check(t, <-ended)
				}
				for batch, err := range p.Epoch(context.Background()) {
					must.Do(t, err)
					switch batch.Index {
					case 0:
						go func() {
							ended <- stream.Do(func(x *cgotorch.Exec) error {
								images, _ := batch.Use(x)
								begun <- true
								<-goOn
								x.Sum(images)
								return nil
							})
						}()
						<-begun
					case 1:
						end()
					}
					if test.closeInside {
						p.Close()
					}
					if batch.Index == test.last {
						break
					}
				}
				p.Close()
				if test.last == 0 {
					end()
				}
			})
		})
	}
}

// A later Do of the body reads the batch without a Use: it runs the backward of a tensor that an
// earlier Do kept. The slot is refilled only after that read, also if another goroutine runs a Do
// of the stream when the body ends.
func TestSlot_LaterDoOfTheBody_InOrder(t *testing.T) {
	for _, beside := range []bool{false, true} {
		t.Run(fmt.Sprint("beside another ", beside), func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) { laterDoOfTheBody(t, d, beside) })
		})
	}
}

func laterDoOfTheBody(t *testing.T, d cgotorch.Device, beside bool) {
	torchtest.CheckStreams(t)
	loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, d, Options{Depth: 1})
	stream := torchtest.NewStream(t, d)
	do := func(fn func(x *cgotorch.Exec)) {
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) { fn(x) })
	}
	leave := func() {} // ends the Do of the other goroutine
	for batch, err := range p.Epoch(context.Background()) {
		leave()
		must.Do(t, err)
		var weight, loss *cgotorch.Tensor
		do(func(x *cgotorch.Exec) {
			images, _ := batch.Use(x)
			weight = x.Keep(x.OnesLike(images))
			weight.SetRequiresGrad(true)
			loss = x.Keep(x.Sum(x.Mul(weight, images)))
		})
		do(func(x *cgotorch.Exec) { x.Backward(loss) })
		weight.Close()
		loss.Close()
		if beside {
			in, out, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				_ = stream.Do(func(*cgotorch.Exec) error { close(in); <-out; return nil })
			}()
			<-in
			leave = func() { close(out); <-ended }
		}
	}
	leave()
}

// A slot is freed once, when its body and every Do that used it have ended, in whatever order
// they end.
func TestSlot_FreedByTheLast(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		freed := 0
		s := newSlot(0, func(*slot) { freed++ })
		stream := torchtest.NewStream(t, d)
		var err error
		if s.ready, err = stream.Record(); err != nil {
			t.Fatal(err)
		}
		batch := &Batch{slot: s}
		use := func(during func()) {
			err := stream.Do(func(x *cgotorch.Exec) error {
				for range 2 { // as if two Dos used it
					if err := s.use(x, batch); err != nil {
						return err
					}
				}
				during()
				return nil
			})
			must.Check(t, err)
		}
		free := func(when string, want int) {
			if freed != want {
				t.Errorf("%s: freed %d times, want %d", when, freed, want)
			}
		}
		s.lend(batch)
		use(func() {})
		free("between a Do and the end of the body", 0)
		s.endBody()
		free("after the body", 1)
		s.lend(batch)
		use(func() {
			s.endBody()
			free("in a Do that outlives the body", 1)
		})
		free("after that Do", 2)
		for _, e := range s.released {
			e.Close()
		}
		s.ready.Close()
	})
}

// A batch cannot be used after its own body, even inside the body of a later batch.
func TestSlot_UsedInALaterBody(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		var first *Batch
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			if first == nil {
				first = batch
				continue
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { first.Use(x); return nil })
			if !errors.Is(err, ErrBatchOver) {
				t.Fatalf("batch 0 in the body of batch %d: %v", batch.Index, err)
			}
		}
	})
}

// Two events are recorded: one at the end of the Do that used the batch, one at the end of the
// body.
func TestSlot_EndOfBodyIsRecorded(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var used *slot
		eachBatch(t, p, cgotorch.DefaultStream(d), func(_ *cgotorch.Exec, b *Batch, _, _ *cgotorch.Tensor) { used = b.slot })
		if n := len(used.released); n != 2 {
			t.Errorf("%d events behind the batch, want that of its Do and that of its body", n)
		}
	})
}

// The images equal torchvision's to the bit. Each uint8 becomes float32 and is divided by 255.
// Then the mean is subtracted, and the result is divided by std. Each step rounds to float32.
func TestSlot_NormalisesAsTorchvision(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 3, -1), imageloader.Options{BatchSize: 3})
		p := start(t, loader, d, Options{})
		eachBatch(t, p, cgotorch.DefaultStream(d), func(x *cgotorch.Exec, _ *Batch, images, _ *cgotorch.Tensor) {
			values := cgotorch.ToSlice[float32](x, images)
			for i := range values {
				px, y, c, n := i%side, i/side%side, i/side/side%3, i/side/side/3
				want := float32(pixel(n, px, y, c)) / 255
				want -= float32(kernels.ImageNetMean[c])
				want /= float32(kernels.ImageNetStd[c])
				if values[i] != want {
					t.Fatalf("element %d is %v, want %v", i, values[i], want)
				}
			}
		})
	})
}
