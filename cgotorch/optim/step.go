package optim

import (
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Note [Captured steps]
//
// Each launch of a captured step uses the memory and the numbers of the capture. This has four
// consequences:
//
//   - The learning rate is a tensor. A function writes this tensor before a launch if the
//     learning rate has changed (writeRate). The kernels read the tensor as float32. Eager steps
//     on CUDA therefore round their learning rate to float32 too, except for parameters of
//     float64. With this rounding, eager and captured steps give the same bits.
//   - The host counts a step at each launch. If the kernel needs a count, the captured work
//     increases a second count on the device.
//   - Before the first launch each parameter needs its state: momentum or moments that are zero,
//     and a float32 copy of a parameter of 16 bits. A function makes them once (prepare).
//   - The graph contains all other numbers. It is not launched after a change of these numbers
//     (watch).
//
// The graph changes the parameters that had a gradient at the capture, and no others.

// scalerInput holds the two tensors that a [Scaler] gives to a step.
type scalerInput struct {
	gradScale *cgotorch.Tensor // the step divides the gradients by gradScale; nil means by 1
	foundInf  *cgotorch.Tensor // if foundInf is 1, the device skips the step; nil means that no step is skipped
}

// Step changes every parameter that has a gradient. The other parameters stay unchanged, and Step
// does not count for them. Step is not recorded for backward and runs without autocast, also if x
// has these modes. It does not wait.
//
// A fused Step can be captured. Each launch uses the learning rate that is set when it is
// launched. That learning rate holds for all Steps of the captured function. A launch changes the
// parameters that had a gradient at the capture. After a change of weight decay, momentum or
// betas, the function must be captured again. [cgotorch.Captured] does this by itself.
//
// Without MasterWeights a step of float16 parameters remembers its numbers in float16, which does
// not hold squares above 65504. Rules that divide by the root of squares compute in float32 there,
// and count a gradient beyond 255.9 as 255.9.
//
// If a distributed.Gradients has a parameter, its ranks would train apart by a gradient of one rank
// alone. Step fails with [cgotorch.ErrInvalidArgument] if such a gradient was not reduced since the
// last step, or if a backward has added to it since.
//
// Step fails with [cgotorch.ErrInvalidArgument] if the learning rate is not a finite number of at
// least 0. It fails with [cgotorch.ErrClosed] for a closed parameter or optimizer. A Step by
// Foreach fails in a capture with [cgotorch.ErrNotCapturable]. So does a Step of parameters of 16
// bits without MasterWeights, except by SGD, Adam and AdamW.
func (o *Optimizer) Step(x *cgotorch.Exec) { o.step(x, scalerInput{}) }

// Minimize is a step that makes the loss smaller: [Optimizer.ZeroGrad], Backward of the loss, and
// [Optimizer.Step], in this order. It can be captured where Step can. A program that clips, scales
// or sums gradients calls the three itself. So does a program with a distributed.Gradients, whose
// Backward takes the place of Exec.Backward: Minimize then fails with
// [cgotorch.ErrInvalidArgument].
func (o *Optimizer) Minimize(x *cgotorch.Exec, loss *cgotorch.Tensor) {
	o.ZeroGrad()
	x.Backward(loss)
	o.Step(x)
}

func (o *Optimizer) step(x *cgotorch.Exec, by scalerInput) { o.change(o.begin(x, by), by) }

// begin does what comes once in a step. It returns the Exec of the step.
func (o *Optimizer) begin(x *cgotorch.Exec, by scalerInput) *cgotorch.Exec {
	if o.closed {
		o.fail(x, "the optimizer: %w", cgotorch.ErrClosed)
	}
	x = x.NoGrad().NoAutocast()
	if x.Capturing() {
		if why := o.uncapturable(); why != "" {
			o.fail(x, why+": %w", cgotorch.ErrNotCapturable)
		}
		x.DependsOn(o.watch())
	}
	o.lookForStrays(x)
	if x.Capturing() {
		o.lookForReductions(x, false)
	}
	x.EachLaunch(func(x *cgotorch.Exec) { o.lookForReductions(x, true) })
	for i := range o.groups {
		o.legalRate(x, i)
	}
	if by.foundInf != nil {
		o.onDevice = true
		x.EachLaunch(func(*cgotorch.Exec) { o.skipped = true })
	}
	return x
}

// change changes the parameters, or those in o.only.
func (o *Optimizer) change(x *cgotorch.Exec, by scalerInput) {
	for i := range o.groups {
		g := &o.groups[i]
		lr := o.legalRate(x, i)
		rate := o.capturedRate(x, i)
		for k := range g.buckets {
			from := &g.buckets[k]
			b := &from.now
			b.lr, b.rate, b.weightDecay, b.scalerInput = lr, rate, g.weightDecay, by
			if o.fuses(x, from) && from.device.IsCUDA() && from.dtype != cgotorch.Float64 {
				b.lr = float64(float32(lr)) // see Note [Captured steps]
			}
			o.stepBucket(x, from)
		}
	}
}

// lookForStrays tells, at the second Step, of leaves that have a gradient and belong to no
// optimizer. A Step that is captured, or that has lent tensors, does not look.
func (o *Optimizer) lookForStrays(x *cgotorch.Exec) {
	if o.looks >= 2 || x.Capturing() || o.only != nil {
		return
	}
	if o.looks++; o.looks == 1 {
		o.watchLeaves(x)
	} else if strays := o.strayLeaves(x); strays != "" {
		slog.Warn("optim: " + o.rule.name() + ": a gradient is computed for " + strays +
			", and no optimizer has this tensor: make its layer a field of the model, not a variable of a closure; if it is frozen on purpose, call SetRequiresGrad(false)")
	}
}

// lookForReductions fails if a step would use a gradient of this rank alone, though a
// distributed.Gradients has the parameter. `note` says that a step uses the gradients now.
func (o *Optimizer) lookForReductions(x *cgotorch.Exec, note bool) {
	o.reduced.Look(len(o.parameters), note, func(i int) *seam.Values {
		s := o.parameters[i]
		if o.only != nil && !o.only[s] || s.tensor.Closed() {
			return nil
		}
		return *inside.Core.Notes(s.tensor)
	}, func(i int) {
		if s := o.parameters[i]; s.tensor.Grad() != nil {
			o.fail(x, "the gradients were not reduced since the last step, such as that of parameter %d, %s: call Backward of the distributed.Gradients, in place of Exec.Backward and Minimize, for the last backward before each step: %w", i, s.tensor, cgotorch.ErrInvalidArgument)
		}
	})
}

// legalRate returns the learning rate of group i. It fails if that rate is not valid.
func (o *Optimizer) legalRate(x *cgotorch.Exec, i int) float64 {
	lr := o.LR(i)
	if !legal(lr) {
		o.fail(x, "group %d: a learning rate of %v is not a number from 0 up: %w", i, lr, cgotorch.ErrInvalidArgument)
	}
	return lr
}

// capturedRate returns the tensor from which a captured step reads the learning rate of group i.
// For a step that is not captured it returns nil.
func (o *Optimizer) capturedRate(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	if !x.Capturing() {
		return nil
	}
	g := &o.groups[i]
	if g.rate == nil {
		y := inside.Core.Uncaptured(x)
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

// watch notes the values on the host that a step depends on. It returns a function that describes a
// later change of these values. That function returns "" if they have not changed.
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
			return "the optimizer was restored" // the next step may be a first step, and with Dampening first steps differ from later steps
		}
		for _, s := range o.parameters {
			if s.tensor.Closed() {
				return fmt.Sprintf("parameter %d was closed", s.index)
			}
		}
		return ""
	}
}

