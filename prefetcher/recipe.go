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
	shape shape            // of a batch after Pad
	table *cgotorch.Tensor // the normalised value of each pixel value

	padded    *cgotorch.Tensor    // uint8 [N, H, W, C], the images after Pad; nil if nothing is added
	steps     *cgotorch.Tensor    // float32, the lists of steps of all passes, one after another; nil if no image has steps
	augmented *cgotorch.Tensor    // uint8 [N, H, W, C], the images after every second pass; nil if there are no passes
	copies    [2]*cgotorch.Tensor // uint8 [Width*N, H, W, C], AugMix's copies; nil without AugMix
	weights   *cgotorch.Tensor    // float32 [N, 1+Width], or nil without AugMix
	sigmas    *cgotorch.Tensor    // float32 [N, 2], or nil if nothing is blurred
	erased    *cgotorch.Tensor    // int32 [N, 4], or nil if nothing is erased

	free chan *parameters // the parameters that no batch uses; has room for all of them
}

// parameters holds the random choices for a batch in page-locked memory, from which the device
// copies them.
type parameters struct {
	slab    *cgotorch.HostSlab
	steps   []float32
	weights []float32
	sigmas  []float32
	erased  []int32
	mix     drawnMix

	// For AugMix, before and after are the passes on whole images before the copies are made and after
	// they are blended. Without AugMix all passes are in before.
	before, chains, after int
	used                  int // elements of steps that the passes need
	blurs                 bool
}

// Note [Passes of steps]
//
// A call of images.Augment reads a batch and writes another one. In each image only the first step
// of a call may look at other pixels than its own. So a list of steps is cut before each later step
// that does, and the pieces are done in passes, one call for all images. Images with fewer pieces
// than the others are copied in the remaining passes. The passes go back and forth between two
// batches of memory. AugMix makes all copies of all images in the same passes.

// leadsOf returns the greatest number of steps of an image that may begin a pass.
func (o Options) leadsOf() int {
	n := o.policyOf()
	if o.VerticalFlip > 0 {
		n++
	}
	return n
}

// stepsOf returns the greatest number of steps that an image has, without AugMix.
func (o Options) stepsOf() int {
	n := o.leadsOf()
	if o.ColorJitter.on() {
		n += jitterSteps
	}
	if o.Grayscale > 0 {
		n++
	}
	return n
}

// mixes reports whether images and labels are mixed.
func (o Options) mixes() bool { return o.MixUp.Alpha != 0 || o.CutMix.Alpha != 0 }

// draws reports whether the options need any random choice.
func (o Options) draws() bool {
	return o.stepsOf() > 0 || o.AugMix.on() || o.GaussianBlur.on() || o.RandomErasing.on() || o.mixes()
}

const stepValues = len(images.Step{})

// width returns the greatest number of steps of an image in one pass.
func (r *recipe) width() int {
	n := r.o.stepsOf()
	if r.o.AugMix.on() {
		n = max(n, r.o.AugMix.deepest())
	}
	return min(n, images.MaxSteps)
}

// passesOf returns the greatest number of passes of lists with so many steps, of which `leads` may
// begin a pass.
func passesOf(steps, leads int) int {
	if steps == 0 {
		return 0
	}
	return 1 + leads + steps/images.MaxSteps
}

