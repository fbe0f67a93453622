package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// ScalerOptions set how the factor of a [Scaler] changes. The zero value is PyTorch's default.
type ScalerOptions struct {
	InitScale      float64 // the first factor, a float32 from 2^-126 up; 0 means 65536
	GrowthFactor   float64 // multiplies the factor when it grows, above 1; 0 means 2
	BackoffFactor  float64 // multiplies the factor after a gradient that is not finite, in (0, 1); 0 means 0.5
	GrowthInterval int     // the factor grows after so many Updates in a row with finite gradients; 0 means 2000
}

// Scaler multiplies losses by a factor, so that float16 can hold their gradients. It skips steps
// whose gradients became too large, as torch.amp.GradScaler does:
//
//	x.Backward(scaler.Scale(x, loss))
//	scaler.Unscale(x, opt) // only before calls that read the gradients, such as ClipGradNorm
//	scaler.Step(x, opt)
//	scaler.Update(x)
//
// None of these four calls waits, because the device decides whether a step is skipped. All four
// can be captured. All calls between two Updates must then be in one captured function. Several
// optimizers can share a Scaler. The Scaler skips a step of an optimizer only because of
// gradients of that optimizer's parameters. A Scaler belongs to one device, and is used by one
// goroutine at a time.
//
// A nil Scaler multiplies by 1 and skips nothing: Step is opt.Step, and the other calls do nothing.
// So a program that chooses its dtype has one step for all.
//
// The factor stays a positive finite float32. It does not fall below 2^-10, or below InitScale if
// that is less. A loss that is infinite in every step therefore does not make the factor 0.
type Scaler struct {
	o          ScalerOptions
	scale      *cgotorch.Tensor // the factor, float32 of shape []
	growth     *cgotorch.Tensor // Updates since the factor changed, int32 of shape []
	one        *cgotorch.Tensor // the number 1, float32 of shape []
	skipped    *cgotorch.Tensor // Updates with a gradient that was not finite, float64 of shape []
	optimizers []*scaledOptimizer
	closed     bool
}

// scaledOptimizer is an optimizer that uses a Scaler, with the state of its step.
type scaledOptimizer struct {
	opt   *Optimizer
	stage stage
	found *cgotorch.Tensor // 1 if a gradient was not finite, else 0; float32 of shape []
}

// stage says how far an optimizer's step has come since the Scaler's last Update: not begun,
// gradients unscaled, or step done.
type stage int

const (
	ready stage = iota
	unscaled
	stepped
)

