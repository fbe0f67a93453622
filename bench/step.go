package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchStep measures a training step of ResNet-50. The batch is resident, or comes from the
// prefetcher, or is copied in the usual ways. The prefetcher gets one decoded batch again and again
// from page-locked memory, so that it never waits for a loader. PyTorch trains on a resident batch.
// All sides alternate in blocks of steps. Our sides train the same model on the same device.
func benchStep(c *config, emit func(row)) error {
	steps, r := c.or(1, 20), imagenet
	r.batch = c.or(2, r.batch)
	s := switches{benchmark: c.device.IsCUDA()}
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	f := &feed{}
	defer f.close()
	if err := f.open(c, r); err != nil {
		return err
	}
	err = p.do(nil, "prepare", "recipe", r.name, "batch", r.batch, "size", r.size, "device", c.device.String())
	if err != nil {
		return err
	}
	ways := f.ways()
	var sides []side
	for _, w := range ways {
		sides = append(sides, func() (float64, error) { return f.block(c, steps, w) })
	}
	values, err := interleave(c.roundsOr(15), append(sides, p.value("milliseconds", "block", "steps", steps))...)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("blocks of %d steps in turns; ResNet-50 of %d classes, batch %d of 3x224x224, autocast to bfloat16, channels last, fused SGD with Nesterov momentum; %s; %v; %s",
		steps, r.classes, r.batch, c.settings(), s, p.versions)
	for i, w := range ways {
		peer, theirs := "ours, resident", values[0]
		if i == 0 {
			peer, theirs = "PyTorch eager", values[len(ways)]
		}
		emit(inTurns(fmt.Sprintf("step/resnet50/bf16/%d/%s", r.batch, w.name), values[i], "ms", peer, theirs, lower,
			fmt.Sprintf("%s; ours %v; peer %v; %s", w.text, values[i], theirs, common)))
	}
	return nil
}

// feed gives batches to one model in different ways.
type feed struct {
	*learner
	replay *replay
	ahead  *prefetcher.Prefetcher
	next   func() (*prefetcher.Batch, error, bool)
	stop   func()
	batch  *prefetcher.Batch // borrowed until the function `next` is called again

	// The resident batch. Images are float32 [N, C, H, W] channels last, normalized. Labels are int64
	// [N].
	images, labels *cgotorch.Tensor
	pixels, nhwc   *cgotorch.Tensor   // the targets of copies: uint8 and float32, [N, H, W, C]
	into           *cgotorch.Tensor   // a view of nhwc as [N, C, H, W]
	table          *cgotorch.Tensor   // the table for the normalization
	floats         *cgotorch.HostSlab // page-locked on a GPU
	pageable       []float32
}

func (f *feed) open(c *config, r recipe) (err error) {
	if f.learner, err = r.learner(c, 1, 1_000_000); err != nil {
		return err
	}
	if f.replay, err = newReplay(c, r); err != nil {
		return err
	}
	if f.ahead, err = prefetcher.New(f.replay, c.device, prefetcher.Options{}); err != nil {
		return err
	}
	f.next, f.stop = iter.Pull2(f.ahead.Epoch(context.Background()))
	n, height, width, channels := f.replay.Shape()
	shape := []int64{int64(n), int64(height), int64(width), int64(channels)}
	f.pageable = make([]float32, n*height*width*channels)
	if f.floats, err = cgotorch.NewHostSlab(c.device, 4*len(f.pageable)); err != nil {
		return err
	}
	return f.stream.Do(func(x *cgotorch.Exec) error {
		f.table = x.Keep(images.NormalizationTable(x, vision.ImageNetMean[:], vision.ImageNetStd[:], cgotorch.Float32))
		f.pixels = x.Keep(x.Empty(cgotorch.Uint8, shape...))
		f.nhwc = x.Keep(x.Empty(cgotorch.Float32, shape...))
		f.into = x.Keep(x.Permute(f.nhwc, 0, 3, 1, 2))
		f.labels = x.Keep(cgotorch.FromSlice(x, f.replay.batch.Labels))
		images, _ := f.uint8OnStream(x)
		f.images = x.Keep(x.Clone(images))
		copy(f.pageable, cgotorch.ToSlice[float32](x, f.nhwc))
		copy(f.floats.Bytes(), cgotorch.ToBytes(x, f.nhwc))
		return nil
	})
}

// way is a way to give a step its batch.
type way struct {
	name, text string
	wait       func() error // called before the Do, unless nil
	take       func(x *cgotorch.Exec) (images, labels *cgotorch.Tensor)
}