// allocate makes the device memory. It also makes as many values of type parameters as `batches`
// says, one for each batch that may be on its way. If `allocate` fails, the method `close` frees
// what it has made.
func (r *recipe) allocate(x *cgotorch.Exec, batches int) error {
	n, h, w, c := int64(r.shape.batch), int64(r.shape.height), int64(r.shape.width), int64(r.shape.channels)
	r.table = x.Keep(images.NormalizationTable(x, r.o.Mean, r.o.Std, r.o.DType))
	if r.o.Pad.Left+r.o.Pad.Top+r.o.Pad.Right+r.o.Pad.Bottom > 0 {
		r.padded = x.Keep(x.Empty(cgotorch.Uint8, n, h, w, c))
	}
	lists := r.shape.batch * passesOf(r.o.stepsOf(), r.o.leadsOf())
	var weights, sigmas, boxes int
	if a := r.o.AugMix; a.on() {
		lists = r.shape.batch * (passesOf(r.o.stepsOf(), 2*r.o.leadsOf()+1) + a.Width*passesOf(a.deepest(), a.deepest()))
		weights = r.shape.batch * (1 + a.Width)
		for i := range r.copies {
			r.copies[i] = x.Keep(x.Empty(cgotorch.Uint8, n*int64(a.Width), h, w, c))
		}
		r.weights = x.Keep(x.Empty(cgotorch.Float32, n, int64(1+a.Width)))
	}
	steps := lists * r.width() * stepValues
	if steps > 0 {
		r.steps = x.Keep(x.Empty(cgotorch.Float32, int64(steps)))
	}
	if r.o.GaussianBlur.on() {
		sigmas = 2 * r.shape.batch
		r.sigmas = x.Keep(x.Empty(cgotorch.Float32, n, 2))
	}
	if steps+sigmas > 0 {
		r.augmented = x.Keep(x.Empty(cgotorch.Uint8, n, h, w, c))
	}
	if r.o.RandomErasing.on() {
		boxes = r.shape.batch * 4
		r.erased = x.Keep(x.Empty(cgotorch.Int32, n, 4))
	}
	r.free = make(chan *parameters, batches)
	if !r.o.draws() {
		return nil
	}
	for range batches {
		p := &parameters{}
		r.free <- p
		if steps+weights+sigmas+boxes == 0 {
			continue
		}
		slab, err := cgotorch.NewHostSlab(x.Device(), 4*(steps+weights+sigmas+boxes))
		if err != nil {
			return err
		}
		p.slab = slab
		memory := unsafe.Pointer(unsafe.SliceData(slab.Bytes()))
		floats := unsafe.Slice((*float32)(memory), steps+weights+sigmas)
		p.steps, p.weights, p.sigmas = floats[:steps], floats[steps:steps+weights], floats[steps+weights:]
		p.erased = unsafe.Slice((*int32)(unsafe.Add(memory, 4*len(floats))), boxes)
	}
	return nil
}

// draw fills p with the random choices for the batch `host`.
func (r *recipe) draw(p *parameters, host *imageloader.HostBatch) {
	o, height, width := r.o, r.shape.height, r.shape.width
	if p.slab != nil {
		p.slab.Touch(true)
	}
	p.used, p.before, p.chains, p.after = 0, 0, 0, 0
	if r.steps != nil {
		r.drawSteps(p, host, height, width)
	}
	p.blurs = false
	for i := range host.N {
		k := key(host.Keys[i])
		if r.weights != nil {
			o.AugMix.weights(k, p.weights[i*(1+o.AugMix.Width):])
		}
		if r.sigmas != nil {
			p.sigmas[2*i] = o.GaussianBlur.sigma(k)
			p.sigmas[2*i+1] = p.sigmas[2*i]
			p.blurs = p.blurs || p.sigmas[2*i] > 0
		}
		if r.erased != nil {
			box := o.RandomErasing.box(k, height, width)
			copy(p.erased[4*i:], box[:])
		}
	}
	p.mix = drawnMix{share: 1}
	if o.mixes() {
		p.mix = drawMix(key(host.Keys[0]), o.MixUp, o.CutMix, height, width)
	}
	p.mix.images.Fill = o.RandomErasing.Value
}

// drawSteps fills p.steps. See Note [Passes of steps].
func (r *recipe) drawSteps(p *parameters, host *imageloader.HostBatch, height, width int) {
	o, list := r.o, make([]images.Step, 0, 2*images.MaxSteps)
	clear(p.steps)
	if !o.AugMix.on() {
		p.before = r.passes(p, host.N, func(i int) []images.Step {
			return o.after(key(host.Keys[i]), o.before(key(host.Keys[i]), list, height, width))
		})
		return
	}
	p.before = r.passes(p, host.N, func(i int) []images.Step { return o.before(key(host.Keys[i]), list, height, width) })
	p.chains = r.passes(p, host.N*o.AugMix.Width, func(i int) []images.Step {
		return o.chain(key(host.Keys[i%host.N]), i/host.N, list, height, width)
	})
	p.after = r.passes(p, host.N, func(i int) []images.Step { return o.after(key(host.Keys[i]), list) })
}

// passes appends the lists of n images to p.steps, cut into passes. It returns the number of
// passes.
func (r *recipe) passes(p *parameters, n int, steps func(i int) []images.Step) (passes int) {
	width := r.width()
	size := width * stepValues
	for i := range n {
		pass, at := 0, 0
		for s, step := range steps(i) {
			if s > 0 && (at == width || step.Leads()) {
				pass, at = pass+1, 0
			}
			copy(p.steps[p.used+(pass*n+i)*size+at*stepValues:], step[:])
			passes, at = max(passes, pass+1), at+1
		}
	}
	p.used += passes * n * size
	return passes
}

