package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Captured steps]
//
// A step that is captured as part of a graph is run at each launch with the memory, and the numbers, that it was captured with. So
//
//   - the learning rate is a tensor, written before a launch when it has changed (writeRate); a fused kernel reads it as a float32 and
//     calculates in float64, for which reason eager steps on CUDA round theirs too, but for parameters of float64: both give the same bits;
//   - steps are counted by a hook, on the device as well where the kernel reads the count;
//   - what a parameter's first step needs, zeros and masters, is written by a hook that does so once (prepare);
//   - of all other numbers the graph is told, and it is not launched any more when one has changed (watch).
//
// Which parameters have a gradient is part of the graph.

// scaling is what a [Scaler] gives a step.
type scaling struct {
	gradScale *cgotorch.Tensor // divides the gradients; nil for 1
	foundInf  *cgotorch.Tensor // the device skips the step where it is 1; nil for never
}

// Step changes every parameter that has a gradient; the others, and their counts of steps, stay as they are. It is not
// recorded for backward and runs without autocast, whatever x says. It fails with [cgotorch.ErrInvalidArgument] for a
// learning rate that is not a number from 0 up, and with [cgotorch.ErrClosed] for a closed parameter or optimizer.
//
// It can be captured, if it is [Fused]; else it fails with [cgotorch.ErrNotCapturable]. Each launch then uses the learning rate that there
// is at that time, one for all Steps of the captured function, and changes those parameters that had a gradient when it was captured. A graph
// must be captured again, as [cgotorch.Captured] does by itself, when another number has been set since: weight decay, momentum or betas.
func (o *Optimizer) Step(x *cgotorch.Exec) { o.step(x, scaling{}) }

func (o *Optimizer) step(x *cgotorch.Exec, by scaling) {
	if o.closed {
		o.fail(x, "the optimizer: %w", cgotorch.ErrClosed)
	}
	x = x.NoGrad().NoAutocast()
	if x.Capturing() {
		if o.impl != Fused {
			o.fail(x, "a step by Foreach takes its numbers from the host: use Fused: %w", cgotorch.ErrNotCapturable)
		}
		x.DependsOn(o.watch())
	}
	if by.foundInf != nil {
		x.EachLaunch(func(*cgotorch.Exec) { o.skipped = true })
	}
	for i := range o.groups {
		g := &o.groups[i]
		lr := o.legalRate(x, i)
		rate := o.capturedRate(x, i)
		for k := range g.buckets {
			from := &g.buckets[k]
			b := &from.now
			b.lr, b.rate, b.weightDecay, b.scaling = lr, rate, g.weightDecay, by
			if o.fuses(from) && from.device.IsCUDA() && from.dtype != cgotorch.Float64 {
				b.lr = float64(float32(lr)) // see Note [Captured steps]
			}
			o.stepBucket(x, from)
		}
	}
}

// legalRate is the learning rate of group i, or fails.
func (o *Optimizer) legalRate(x *cgotorch.Exec, i int) float64 {
	lr := o.LR(i)
	if !legal(lr) {
		o.fail(x, "group %d: a learning rate of %v is not a number from 0 up: %w", i, lr, cgotorch.ErrInvalidArgument)
	}
	return lr
}

// capturedRate is the tensor from which a captured step reads the learning rate of group i; nil for other steps.
func (o *Optimizer) capturedRate(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	if !x.Capturing() {
		return nil
	}
	g := &o.groups[i]
	if g.rate == nil {
		y := x.Uncaptured()
		g.rate, g.written = y.Keep(y.Empty(cgotorch.Float32)), math.NaN()
	}
	x.EachLaunch(func(x *cgotorch.Exec) { o.writeRate(x, i) })
	return g.rate
}

func (o *Optimizer) writeRate(x *cgotorch.Exec, i int) {
	g := &o.groups[i]
	if lr := float64(float32(o.legalRate(x, i))); lr != g.written {
		x.NoGrad().FillInPlace(g.rate, lr).Close()
		g.written = lr
	}
}

