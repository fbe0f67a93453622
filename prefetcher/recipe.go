package prefetcher

import (
	"fmt"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
)

// recipe holds the chosen augmentations and their memory on the device. All batches use that
// memory, one after another, on the copy stream.
type recipe struct {
	o     Options
	shape shape
	table *cgotorch.Tensor // the normalised value of each pixel value

	steps     *cgotorch.Tensor // float32 [N, S, 8], or nil if no image has steps
	augmented *cgotorch.Tensor // uint8 [N, H, W, C], the images after their steps; nil if steps is nil
	erased    *cgotorch.Tensor // int32 [N, 4], or nil if nothing is erased

	free chan *parameters // the parameters that no batch uses; has room for all of them
}

// parameters holds the random choices for a batch in page-locked memory, from which the device
// copies them.
type parameters struct {
	slab   *cgotorch.HostSlab
	steps  []float32
	erased []int32
	mix    drawnMix
}

// stepsOf returns the greatest number of steps that an image has.
func (o Options) stepsOf() int {
	n := 0
	if o.VerticalFlip > 0 {
		n++
	}
	if o.TrivialAugmentWide {
		n++
	}
	if o.ColorJitter.on() {
		n += jitterSteps
	}
	if o.Grayscale > 0 {
		n++
	}
	return n
}

// The method `mixes` reports whether images and labels are mixed.
func (o Options) mixes() bool { return o.MixUp.Alpha != 0 || o.CutMix.Alpha != 0 }

// The method `draws` reports whether the options need any random choice.
func (o Options) draws() bool { return o.stepsOf() > 0 || o.RandomErasing.on() || o.mixes() }

const stepValues = len(images.Step{})

// The method `allocate` makes the device memory. It also makes as many values of type parameters
// as `batches` says, one for each batch that may be on its way. If `allocate` fails, the method
// `close` frees what it has made.
func (r *recipe) allocate(x *cgotorch.Exec, batches int) error {
	n, h, w, c := int64(r.shape.batch), int64(r.shape.height), int64(r.shape.width), int64(r.shape.channels)
	r.table = x.Keep(images.NormalizationTable(x, r.o.Mean, r.o.Std, r.o.DType))
	steps, boxes := 0, 0
	if s := r.o.stepsOf(); s > 0 {
		r.steps = x.Keep(x.Empty(cgotorch.Float32, n, int64(s), int64(stepValues)))
		r.augmented = x.Keep(x.Empty(cgotorch.Uint8, n, h, w, c))
		steps = r.shape.batch * s * stepValues
	}
	if r.o.RandomErasing.on() {
		r.erased = x.Keep(x.Empty(cgotorch.Int32, n, 4))
		boxes = r.shape.batch * 4
	}
	r.free = make(chan *parameters, batches)
	if !r.o.draws() {
		return nil
	}
	for range batches {
		p := &parameters{}
		r.free <- p
		if steps+boxes == 0 {
			continue
		}
		slab, err := cgotorch.NewHostSlab(4 * (steps + boxes))
		if err != nil {
			return err
		}
		p.slab = slab
		memory := unsafe.Pointer(unsafe.SliceData(slab.Bytes()))
		p.steps = unsafe.Slice((*float32)(memory), steps)
		p.erased = unsafe.Slice((*int32)(unsafe.Add(memory, 4*steps)), boxes)
		if x.Device().IsCUDA() {
			if err := slab.Pin(); err != nil {
				return err
			}
		}
	}
	return nil
}

// The method `draw` fills p with the random choices for the batch `host`.
func (r *recipe) draw(p *parameters, host *imageloader.HostBatch) {
	o, height, width := r.o, r.shape.height, r.shape.width
	if p.slab != nil {
		p.slab.HostWrites()
	}
	if r.steps != nil {
		most := o.stepsOf()
		clear(p.steps)
		steps := make([]images.Step, 0, most)
		for i := range host.N {
			k := key(host.Keys[i])
			steps = o.steps(k, steps[:0], height, width)
			for s, step := range steps {
				copy(p.steps[(i*most+s)*stepValues:], step[:])
			}
		}
	}
	if r.erased != nil {
		for i := range host.N {
			box := o.RandomErasing.box(key(host.Keys[i]), height, width)
			copy(p.erased[4*i:], box[:])
		}
	}
	p.mix = drawnMix{share: 1}
	if o.mixes() {
		p.mix = drawMix(key(host.Keys[0]), o.MixUp, o.CutMix, height, width)
	}
	p.mix.images.Fill = o.RandomErasing.Value
}