// NewScaler returns a scaler on x's device. The caller must Close it. NewScaler fails with
// [cgotorch.ErrInvalidArgument] if an option is not valid. In a captured function it fails with
// [cgotorch.ErrNotCapturable].
func NewScaler(x *cgotorch.Exec, o ScalerOptions) (*Scaler, error) {
	if o.InitScale == 0 {
		o.InitScale = 65536
	}
	if o.GrowthFactor == 0 {
		o.GrowthFactor = 2
	}
	if o.BackoffFactor == 0 {
		o.BackoffFactor = 0.5
	}
	if o.GrowthInterval == 0 {
		o.GrowthInterval = 2000
	}
	fail := func(format string, args ...any) (*Scaler, error) {
		return nil, fmt.Errorf("optim: scaler: %s: %w", fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
	}
	switch {
	case x.Capturing():
		return nil, fmt.Errorf("optim: scaler: make it before the function that is captured: %w", cgotorch.ErrNotCapturable)
	case !legalScale(o.InitScale):
		return fail("a factor of %v is not a float32 from 2^-126 up", o.InitScale)
	case !(o.GrowthFactor > 1) || math.IsInf(o.GrowthFactor, 1):
		return fail("a growth factor of %v is not a number above 1", o.GrowthFactor)
	case !(o.BackoffFactor > 0 && o.BackoffFactor < 1):
		return fail("a backoff factor of %v is not in (0, 1)", o.BackoffFactor)
	case o.GrowthInterval < 0 || o.GrowthInterval > math.MaxInt32:
		return fail("a growth interval of %d steps", o.GrowthInterval)
	}
	x = x.NoGrad().NoAutocast()
	return &Scaler{
		o:       o,
		scale:   x.Keep(x.Full(cgotorch.Float32, o.InitScale)),
		growth:  x.Keep(x.Zeros(cgotorch.Int32)),
		one:     x.Keep(x.Ones(cgotorch.Float32)),
		skipped: x.Keep(x.Zeros(cgotorch.Float64)),
	}, nil
}

// legalScale reports whether v and 1/v are numbers of float32 with all digits.
func legalScale(v float64) bool { return v >= 0x1p-126 && v <= math.MaxFloat32 }

// leastScale bounds the factor. With it float16 still holds gradients of 2^25. A much smaller
// factor would make usual gradients 0 for thousands of steps, because the factor grows slowly.
const leastScale = 0x1p-10

// Scale returns loss times the factor. Give the result to Backward. Scale does not wait.
func (s *Scaler) Scale(x *cgotorch.Exec, loss *cgotorch.Tensor) *cgotorch.Tensor {
	if s == nil {
		return loss
	}
	s.use(x, "optim.Scaler.Scale")
	return x.Mul(loss, s.scale)
}

// Unscale divides the gradients of opt's parameters by the factor. Call it before code that reads
// or changes these gradients between Backward and Step. If Unscale was not called, Step divides
// the gradients. A second Unscale before Update fails with [cgotorch.ErrInvalidArgument], and so
// does an Unscale after Step. For gradients of float16 Unscale fails with
// [cgotorch.ErrUnsupported], because small gradients would become 0. Keep the parameters in
// float32 instead, and use autocast.
func (s *Scaler) Unscale(x *cgotorch.Exec, opt *Optimizer) {
	if s == nil {
		return
	}
	const op = "optim.Scaler.Unscale"
	x = s.use(x, op)
	of := s.of(x, op, opt)
	if of.stage != ready {
		x.Fail(op, fmt.Errorf("the gradients of this %s have been unscaled, or used, since the last Update: %w", opt.rule.name(), cgotorch.ErrInvalidArgument))
	}
	lists := gradients(opt.Params())
	for _, grads := range lists {
		if grads[0].DType() == cgotorch.Float16 {
			x.Fail(op, fmt.Errorf("gradients of float16 cannot be unscaled in place: keep parameters float32, under autocast, or leave Unscale out: %w", cgotorch.ErrUnsupported))
		}
	}
	x.Tidy(func() *cgotorch.Tensor {
		inverse := x.To(x.Reciprocal(x.To(s.scale, cgotorch.Float64)), cgotorch.Float32) // PyTorch calculates in float64 too
		of.look(x, lists, s.one, inverse)
		return nil
	})
	of.stage = unscaled
}

// Step is opt.Step with the gradients divided by the factor. If a gradient is infinite or NaN,
// the device skips the step. Parameters and remembered tensors then stay unchanged. The gradients
// are undefined after Step. Step does not wait.
//
// It fails as [Optimizer.Step] does. A second Step before Update fails with
// [cgotorch.ErrInvalidArgument]. A step that the device cannot skip fails with
// [cgotorch.ErrUnsupported]. The device cannot skip steps by Foreach, and steps by SGD with
// Momentum and Dampening. Without MasterWeights, it skips steps of float16 and bfloat16 parameters
// only by Adam and AdamW, and on CUDA by SGD.
func (s *Scaler) Step(x *cgotorch.Exec, opt *Optimizer) {
	if s == nil {
		opt.Step(x)
		return
	}
	const op = "optim.Scaler.Step"
	x = s.use(x, op)
	of := s.of(x, op, opt)
	if of.stage == stepped {
		x.Fail(op, fmt.Errorf("a second step of this %s since the last Update: call Update first: %w", opt.rule.name(), cgotorch.ErrInvalidArgument))
	}
	if why := opt.unskippable(); why != "" {
		x.Fail(op, fmt.Errorf("%s: %s: %w", opt.rule.name(), why, cgotorch.ErrUnsupported))
	}
	by := scalerInput{foundInf: of.found}
	if of.stage == ready {
		of.look(x, gradients(opt.Params()), s.one, nil)
		by = scalerInput{foundInf: of.found, gradScale: s.scale}
	}
	opt.step(x, by)
	of.stage = stepped
}

// Update lowers the factor if a gradient was not finite since the last Update. It raises the
// factor after GrowthInterval Updates with finite gradients. A factor that float32 cannot hold
// stays as it is. Call Update after the Steps of all optimizers. It does not wait. It fails with
// [cgotorch.ErrInvalidArgument] if there was neither an Unscale nor a Step since the last Update.
func (s *Scaler) Update(x *cgotorch.Exec) {
	if s == nil {
		return
	}
	const op = "optim.Scaler.Update"
	x = s.use(x, op)
	var found []*cgotorch.Tensor
	for _, of := range s.optimizers {
		if of.stage != ready {
			found = append(found, of.found)
			of.stage = ready
		}
	}
	if len(found) == 0 {
		x.Fail(op, fmt.Errorf("there was no Step since the last Update: %w", cgotorch.ErrInvalidArgument))
	}
	x.Tidy(func() *cgotorch.Tensor {
		any := found[0]
		for _, f := range found[1:] {
			any = x.Maximum(any, f)
		}
		x.AddInPlace(s.skipped, any)
		x.AMPUpdateScaleInPlace(s.scale, s.growth, any, s.o.GrowthFactor, s.o.BackoffFactor, s.o.GrowthInterval)
		x.ClampInPlace(s.scale, min(leastScale, s.o.InitScale), nil)
		return nil
	})
}

// ScalerState holds all that a Scaler needs, except its options, to continue an interrupted
// training with the same results.
type ScalerState struct {
	Scale   float64 `json:"scale"`          // the factor
	Growth  int64   `json:"growth_tracker"` // number of Updates since the factor changed
	Skipped int64   `json:"skipped"`        // number of Updates with a gradient that was not finite
}

// State returns the state to save. It waits for the device.
func (s *Scaler) State(x *cgotorch.Exec) ScalerState {
	x = s.use(x, "optim.Scaler.State")
	var v []float64
	x.Tidy(func() *cgotorch.Tensor {
		v = cgotorch.ToSlice[float64](x, x.Stack([]*cgotorch.Tensor{x.To(s.scale, cgotorch.Float64), x.To(s.growth, cgotorch.Float64), s.skipped}, 0))
		return nil
	})
	return ScalerState{Scale: v[0], Growth: int64(v[1]), Skipped: int64(v[2])}
}

// Restore makes the scaler continue from state, which any Scaler may have made. If its Growth is
// not below GrowthInterval, the factor grows at the next Update with finite gradients. Restore
// fails with [cgotorch.ErrInvalidArgument] if a value of state is out of range. It fails with
// [cgotorch.ErrClosed] if the scaler is closed. After a failure nothing has changed.
func (s *Scaler) Restore(x *cgotorch.Exec, state ScalerState) error {
	switch {
	case s.closed:
		return fmt.Errorf("optim: scaler: %w", cgotorch.ErrClosed)
	case !legalScale(state.Scale) || state.Growth < 0 || state.Growth > math.MaxInt32 || state.Skipped < 0:
		return fmt.Errorf("optim: scaler: the state is %+v, want a Scale from 2^-126 up that float32 holds, and no negative number: %w", state, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	x.FillInPlace(s.scale, state.Scale).Close()
	growth := min(state.Growth, int64(s.o.GrowthInterval-1)) // the device asks whether one more is the interval
	x.FillInPlace(s.growth, growth).Close()
	x.FillInPlace(s.skipped, state.Skipped).Close()
	return nil
}

// Close frees the scaler's tensors. It does not close the optimizers. A second Close does
// nothing.
func (s *Scaler) Close() error {
	if s == nil {
		return nil
	}
	s.closed = true
	errs := []error{s.scale.Close(), s.growth.Close(), s.one.Close(), s.skipped.Close()}
	for _, of := range s.optimizers {
		errs = append(errs, of.found.Close())
	}
	s.optimizers = nil
	return errors.Join(errs...)
}

// use fails if the scaler is closed. It makes a captured graph out of date when the scaler is
// closed later. It returns the Exec for the operators of op.
func (s *Scaler) use(x *cgotorch.Exec, op string) *cgotorch.Exec {
	if s.closed {
		x.Fail(op, fmt.Errorf("the scaler: %w", cgotorch.ErrClosed))
	}
	x.DependsOn(func() string {
		if s.closed {
			return "the scaler was closed"
		}
		return ""
	})
	if op == "optim.Scaler.Scale" {
		return x
	}
	return x.NoGrad().NoAutocast()
}

// of returns the scaledOptimizer of opt. At the first call for opt it makes one.
func (s *Scaler) of(x *cgotorch.Exec, op string, opt *Optimizer) *scaledOptimizer {
	if opt == nil {
		x.Fail(op, fmt.Errorf("the optimizer is nil: %w", cgotorch.ErrInvalidArgument))
	}
	if opt.closed {
		x.Fail(op, fmt.Errorf("%s: the optimizer: %w", opt.rule.name(), cgotorch.ErrClosed))
	}
	i := slices.IndexFunc(s.optimizers, func(of *scaledOptimizer) bool { return of.opt == opt })
	if i < 0 {
		i = len(s.optimizers)
		y := inside.Core.Uncaptured(x)
		s.optimizers = append(s.optimizers, &scaledOptimizer{opt: opt, found: y.Keep(y.Empty(cgotorch.Float32))})
	}
	of := s.optimizers[i]
	if x.Capturing() {
		x.AtEnd(func() { of.stage = ready }) // a failed capture may end before Update; its function then runs again, and must begin from `ready`
	}
	return of
}

// look sets of.found to 1 if a gradient is not finite, else to 0. If `factor` is not nil, it also
// multiplies the gradients by `factor`.
func (of *scaledOptimizer) look(x *cgotorch.Exec, lists [][]*cgotorch.Tensor, one, factor *cgotorch.Tensor) {
	x.FillInPlace(of.found, 0).Close()
	by := factor
	if by == nil {
		by = one
	}
	for _, grads := range lists {
		if grads[0].DType() != cgotorch.BFloat16 {
			x.AMPForeachNonFiniteCheckAndUnscaleInPlace(grads, of.found, by)
			continue
		}
		x.Tidy(func() *cgotorch.Tensor { // LibTorch 2.11's CUDA kernel takes no bfloat16
			wide := make([]*cgotorch.Tensor, len(grads))
			for i, g := range grads {
				wide[i] = emptyLike(x, g, cgotorch.Float32)
			}
			x.ForeachCopyInPlace(wide, grads)
			x.AMPForeachNonFiniteCheckAndUnscaleInPlace(wide, of.found, by)
			if factor != nil {
				x.ForeachCopyInPlace(grads, wide)
			}
			return nil
		})
	}
	if of.opt.agree != nil {
		of.opt.agree(x, of.found)
	}
}

// SetAgree gives the optimizer a function by which several processes skip the same steps. It is for
// processes that have different gradients. A [Scaler] calls it with a float32 tensor of shape [],
// which is 1 if a gradient of this process is not finite, else 0. The function writes 1 if any
// process has 1. It enqueues on x's stream, and does not wait. SetAgree enqueues nothing.
func (o *Optimizer) SetAgree(agree func(x *cgotorch.Exec, found *cgotorch.Tensor)) { o.agree = agree }

// unskippable returns the reason why the device cannot skip a step of the optimizer. It returns
// "" if the device can skip the step.
func (o *Optimizer) unskippable() string {
	if why := o.fromHost(); why != "" {
		return why + ", so it cannot be skipped on the device"
	}
	if r, ok := o.rule.(*sgd); ok && r.Dampening != 0 && r.Momentum != 0 {
		return "with Dampening the first step differs from later ones, and the host does not know whether it was skipped: leave Dampening out"
	}
	for i := range o.groups {
		for k := range o.groups[i].buckets {
			if b := &o.groups[i].buckets[k]; !o.canFuse(b) {
				return fmt.Sprintf("a step of %v on %v cannot be skipped: set MasterWeights", b.dtype, b.device)
			}
		}
	}
	return ""
}
