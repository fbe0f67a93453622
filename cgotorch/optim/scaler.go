package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ScalerOptions set how the factor of [NewScaler] changes. The zero value is PyTorch's default.
type ScalerOptions struct {
	InitScale      float64 // factor at first, above 0; 0 means 65536
	GrowthFactor   float64 // by which the factor grows, above 1; 0 means 2
	BackoffFactor  float64 // by which the factor falls after a gradient that is not finite, in (0, 1); 0 means 0.5
	GrowthInterval int     // steps with finite gradients after which the factor grows; 0 means 2000
}

// Scaler multiplies losses by a factor, so that float16 can hold their gradients. It skips steps
// whose gradients became too large, as torch.amp.GradScaler does:
//
//	x.Backward(scaler.Scale(x, loss))
//	scaler.Unscale(x, opt) // only before calls that read the gradients, such as ClipGradNorm
//	scaler.Step(x, opt)
//	scaler.Update(x)
//
// None of the four waits: the device decides whether a step is skipped. All four can be captured,
// if all calls between two Updates are in one function. Several optimizers can share a Scaler; each
// skips steps by its own gradients. A Scaler belongs to one device, and is used by one goroutine at
// a time.
type Scaler struct {
	o          ScalerOptions
	scale      *cgotorch.Tensor // float32 []
	growth     *cgotorch.Tensor // int32 [], the steps since the factor changed
	one        *cgotorch.Tensor // float32 []
	skipped    *cgotorch.Tensor // float64 []
	optimizers []*scaledOptimizer
	closed     bool
}

// scaledOptimizer holds a Scaler's knowledge of an optimizer.
type scaledOptimizer struct {
	opt   *Optimizer
	stage stage
	found *cgotorch.Tensor // float32 [], 1 if a gradient was not finite
}

// stage is the progress of an optimizer's step since the last Update.
type stage int

const (
	ready stage = iota
	unscaled
	stepped
)

// NewScaler returns a scaler on x's device. The caller must Close it. NewScaler fails with
// [cgotorch.ErrInvalidArgument], and in a captured function with [cgotorch.ErrNotCapturable].
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
		return fail("a factor of %v is not a float32 above 0", o.InitScale)
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

func legalScale(v float64) bool { return v > 0 && v <= math.MaxFloat32 }

// Scale returns loss times the factor, for Backward.
func (s *Scaler) Scale(x *cgotorch.Exec, loss *cgotorch.Tensor) *cgotorch.Tensor {
	s.use(x, "optim.Scaler.Scale")
	return x.Mul(loss, s.scale)
}

// Unscale divides the gradients of the optimizer's parameters by the factor, for calls that read or
// change them before Step. Without Unscale, Step divides. Call it at most once before a Step. It
// fails with [cgotorch.ErrInvalidArgument] the second time. It fails with [cgotorch.ErrUnsupported]
// for gradients of float16, which would become zeros. Keep such parameters float32, under autocast.
func (s *Scaler) Unscale(x *cgotorch.Exec, opt *Optimizer) {
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
		inverse := x.To(x.Reciprocal(x.To(s.scale, cgotorch.Float64)), cgotorch.Float32) // as PyTorch does it
		of.look(x, lists, s.one, inverse)
		return nil
	})
	of.stage = unscaled
}

// Step does opt's Step with the gradients divided by the factor. If a gradient is infinite or NaN,
// the device skips the step: parameters and remembered tensors then stay unchanged. The gradients
// are undefined afterwards.
//
// It fails as [Optimizer.Step] does, and with [cgotorch.ErrInvalidArgument] for a second Step
// before Update. It fails with [cgotorch.ErrUnsupported] for a step that the device cannot skip.
// Such are steps by Foreach, by SGD with Dampening, and by SGD of 16 bits on the CPU without
// MasterWeights.
func (s *Scaler) Step(x *cgotorch.Exec, opt *Optimizer) {
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

// Update lowers the factor if a gradient was not finite since the last Update, and raises it after
// GrowthInterval Updates with finite gradients. Call it after the Steps of all optimizers. It fails
// with [cgotorch.ErrInvalidArgument] if there was no Step.
func (s *Scaler) Update(x *cgotorch.Exec) {
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
		return nil
	})
}

