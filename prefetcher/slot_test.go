package prefetcher

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

func TestSlot_FlipIsLeftToRight(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 4, HorizontalFlip: 1})
		p := start(t, loader, d, Options{Mean: []float64{0}, Std: []float64{1}})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				values := cgotorch.ToSlice[float32](x, images)
				for px := range side {
					want := float64(pixel(0, side-1-px, 0, 0)) / 255
					if got := float64(values[px]); math.Abs(got-want) > 1e-6 {
						t.Errorf("column %d is %v, want %v", px, got, want)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A Do that outlives the loop body keeps the slot from being refilled.
func TestSlot_DoOutlivesBody(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		side, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer side.Close()
		begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
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
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A batch is over with its own body, also while its slot holds a later one.
func TestSlot_UsedInALaterBody(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		var first *Batch
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
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

// The end of a body is behind all that its Dos enqueued, also by a Do that did not use the batch itself.
func TestSlot_EndOfBodyIsRecorded(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var used *slot
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			used = batch.slot
			if err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { batch.Use(x); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(used.released); n != 2 {
			t.Errorf("%d events behind the batch, want that of its Do and that of its body", n)
		}
	})
}

// The images are torchvision's to the bit: uint8 to float32, divided by 255, less the mean, divided by std, each rounded to float32.
func TestSlot_NormalisesAsTorchvision(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 3, -1), imageloader.Options{BatchSize: 3})
		p := start(t, loader, d, Options{})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				values := cgotorch.ToSlice[float32](x, images)
				for i := range values {
					px, y, c, n := i%side, i/side%side, i/side/side%3, i/side/side/3
					want := float32(pixel(n, px, y, c)) / 255
					want -= float32(imageNetMean[c])
					want /= float32(imageNetStd[c])
					if values[i] != want {
						t.Fatalf("element %d is %v, want %v", i, values[i], want)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
