package prefetcher

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

// Batch is a batch of images on the device, lent to the body of the loop that yielded it. Its
// memory is refilled afterwards.
type Batch struct {
	N     int               // images
	Epoch int               // as the loader counts
	Index int               // in the epoch, from 0
	Names []string          // of the archive's members, one an image
	State imageloader.State // the loader's position behind this batch, to resume from

	slot  *slot
	ahead *Prefetcher
}

// Use makes x's stream wait, on the device, for the batch's copy, and returns images and labels.
// The host does not wait. The images are [N, C, H, W] of the options' DType, normalised, and
// channels last unless the options say otherwise. The labels are int64 [N]. With MixUp or CutMix
// they are float32 [N, Classes], the share of each class. Exec.CrossEntropy takes both.
//
// Images and labels are freed with x's Do and cannot be kept: Clone them to keep a copy. A batch
// may be used in several Dos, on several streams. Each Exec that reads it calls Use.
//
// x's Do fails with [ErrBatchOver] outside the loop body that yielded the batch. In a captured
// function it fails with [cgotorch.ErrNotCapturable]: use the batch around it.
func (b *Batch) Use(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	whose := b.String()
	if x.Capturing() {
		x.Fail("Batch.Use", fmt.Errorf("prefetcher: %s is used inside a capture, and its copy is no part of the graph: use it in the Do, and give its tensors to Captured.Run: %w", whose, cgotorch.ErrNotCapturable))
	}
	if x.Device() != b.ahead.device {
		x.Fail("Batch.Use", fmt.Errorf("prefetcher: %s lies on %v and is used on %v: %w: use it on a stream of its device", whose, b.ahead.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	b.ahead.stall.atEnd(x) // before the slot can be free; unwinds where x cannot be used
	if err := b.slot.use(x, b); err != nil {
		x.Fail("Batch.Use", err)
	}
	b.ahead.stall.used(b, x)
	whole := b.slot.labels
	if b.slot.soft != nil {
		whole = b.slot.soft
	}
	images, labels = x.Lend(b.slot.images, whose), x.Lend(whole, whose)
	if b.N < b.ahead.shape.batch {
		images, labels = x.Narrow(images, 0, 0, b.N), x.Narrow(labels, 0, 0, b.N)
	}
	return images, labels
}

func (b *Batch) String() string { return fmt.Sprintf("batch %d of epoch %d", b.Index, b.Epoch) }