// ScalerState is the state that a Scaler needs, beside its options, to continue as if it had not
// been interrupted.
type ScalerState struct {
	Scale   float64 `json:"scale"`          // the factor
	Growth  int64   `json:"growth_tracker"` // Updates since the factor changed
	Skipped int64   `json:"skipped"`        // Updates so far with a gradient that was not finite
}

// State waits for the device and returns the state to save.
func (s *Scaler) State(x *cgotorch.Exec) ScalerState {
	x = s.use(x, "optim.Scaler.State")
	var v []float64
	x.Tidy(func() *cgotorch.Tensor {
		v = cgotorch.ToSlice[float64](x, x.Stack([]*cgotorch.Tensor{x.To(s.scale, cgotorch.Float64), x.To(s.growth, cgotorch.Float64), s.skipped}, 0))
		return nil
	})
	return ScalerState{Scale: v[0], Growth: int64(v[1]), Skipped: int64(v[2])}
}

// Restore makes the scaler continue from state. It fails with [cgotorch.ErrInvalidArgument] if
// state is not the state of a scaler, and with [cgotorch.ErrClosed]. After a failure nothing has
// changed.
func (s *Scaler) Restore(x *cgotorch.Exec, state ScalerState) error {
	switch {
	case s.closed:
		return fmt.Errorf("optim: scaler: %w", cgotorch.ErrClosed)
	case !legalScale(state.Scale) || state.Growth < 0 || state.Growth > math.MaxInt32 || state.Skipped < 0:
		return fmt.Errorf("optim: scaler: the state is %+v: %w", state, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	x.FillInPlace(s.scale, state.Scale).Close()
	x.FillInPlace(s.growth, state.Growth).Close()
	x.FillInPlace(s.skipped, state.Skipped).Close()
	return nil
}

// Close frees the scaler's tensors. The optimizers stay. A second Close does nothing.
func (s *Scaler) Close() error {
	s.closed = true
	errs := []error{s.scale.Close(), s.growth.Close(), s.one.Close(), s.skipped.Close()}
	for _, of := range s.optimizers {
		errs = append(errs, of.found.Close())
	}
	s.optimizers = nil
	return errors.Join(errs...)
}

// use fails if the scaler is closed. A captured graph that uses the scaler is out of date once it
// is closed.
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

// of returns the scaler's knowledge of opt.
func (s *Scaler) of(x *cgotorch.Exec, op string, opt *Optimizer) *scaledOptimizer {
	if opt.closed {
		x.Fail(op, fmt.Errorf("%s: the optimizer: %w", opt.rule.name(), cgotorch.ErrClosed))
	}
	i := slices.IndexFunc(s.optimizers, func(of *scaledOptimizer) bool { return of.opt == opt })
	if i < 0 {
		i = len(s.optimizers)
		s.optimizers = append(s.optimizers, &scaledOptimizer{opt: opt, found: x.Uncaptured().Keep(x.Uncaptured().Empty(cgotorch.Float32))})
	}
	of := s.optimizers[i]
	if x.Capturing() {
		x.AtEnd(func() { of.stage = ready }) // even if the capture fails and the function runs again
	}
	return of
}

// look multiplies the gradients by factor, unless factor is nil, and finds out whether a gradient
// is not finite.
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
}

// unskippable returns the reason why the device cannot skip a step of the optimizer, or "".
func (o *Optimizer) unskippable() string {
	if o.foreach {
		return "a step by Foreach cannot be skipped on the device: leave Foreach out"
	}
	if r, ok := o.rule.(*sgd); ok && r.Dampening != 0 && r.Momentum != 0 {
		return "with Dampening the first step differs from later ones, and the host does not know whether it was skipped: leave Dampening out"
	}
	for i := range o.groups {
		for k := range o.groups[i].buckets {
			if b := &o.groups[i].buckets[k]; !o.fuses(b) {
				return fmt.Sprintf("a step of %v on %v cannot be skipped: set MasterWeights", b.dtype, b.device)
			}
		}
	}
	return ""
}
