package prefetcher

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

// Batch is a batch of images on the device, lent to the body of the loop that yielded it. After
// the body the next batches are written into the same memory.
type Batch struct {
	N     int               // number of images
	Epoch int               // number of the epoch, as the loader counts
	Index int               // number of the batch in the epoch, from 0
	Names []string          // names of the archive's members, one for each image
	State imageloader.State // the loader's position after this batch: Loader.Restore resumes there

	memory *imageMemory
	slot   *slot
	ahead  *Prefetcher
}

// Use returns the images and labels of the batch. It makes x's stream wait, on the device, for
// the batch's copy. The host does not wait. The images are [N, C, H, W] of Options.DType,
// normalised. They are channels last, unless Options.Contiguous is set. The labels are int64 [N].
// With MixUp or CutMix the labels are float32 [N, Classes], the share of each class.
// Exec.CrossEntropy takes both kinds.
//
// The images and labels are valid until x's Do ends. x.Keep refuses them: Clone them to keep a
// copy. Several Dos, on several streams, may use a batch. Each Exec that reads the batch calls
// Use.
//
// x's Do fails with [ErrBatchOver] outside the loop body that yielded the batch. It fails with
// [cgotorch.ErrInvalidArgument] if x's stream is on another device than the batch. It fails with
// [cgotorch.ErrNotCapturable] inside a capture: call Use before the capture and give the tensors
// to Captured.Run.
func (b *Batch) Use(x *cgotorch.Exec) (images, labels *cgotorch.Tensor) {
	whose, m := b.String(), b.memory
	b.ahead.use(x, "Batch.Use", b.slot, b)
	whole := m.labels
	if m.soft != nil {
		whole = m.soft
	}
	images, labels = x.Lend(m.images, whose), x.Lend(whole, whose)
	if b.N < b.ahead.shape.batch {
		images, labels = x.Narrow(images, 0, 0, b.N), x.Narrow(labels, 0, 0, b.N)
	}
	return images, labels
}

// use makes x's stream wait for the copy of the batch b, which lies in the slot s. It fails x's Do
// if x cannot use the batch.
func (p *copier[B]) use(x *cgotorch.Exec, op string, s *slot, b fmt.Stringer) {
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("prefetcher: %s is used inside a capture, and its copy is no part of the graph: use it in the Do, and give its tensors to Captured.Run: %w", b, cgotorch.ErrNotCapturable))
	}
	if x.Device() != p.device {
		x.Fail(op, fmt.Errorf("prefetcher: %s lies on %v and is used on %v: %w: use it on a stream of its device", b, p.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	// atEnd is called before slot.use. At the end of the Do, the event of atEnd is therefore recorded
	// before the slot can become free. If x cannot be used, atEnd panics before slot.use counts a
	// use.
	p.stall.atEnd(x)
	if err := s.use(x, b); err != nil {
		x.Fail(op, err)
	}
	p.stall.used(b, x)
}

// String returns the number of the batch, as messages give it.
func (b *Batch) String() string { return fmt.Sprintf("batch %d of epoch %d", b.Index, b.Epoch) }