// watch returns a function that says what a step uses of the host that has changed since, or "".
func (o *Optimizer) watch() func() string {
	changed, restored := o.rule.watch(), o.restored
	decays := make([]float64, len(o.groups))
	for i, g := range o.groups {
		decays[i] = g.weightDecay
	}
	r, ok := o.rule.(*sgd)
	dampened := ok && r.Dampening != 0
	return func() string {
		if o.closed {
			return "the optimizer was closed"
		}
		if what := changed(); what != "" {
			return what
		}
		for i, used := range decays {
			if now := o.groups[i].weightDecay; now != used {
				return fmt.Sprintf("the weight decay of group %d has changed from %v to %v", i, used, now)
			}
		}
		if dampened && o.restored != restored {
			return "the optimizer was restored" // perhaps to before its first step, which is another than the next ones
		}
		for _, s := range o.slots {
			if s.param.Closed() {
				return fmt.Sprintf("parameter %d was closed", s.index)
			}
		}
		return ""
	}
}

// fuses reports whether steps of the bucket are done by rule.fused.
func (o *Optimizer) fuses(b *bucket) bool {
	dtype := b.dtype
	if b.wide {
		dtype = cgotorch.Float32
	}
	return o.impl == Fused && o.rule.canFuse(b.device, dtype)
}

func (o *Optimizer) stepBucket(x *cgotorch.Exec, from *bucket) {
	b, fused := &from.now, o.fuses(from)
	defer b.reset()
	var later []*slot // that cannot be changed together with b's; there are none unless a parameter was left out before
	slots := from.slots
	for len(slots) > 0 {
		b.reset()
		later = later[:0:0]
		for _, s := range slots {
			if s.param.Closed() {
				o.fail(x, "parameter %d: %w", s.index, cgotorch.ErrClosed)
			}
			done := o.rule.together(s.step, fused)
			if len(b.slots) > 0 && done != b.done {
				later = append(later, s)
				continue
			}
			grad := s.param.Grad()
			if grad == nil || o.part != nil && !o.part[s] {
				continue
			}
			b.done = done
			b.slots = append(b.slots, s)
			b.params = append(b.params, s.param)
			b.grads = append(b.grads, grad)
		}
		slots = later
		if len(b.slots) > 0 {
			o.stepBatch(x, b, from.wide, fused)
		}
	}
}

func (o *Optimizer) stepBatch(x *cgotorch.Exec, b *batch, wide, fused bool) {
	slots := b.slots
	if x.Capturing() {
		slots = slices.Clone(slots) // b's are written over
	}
	for _, s := range slots {
		s.allocate(x, fused && o.rule.counts())
	}
	x.EachLaunch(func(x *cgotorch.Exec) { prepare(x.NoGrad().NoAutocast(), slots) })
	x.Tidy(func() *cgotorch.Tensor {
		switch {
		case wide:
			b.widen(x)
		case fused:
			alignGrads(x, b)
		}
		if fused {
			o.rule.fused(x, b)
		} else {
			o.rule.foreach(x, b)
		}
		if wide {
			b.narrow(x)
		}
		return nil
	})
	x.EachLaunch(func(*cgotorch.Exec) {
		for _, s := range slots {
			s.step++
		}
	})
}

// widen puts masters and float32 copies of the gradients in the place of parameters and gradients.
func (b *batch) widen(x *cgotorch.Exec) {
	grads := make([]*cgotorch.Tensor, len(b.grads))
	for i, s := range b.slots {
		b.params[i] = s.master
		grads[i] = x.EmptyLike(s.master)
	}
	x.ForeachCopyInPlace(grads, b.grads)
	copy(b.grads, grads)
}

// narrow rounds the masters to the parameters.
func (b *batch) narrow(x *cgotorch.Exec) {
	params := make([]*cgotorch.Tensor, len(b.slots))
	for i, s := range b.slots {
		params[i] = s.param
	}
	x.ForeachCopyInPlace(params, b.params)
}

// alignGrads gives every gradient its parameter's strides. Backward's have them; one that the program has set may not, and
// LibTorch's fused CPU kernels walk through both as if they had.
func alignGrads(x *cgotorch.Exec, b *batch) {
	for i, grad := range b.grads {
		if s := b.slots[i]; !s.laidOutLike(grad.Strides()) {
			b.grads[i] = x.CopyInPlace(x.EmptyLike(s.param), grad)
		}
	}
}

func (o *Optimizer) fail(x *cgotorch.Exec, format string, args ...any) {
	x.Fail("optim.Step", fmt.Errorf(o.rule.name()+": "+format, args...))
}