// fuses reports whether rule.fused does the steps of the bucket. Otherwise rule.foreach does them.
func (o *Optimizer) fuses(x *cgotorch.Exec, b *bucket) bool {
	return o.canFuse(b) && (o.onLists() == nil || o.onDevice || x.Capturing())
}

func (o *Optimizer) canFuse(b *bucket) bool {
	dtype := b.dtype
	if b.wide {
		dtype = cgotorch.Float32
	}
	return !o.foreach && (b.dense || o.onLists() != nil) && o.rule.canFuse(b.device, dtype)
}

func (o *Optimizer) stepBucket(x *cgotorch.Exec, from *bucket) {
	b, fused := &from.now, o.fuses(x, from)
	defer b.reset()
	// `later` holds the parameters that cannot be changed together with those of b. It stays empty
	// if every earlier step changed all parameters.
	var later []*parameter
	parameters := from.parameters
	for len(parameters) > 0 {
		b.reset()
		later = later[:0:0]
		for _, s := range parameters {
			if o.only != nil && !o.only[s] {
				continue
			}
			if s.tensor.Closed() {
				o.fail(x, "parameter %d: %w", s.index, cgotorch.ErrClosed)
			}
			done := o.rule.together(s.step, fused)
			if len(b.parameters) > 0 && done != b.done {
				later = append(later, s)
				continue
			}
			grad := s.tensor.Grad()
			if grad == nil {
				continue
			}
			b.done = done
			b.parameters = append(b.parameters, s)
			b.params = append(b.params, s.tensor)
			b.grads = append(b.grads, grad)
		}
		parameters = later
		if len(b.parameters) > 0 {
			o.stepBatch(x, b, from, fused)
		}
	}
}