// before appends to `to` the steps for the image with key k up to the policy.
func (o Options) before(k key, to []images.Step, height, width int) []images.Step {
	if flip, _ := k.draw(drawFlipGrey); flip.unit() < o.VerticalFlip {
		to = append(to, images.FlipVertical())
	}
	return o.policy(k, to, height, width)
}

// after appends to `to` the steps for the image with key k behind the policy.
func (o Options) after(k key, to []images.Step) []images.Step {
	to = o.ColorJitter.steps(k, to)
	if _, grey := k.draw(drawFlipGrey); grey.unit() < o.Grayscale {
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

// send enqueues the copy of the random choices for the first n images, from p to the device.
func (r *recipe) send(x *cgotorch.Exec, p *parameters, n int) {
	if p.used > 0 {
		cgotorch.CopyFrom(x, first(x, r.steps, p.used), p.steps[:p.used])
	}
	if r.weights != nil {
		cgotorch.CopyFrom(x, first(x, r.weights, n), p.weights[:n*(1+r.o.AugMix.Width)])
	}
	if r.sigmas != nil {
		cgotorch.CopyFrom(x, first(x, r.sigmas, n), p.sigmas[:2*n])
	}
	if r.erased != nil {
		cgotorch.CopyFrom(x, first(x, r.erased, n), p.erased[:n*4])
	}
}

// images enqueues the work that makes n normalised images from `pixels`, which it may overwrite.
// `flips` may be nil. p is nil if the options need no random choice.
func (r *recipe) images(x *cgotorch.Exec, pixels, flips, out *cgotorch.Tensor, p *parameters, n int) {
	if r.padded != nil {
		padded := first(x, r.padded, n)
		images.Pad(x, pixels, flips, padded, r.o.Pad)
		pixels, flips = padded, nil
	}
	if r.augmented != nil {
		pixels, flips = r.augment(x, pixels, flips, p, n)
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

// augment enqueues the passes of steps, AugMix and GaussianBlur. It returns the n images after
// them, and the flips that are still to be done.
func (r *recipe) augment(x *cgotorch.Exec, pixels, flips *cgotorch.Tensor, p *parameters, n int) (_, left *cgotorch.Tensor) {
	spare, at := first(x, r.augmented, n), 0
	next := func(lists int) *cgotorch.Tensor {
		size := lists * r.width() * stepValues
		steps := x.Narrow(r.steps, 0, at, size)
		at += size
		return x.View(steps, int64(lists), int64(r.width()), int64(stepValues))
	}
	whole := func(passes int) {
		for range passes {
			images.Augment(x, pixels, flips, next(n), spare)
			pixels, spare, flips = spare, pixels, nil
		}
	}
	whole(p.before)
	if r.weights != nil {
		many := n * r.o.AugMix.Width
		copies, other := first(x, r.copies[0], many), first(x, r.copies[1], many)
		images.Augment(x, pixels, flips, next(many), copies)
		for range p.chains - 1 {
			images.Augment(x, copies, nil, next(many), other)
			copies, other = other, copies
		}
		images.Blend(x, pixels, flips, copies, first(x, r.weights, n), spare)
		pixels, spare, flips = spare, pixels, nil
	}
	whole(p.after)
	if p.blurs {
		images.GaussianBlur(x, pixels, first(x, r.sigmas, n), spare, r.o.GaussianBlur.Kernel, r.o.GaussianBlur.Kernel)
		pixels = spare
	}
	return pixels, flips
}

// fits returns an error if the batch lacks the keys that the augmentations need. It also returns an
// error if MixUp or CutMix would read a label that is not a class.
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

// bytes returns the number of bytes that the method `send` copies from p for n images.
func (r *recipe) bytes(p *parameters, n int) int64 {
	if p == nil {
		return 0
	}
	elements := p.used
	for _, t := range []*cgotorch.Tensor{r.weights, r.sigmas, r.erased} {
		if t != nil {
			elements += n * int(t.Shape()[1])
		}
	}
	return int64(4 * elements)
}

// close frees the memory. All values of type parameters must have been given back.
func (r *recipe) close() {
	for _, t := range []*cgotorch.Tensor{r.table, r.padded, r.steps, r.augmented, r.copies[0], r.copies[1], r.weights, r.sigmas, r.erased} {
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

// first returns the first n elements of t along dimension 0. If t has exactly n elements there, it
// returns t itself.
func first(x *cgotorch.Exec, t *cgotorch.Tensor, n int) *cgotorch.Tensor {
	if int64(n) == t.Shape()[0] {
		return t
	}
	return x.Narrow(t, 0, 0, n)
}
