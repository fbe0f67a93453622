package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchStep measures a training step of ResNet-50. The batch is resident, or comes from the
// prefetcher, or is copied in the usual ways. The prefetcher reads decoded images from
// page-locked memory, so that it never waits for a loader. PyTorch trains on a resident batch.
// All sides alternate in blocks of steps. Our sides train the same model on the same device.
func benchStep(c *config, emit func(row)) error {
	steps := c.or(1, 20)
	s := switches{benchmark: c.device.IsCUDA()}
	p, err := c.startPeer("step.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	f, err := newFeed(c, imagenet, c.or(2, imagenet.batch))
	if err != nil {
		return err
	}
	defer f.close()
	size := c.or(2, imagenet.batch)
	err = p.do(nil, "prepare", "recipe", imagenet.name, "batch", size, "size", imagenet.size, "device", c.device.String())
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
	resident, pytorch := values[0], values[len(ways)]
	common := fmt.Sprintf("blocks of %d steps in turns; ResNet-50 of %d classes, batch %d of 3x224x224, autocast to bfloat16, channels last, fused SGD with Nesterov momentum; %s; %v; %s",
		steps, imagenet.classes, size, c.settings(), s, p.versions)
	prefix := fmt.Sprintf("step/resnet50/bf16/%d/", size)
	report := func(name, text string, ours sample, peer string, theirs sample) {
		emit(inTurns(prefix+name, ours, "ms", peer, theirs, lower, fmt.Sprintf("%s; ours %v; peer %v; %s", text, ours, theirs, common)))
	}
	report(ways[0].name, ways[0].text, resident, "PyTorch eager", pytorch)
	for i, w := range ways[1:] {
		report(w.name, w.text, values[i+1], "ours, resident", resident)
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
	pixels, nhwc   *cgotorch.Tensor // the targets of copies: uint8 and float32, [N, H, W, C]
	into           *cgotorch.Tensor // a view of nhwc as [N, C, H, W]
	table          *cgotorch.Tensor // the table for the normalization
	floats         *cgotorch.HostSlab
	pageableBytes  []byte
	pageableFloats []float32
}

func newFeed(c *config, r recipe, size int) (*feed, error) {
	path, err := c.find(r.archive)
	if err != nil {
		return nil, err
	}
	loader, err := r.open(c, path, 1, size)
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	f := &feed{}
	if err := f.open(c, r, func() (*replay, error) { return newReplay(loader, c.or(2, 8)) }); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *feed) open(c *config, r recipe, decode func() (*replay, error)) error {
	var err error
	if f.learner, err = r.learner(c, 1, 1_000_000); err != nil {
		return err
	}
	if f.replay, err = decode(); err != nil {
		return err
	}
	if f.ahead, err = prefetcher.New(f.replay, c.device, prefetcher.Options{}); err != nil {
		return err
	}
	f.next, f.stop = iter.Pull2(f.ahead.Epoch(context.Background()))
	n, height, width, channels := f.replay.Shape()
	f.pageableBytes = append([]byte(nil), f.replay.batches[0].Images...)
	f.pageableFloats = make([]float32, len(f.pageableBytes))
	if f.floats, err = cgotorch.NewHostSlab(4 * len(f.pageableBytes)); err != nil {
		return err
	}
	if c.device.IsCUDA() {
		if err := f.floats.Pin(); err != nil {
			return err
		}
	}
	return f.stream.Do(func(x *cgotorch.Exec) error {
		f.table = x.Keep(images.NormalizationTable(x, vision.ImageNetMean[:], vision.ImageNetStd[:], cgotorch.Float32))
		shape := []int64{int64(n), int64(height), int64(width), int64(channels)}
		f.pixels = x.Keep(x.Empty(cgotorch.Uint8, shape...))
		f.nhwc = x.Keep(x.Empty(cgotorch.Float32, shape...))
		f.into = x.Keep(x.Permute(f.nhwc, 0, 3, 1, 2))
		f.labels = x.Keep(cgotorch.FromSlice(x, f.replay.batches[0].Labels))
		images, _ := f.sameStreamUint8(x)
		f.images = x.Keep(x.Clone(images))
		copy(f.pageableFloats, cgotorch.ToSlice[float32](x, f.nhwc))
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
		{"same-stream-uint8", "uint8 copied from page-locked memory and normalised on the training stream", nil, f.sameStreamUint8},
		{"same-stream-float32", "normalised float32 copied from page-locked memory on the training stream", nil, f.sameStreamFloat32},
		{"pageable-uint8", "uint8 copied from ordinary memory and normalised on the training stream", nil, f.pageableUint8},
		{"pageable-float32", "normalised float32 copied from ordinary memory", nil, f.pageableFloat32},
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

func (f *feed) sameStreamUint8(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	cgotorch.CopyFrom(x, f.pixels, f.replay.batches[0].Images)
	return f.normalized(x)
}

func (f *feed) pageableUint8(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	cgotorch.CopyFrom(x, f.pixels, f.pageableBytes)
	return f.normalized(x)
}

// normalized does the prefetcher's work on the training stream, without the flip.
func (f *feed) normalized(x *cgotorch.Exec) (_, labels *cgotorch.Tensor) {
	images.Normalize(x, f.pixels, nil, f.table, f.into)
	return f.into, f.labels
}

func (f *feed) sameStreamFloat32(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	memory := f.floats.Bytes()
	cgotorch.CopyFrom(x, f.nhwc, unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), len(memory)/4))
	return f.into, f.labels
}

func (f *feed) pageableFloat32(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	cgotorch.CopyFrom(x, f.nhwc, f.pageableFloats)
	return f.into, f.labels
}

func (f *feed) close() {
	if f.stop != nil {
		f.stop()
	}
	if f.ahead != nil {
		f.ahead.Close()
	}
	for _, t := range []*cgotorch.Tensor{f.images, f.labels, f.pixels, f.nhwc, f.into, f.table} {
		t.Close()
	}
	if f.floats != nil {
		f.floats.Close()
	}
	if f.replay != nil {
		f.replay.close()
	}
	if f.learner != nil {
		f.learner.close()
	}
}
