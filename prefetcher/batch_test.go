package prefetcher

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestBatch_UsedAfterItsBody(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var kept *Batch
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			kept = batch
		}
		err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
			kept.Use(x)
			t.Error("Use returned")
			return nil
		})
		if !errors.Is(err, ErrBatchOver) || !strings.Contains(err.Error(), "batch 1 of epoch 0") {
			t.Errorf("Use after the body: %v", err)
		}
	})
}

func TestBatch_TwoDosTwoStreams(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 24, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		side := torchtest.NewStream(t, d)
		main := cgotorch.DefaultStream(d)
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			for _, stream := range []*cgotorch.Stream{main, side, main} {
				torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
					images, labels := batch.Use(x)
					checkBatch(t, x, batch, images, labels, 2*batch.Index)
				})
			}
			torchtest.DoOn(t, main, func(x *cgotorch.Exec) {
				other := x.On(side)
				images, labels := batch.Use(other)
				checkBatch(t, other, batch, images, labels, 2*batch.Index)
			})
		}
	})
}

func TestBatch_KeepNeedsClone(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 3, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			for name, keep := range map[string]func(x *cgotorch.Exec, images, labels *cgotorch.Tensor) *cgotorch.Tensor{
				"images": func(x *cgotorch.Exec, images, _ *cgotorch.Tensor) *cgotorch.Tensor { return x.Keep(images) },
				"a view": func(x *cgotorch.Exec, images, _ *cgotorch.Tensor) *cgotorch.Tensor {
					return x.Keep(x.Select(images, 0, 0))
				},
				"labels": func(x *cgotorch.Exec, _, labels *cgotorch.Tensor) *cgotorch.Tensor { return x.Keep(labels) },
			} {
				err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
					images, labels := batch.Use(x)
					keep(x, images, labels)
					return nil
				})
				if err == nil || !strings.Contains(err.Error(), "Clone") || !strings.Contains(err.Error(), batch.String()) {
					t.Errorf("Keep of %s: %v", name, err)
				}
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				return x.Keep(x.Clone(images)).Close()
			})
			if err != nil {
				t.Errorf("Keep of a clone: %v", err)
			}
		}
	})
}

// A backward fails if the slot of its batch has been refilled. It does not compute with the next
// batch in place of its own.
func TestBatch_LateBackward(t *testing.T) {
	for _, o := range []Options{{Depth: 1}, {Depth: 1, Augmentations: Augmentations{CutMix: CutMix{1}}, Classes: 3}} {
		torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) { lateBackward(t, d, o) })
	}
}

func lateBackward(t *testing.T, d cgotorch.Device, o Options) {
	loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, d, o)
	stream := cgotorch.DefaultStream(d)
	var weight, late *cgotorch.Tensor
	for batch, err := range p.Epoch(context.Background()) {
		must.Do(t, err)
		if batch.Index > 0 {
			continue
		}
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			images, _ := batch.Use(x)
			weight = x.Keep(x.OnesLike(images))
			weight.SetRequiresGrad(true)
			late = x.Keep(x.Sum(x.Mul(weight, images)))
		})
	}
	err := stream.Do(func(x *cgotorch.Exec) error { x.Backward(late); return nil })
	if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("late backward: %v", err)
	}
	weight.Close()
	late.Close()
}

// A Do releases its batch at its end, even if the Do fails.
func TestBatch_FailedDo(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, labels := batch.Use(x)
				x.MatMul(images, labels)
				return nil
			})
			if !errors.Is(err, cgotorch.ErrInvalidArgument) {
				t.Fatalf("Do returned %v", err)
			}
			if b := batch.slot; len(b.released) < 1 {
				t.Fatalf("%d events record the end of the use, want 1", len(b.released))
			}
		}
	})
}

// If Use fails because its Exec cannot be used, the slot does not stay in use.
func TestBatch_UseAfterAFailure(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		batches := 0
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			batches++
			_ = cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				func() {
					defer func() { recover() }()
					x.Call("aten::no_such_operator")
				}()
				defer func() { recover() }()
				batch.Use(x)
				return nil
			})
		}
		if batches != 10 {
			t.Errorf("%d batches, want 10", batches)
		}
	})
}