func (o *Optimizer) stepBatch(x *cgotorch.Exec, b *batch, from *bucket, fused bool) {
	parameters, by := b.parameters, b.scalerInput
	defer func() { b.scalerInput = by }() // which raise changes
	if x.Capturing() {
		parameters = slices.Clone(parameters) // the next batch overwrites b.parameters
	}
	for _, s := range parameters {
		s.allocate(x, fused && o.rule.counts())
	}
	x.EachLaunch(func(x *cgotorch.Exec) { prepare(x.NoGrad().NoAutocast(), parameters) })
	x.Tidy(func() *cgotorch.Tensor {
		switch {
		case from.wide:
			b.widen(x)
		case from.raised:
			b.raise(x, o.rule)
		case fused:
			alignGrads(x, b)
		}
		if fused {
			o.rule.fused(x, b)
		} else {
			o.rule.foreach(x, b)
		}
		switch {
		case from.wide:
			b.narrow(x)
		case from.raised:
			b.lower(x, o.rule)
		}
		return nil
	})
	// LibTorch's operators of lists do not count their writes on CUDA, and fused ones nowhere. A
	// launch of a graph counts none.
	bump := func() {
		for _, s := range parameters {
			if !s.tensor.Closed() {
				s.tensor.BumpVersion()
			}
		}
	}
	if x.Capturing() {
		bump() // for a backward later in the capture
	}
	x.EachLaunch(func(*cgotorch.Exec) {
		bump()
		for _, s := range parameters {
			s.step++
			s.counted = s.counted && fused
		}
	})
}

// widen replaces parameters by their masters, and gradients by float32 copies of the gradients.
func (b *batch) widen(x *cgotorch.Exec) {
	grads := make([]*cgotorch.Tensor, len(b.grads))
	for i, s := range b.parameters {
		b.params[i] = s.master
		grads[i] = x.EmptyLike(s.master)
	}
	x.ForeachCopyInPlace(grads, b.grads)
	copy(b.grads, grads)
}

// narrow copies the masters, or the copies of raise, to the parameters, rounded to their dtype.
func (b *batch) narrow(x *cgotorch.Exec) {
	params := make([]*cgotorch.Tensor, len(b.parameters))
	for i, s := range b.parameters {
		params[i] = s.tensor
	}
	x.ForeachCopyInPlace(params, b.params)
}

// alignGrads gives every gradient its parameter's strides. Gradients of a backward have these
// strides already. Gradients that the program has set may have other strides. LibTorch's fused
// CPU kernels assume that a gradient and its parameter have equal strides.
func alignGrads(x *cgotorch.Exec, b *batch) {
	for i, grad := range b.grads {
		if s := b.parameters[i]; !s.laidOutLike(grad.Strides()) {
			b.grads[i] = x.CopyInPlace(x.EmptyLike(s.tensor), grad)
		}
	}
}

func (o *Optimizer) fail(x *cgotorch.Exec, format string, args ...any) {
	x.Fail("optim.Step", fmt.Errorf(o.rule.name()+": "+format, args...))
}