// ways returns the ways that benchStep compares. The first is the resident batch.
func (f *feed) ways() []way {
	return []way{
		{"resident", "batch on the device, normalised, float32", nil,
			func(*cgotorch.Exec) (images, labels *cgotorch.Tensor) { return f.images, f.labels }},
		{"prefetched", "prefetcher, uint8 from page-locked memory, normalised and flipped on its stream", f.advance,
			func(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) { return f.batch.Use(x) }},
		{"same-stream-uint8", "uint8 copied from page-locked memory and normalised on the training stream", nil, f.uint8OnStream},
		{"same-stream-float32", "normalised float32 copied from page-locked memory on the training stream", nil,
			func(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
				memory := f.floats.Bytes()
				return f.float32OnStream(x, unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), len(memory)/4))
			}},
		{"pageable-float32", "normalised float32 copied from ordinary memory", nil,
			func(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) { return f.float32OnStream(x, f.pageable) }},
	}
}

// block runs the given number of steps and returns milliseconds per step. The measured time ends
// when the last step and the copies ahead have ended on the device.
func (f *feed) block(c *config, steps int, w way) (float64, error) {
	seconds, err := c.secondsEach(steps, func() error {
		if w.wait != nil {
			if err := w.wait(); err != nil {
				return err
			}
		}
		return f.stream.Do(func(x *cgotorch.Exec) error {
			images, labels := w.take(x)
			f.step(x, images, labels)
			return nil
		})
	})
	return seconds * 1e3, err
}

// advance gives the prefetcher's current batch back and takes the next batch.
func (f *feed) advance() error {
	batch, err, ok := f.next()
	if !ok {
		return errors.New("the prefetcher's epoch has ended")
	}
	f.batch = batch
	return err
}

// uint8OnStream does the prefetcher's work on the training stream, without the flip.
func (f *feed) uint8OnStream(x *cgotorch.Exec) (_, labels *cgotorch.Tensor) {
	cgotorch.CopyFrom(x, f.pixels, f.replay.batch.Images)
	images.Normalize(x, f.pixels, nil, f.table, f.into)
	return f.into, f.labels
}

func (f *feed) float32OnStream(x *cgotorch.Exec, from []float32) (images, labels *cgotorch.Tensor) {
	cgotorch.CopyFrom(x, f.nhwc, from)
	return f.into, f.labels
}

func (f *feed) close() {
	if f.stop != nil {
		f.stop()
	}
	f.ahead.Close()
	for _, t := range []*cgotorch.Tensor{f.images, f.labels, f.pixels, f.nhwc, f.into, f.table} {
		t.Close()
	}
	f.floats.Close()
	if f.replay != nil {
		f.replay.close()
	}
	f.learner.close()
}

// replay is a source of batches that is never slower than the device. It yields one decoded batch
// again and again from page-locked memory. Its epochs do not end.
type replay struct {
	batch  *imageloader.HostBatch
	pinner imageloader.Pinner
}

// newReplay decodes the recipe's first batch and keeps it.
func newReplay(c *config, r recipe) (*replay, error) {
	path, err := c.find(r.archive)
	if err != nil {
		return nil, err
	}
	loader, err := r.open(c, path, 1, r.batch)
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	for b, err := range loader.Epoch(context.Background()) {
		if err != nil {
			return nil, err
		}
		memory, err := arena.MapPages(len(b.Images))
		if err != nil {
			return nil, err
		}
		copy(memory, b.Images)
		kept := &imageloader.HostBatch{N: b.N, Height: b.Height, Width: b.Width, Channels: b.Channels, Images: memory,
			Labels: slices.Clone(b.Labels), Flip: slices.Clone(b.Flip), Names: slices.Clone(b.Names)}
		b.Release()
		return &replay{batch: kept}, nil
	}
	return nil, errors.New("the archive has no batch")
}

// Epoch yields the batch again and again, until ctx ends.
func (r *replay) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; ctx.Err() == nil; i++ {
			b := r.batch
			again := &imageloader.HostBatch{N: b.N, Height: b.Height, Width: b.Width, Channels: b.Channels,
				Images: b.Images, Labels: b.Labels, Flip: b.Flip, Names: b.Names, Index: i}
			if !yield(again, nil) {
				return
			}
		}
	}
}

// Shape returns the shape of the batch.
func (r *replay) Shape() (n, height, width, channels int) {
	return r.batch.N, r.batch.Height, r.batch.Width, r.batch.Channels
}

// Pin pins the memory of the images.
func (r *replay) Pin(p imageloader.Pinner) error {
	r.pinner = p
	return p.Pin(r.batch.Images)
}

func (r *replay) close() {
	if r.pinner != nil {
		r.pinner.Unpin(r.batch.Images)
	}
	_ = arena.UnmapPages(r.batch.Images)
}