// The method `steps` appends to `to` the steps for the image with key k.
func (o Options) steps(k key, to []images.Step, height, width int) []images.Step {
	flip, grey := k.draw(drawFlipGrey)
	if flip.unit() < o.VerticalFlip {
		to = append(to, images.FlipVertical())
	}
	if o.TrivialAugmentWide {
		to = append(to, trivialStep(k, height, width))
	}
	to = o.ColorJitter.steps(k, to)
	if grey.unit() < o.Grayscale {
		to = append(to, images.Grayscale())
	}
	return to
}

// takeBack makes p free for a later batch. The caller has made sure that no copy reads p any
// more. p may be nil.
func (r *recipe) takeBack(p *parameters) {
	if p != nil {
		r.free <- p
	}
}

// The method `send` enqueues the copy of the random choices for the first n images, from p to the
// device.
func (r *recipe) send(x *cgotorch.Exec, p *parameters, n int) {
	if r.steps != nil {
		cgotorch.CopyFrom(x, first(x, r.steps, n), p.steps[:n*r.o.stepsOf()*stepValues])
	}
	if r.erased != nil {
		cgotorch.CopyFrom(x, first(x, r.erased, n), p.erased[:n*4])
	}
}

// The method `images` enqueues the work that makes n normalised images from `pixels`. `flips` may
// be nil. p is nil if the options need no random choice.
func (r *recipe) images(x *cgotorch.Exec, pixels, flips, out *cgotorch.Tensor, p *parameters, n int) {
	if r.steps != nil {
		augmented := first(x, r.augmented, n)
		images.Augment(x, pixels, flips, first(x, r.steps, n), augmented)
		pixels, flips = augmented, nil
	}
	if r.erased == nil && !r.o.mixes() {
		images.Normalize(x, pixels, flips, r.table, out)
		return
	}
	mix := p.mix.images
	if r.erased != nil {
		mix.Erased = first(x, r.erased, n)
	}
	images.Mix(x, pixels, flips, r.table, out, mix)
}

// The method `fits` returns an error if the batch lacks the keys that the augmentations need. It
// also returns an error if MixUp or CutMix would read a label that is not a class.
func (r *recipe) fits(host *imageloader.HostBatch) error {
	if r.o.draws() && len(host.Keys) != host.N {
		return fmt.Errorf("prefetcher: batch %d of epoch %d has %d keys for %d images, from which its augmentations would be drawn", host.Index, host.Epoch, len(host.Keys), host.N)
	}
	if r.o.mixes() {
		for i, label := range host.Labels {
			if label < 0 || label >= int64(r.o.Classes) {
				return fmt.Errorf("prefetcher: image %d of batch %d of epoch %d has label %d; Options.Classes is %d", i, host.Index, host.Epoch, label, r.o.Classes)
			}
		}
	}
	return nil
}

// The method `bytes` returns the number of bytes that the method `send` copies for n images.
func (r *recipe) bytes(n int) int64 {
	var bytes int
	if r.steps != nil {
		bytes += 4 * n * r.o.stepsOf() * stepValues
	}
	if r.erased != nil {
		bytes += 4 * n * 4
	}
	return int64(bytes)
}

// The method `close` frees the memory. All values of type parameters must have been given back.
func (r *recipe) close() {
	for _, t := range []*cgotorch.Tensor{r.table, r.steps, r.augmented, r.erased} {
		t.Close()
	}
	for {
		select {
		case p := <-r.free:
			if p.slab != nil {
				p.slab.Close() //edge:drawn-memory-freed TestAugmentations_HaveNoRace
			}
		default:
			return
		}
	}
}

// The function `first` returns the first n elements of t along dimension 0. If t has exactly n
// elements there, it returns t itself.
func first(x *cgotorch.Exec, t *cgotorch.Tensor, n int) *cgotorch.Tensor {
	if int64(n) == t.Shape()[0] {
		return t
	}
	return x.Narrow(t, 0, 0, n)
}
