package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// LBFGSOptions are the settings of [NewLBFGS]. The zero value is PyTorch's default.
type LBFGSOptions struct {
	LR              float64 // factor of each change, above 0; 0 means 1
	Iterations      int     // largest number of changes in a Step; 0 means 20
	Evaluations     int     // largest number of losses in a Step; 0 means Iterations*5/4
	GradTolerance   float64 // a Step ends if no gradient is larger; 0 means 1e-7
	ChangeTolerance float64 // a Step ends if loss or parameters change by less; 0 means 1e-9
	History         int     // number of earlier changes that the optimizer remembers; 0 means 100
	StrongWolfe     bool    // search along each direction for a point that meets Wolfe's strong conditions
}

// LBFGS changes parameters by the method of Broyden, Fletcher, Goldfarb and Shanno, with limited
// memory. It suits small problems without noise. It has torch.optim.LBFGS's rule. The parameters
// stay the caller's. An LBFGS is used by one goroutine at a time.
type LBFGS struct {
	o      LBFGSOptions
	params []*cgotorch.Tensor
	closed bool
	LBFGSState
}

// LBFGSState holds all that an [LBFGS] needs, except its options, to continue an interrupted
// training with the same results. The optimizer owns the tensors.
type LBFGSState struct {
	Iterations  int       `json:"iterations"`  // done by all Steps
	Evaluations int       `json:"evaluations"` // done by all Steps
	Length      float64   `json:"length"`      // factor of the last direction
	Scale       float64   `json:"scale"`       // of the first estimate of the inverse Hessian
	Ro          []float64 `json:"ro"`          // 1/(y*s) for each remembered change

	Direction, Gradient *cgotorch.Tensor   `json:"-"` // of the last change; nil before the first
	Y, S                []*cgotorch.Tensor `json:"-"` // the remembered changes of gradient and of parameters, as vectors
}

// NewLBFGS returns an optimizer for parameters of one device and one dtype. The caller must Close
// it. NewLBFGS fails with [cgotorch.ErrInvalidArgument] if an option or a parameter is not valid.
func NewLBFGS(o LBFGSOptions, params []*cgotorch.Tensor) (*LBFGS, error) {
	o.LR, o.GradTolerance, o.ChangeTolerance = or(o.LR, 1), or(o.GradTolerance, 1e-7), or(o.ChangeTolerance, 1e-9)
	if o.Iterations == 0 {
		o.Iterations = 20
	}
	if o.Evaluations == 0 {
		o.Evaluations = o.Iterations * 5 / 4
	}
	if o.History == 0 {
		o.History = 100
	}
	if err := checkNumbers("lbfgs", positive("LR", o.LR), positive("GradTolerance", o.GradTolerance), positive("ChangeTolerance", o.ChangeTolerance),
		positive("Iterations", float64(o.Iterations)), positive("Evaluations", float64(o.Evaluations)), positive("History", float64(o.History))); err != nil {
		return nil, err
	}
	if len(params) == 0 {
		return nil, fmt.Errorf("optim: lbfgs: there are no parameters: %w", cgotorch.ErrInvalidArgument)
	}
	for i, p := range params {
		if p == nil || p.Closed() || !p.DType().IsFloat() || p.DType() != params[0].DType() || p.Device() != params[0].Device() {
			return nil, fmt.Errorf("optim: lbfgs: parameter %d is %s, want open tensors of one floating dtype on one device: %w", i, p, cgotorch.ErrInvalidArgument)
		}
	}
	for _, p := range params {
		markKnown(p)
	}
	return &LBFGS{o: o, params: slices.Clone(params)}, nil
}

// Params returns the parameters, in the order of the state's vectors. They stay the caller's.
func (o *LBFGS) Params() []*cgotorch.Tensor { return slices.Clone(o.params) }

// SetLR sets the factor of each change from the next Step on. Multiply it by a [Schedule]'s result.
func (o *LBFGS) SetLR(lr float64) { o.o.LR = lr }

// Step changes the parameters several times. It calls `loss` at each point that it tries. The
// function returns the loss, a tensor of one element, and Step runs the backward. Step returns the
// first loss. It waits for the device several times, and cannot be captured.
//
// Step fails with [cgotorch.ErrClosed] for a closed parameter or optimizer, and with
// [cgotorch.ErrNotCapturable] in a capture. It fails with [cgotorch.ErrInvalidArgument] for a
// learning rate that is no number from 0 up.
func (o *LBFGS) Step(x *cgotorch.Exec, loss func(x *cgotorch.Exec) *cgotorch.Tensor) float64 {
	const op = "optim.LBFGS.Step"
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("lbfgs: its steps take their numbers from the host: %w", cgotorch.ErrNotCapturable))
	}
	if !legal(o.o.LR) {
		x.Fail(op, fmt.Errorf("lbfgs: a learning rate of %v is not a number from 0 up: %w", o.o.LR, cgotorch.ErrInvalidArgument))
	}
	if loss == nil {
		x.Fail(op, fmt.Errorf("lbfgs: the function of the loss is nil: %w", cgotorch.ErrInvalidArgument))
	}
	if o.closed || slices.ContainsFunc(o.params, (*cgotorch.Tensor).Closed) {
		x.Fail(op, fmt.Errorf("lbfgs: the optimizer or a parameter: %w", cgotorch.ErrClosed))
	}
	for i, p := range o.params {
		if _, reduced := seam.Find[seam.Reduced](*inside.Core.Notes(p)); reduced {
			x.Fail(op, fmt.Errorf("lbfgs: a distributed.Gradients has parameter %d, %s, and the backward of this Step reduces no gradients: sum the loss over the ranks, and close the Gradients: %w", i, p, cgotorch.ErrInvalidArgument))
		}
	}
	s := search{x: x.NoGrad().NoAutocast(), o: o, loss: func() *cgotorch.Tensor { return loss(x) }}
	var first float64
	x.Tidy(func() *cgotorch.Tensor {
		first = s.step()
		return nil
	})
	return first
}

// A search is one Step of an LBFGS. Its tensors live until the Step ends.
type search struct {
	x    *cgotorch.Exec
	o    *LBFGS
	loss func() *cgotorch.Tensor
}

// evaluate returns the loss and the gradient at the present point. The gradient is one vector.
func (s *search) evaluate() (loss float64, gradient *cgotorch.Tensor) {
	x := s.x
	for _, p := range s.o.params {
		if err := p.SetGrad(nil); err != nil {
			x.Fail("optim.LBFGS.Step", err)
		}
	}
	var value float64
	x.Tidy(func() *cgotorch.Tensor {
		l := s.loss()
		x.Backward(l)
		value = x.Item(l)
		return nil
	})
	s.o.Evaluations++
	parts := make([]*cgotorch.Tensor, len(s.o.params))
	for i, p := range s.o.params {
		if g := p.Grad(); g != nil {
			parts[i] = x.Reshape(g, -1)
		} else {
			parts[i] = x.Zeros(p.DType(), p.Numel())
		}
	}
	return value, x.Cat(parts, 0)
}

// move adds length*direction to the parameters.
func (s *search) move(length float64, direction *cgotorch.Tensor) {
	x, start := s.x, int64(0)
	for _, p := range s.o.params {
		part := x.Narrow(direction, 0, int(start), int(p.Numel()))
		x.AddScaledInPlace(p, x.Reshape(part, p.Shape()...), length).Close()
		start += p.Numel()
	}
}

func (s *search) dot(a, b *cgotorch.Tensor) float64  { return s.x.Item(s.x.Dot(a, b)) }
func (s *search) largest(t *cgotorch.Tensor) float64 { return s.x.Item(s.x.Max(s.x.Abs(t))) }
func (s *search) small(gradient *cgotorch.Tensor) bool {
	return s.largest(gradient) <= s.o.o.GradTolerance
}

// step is [LBFGS.Step].
func (s *search) step() float64 {
	o, x := s.o, s.x
	before := o.Evaluations
	loss, gradient := s.evaluate()
	first := loss
	if s.small(gradient) {
		return first
	}
	for done := 1; ; done++ {
		o.Iterations++
		direction := s.direction(gradient)
		previous := loss
		// Both are kept before the loss is asked for again: if that fails, the next Step goes on.
		o.replace(x, &o.Gradient, gradient)
		o.replace(x, &o.Direction, direction)
		length := o.o.LR
		if o.Iterations == 1 {
			length *= min(1, 1/x.Item(x.Sum(x.Abs(gradient))))
		}
		o.Length = length
		slope := s.dot(gradient, direction)
		if slope > -o.o.ChangeTolerance {
			return first
		}
		optimal := false
		if o.o.StrongWolfe {
			var p point
			p, gradient = s.wolfe(direction, length, loss, gradient, slope, o.o.Evaluations-(o.Evaluations-before))
			length, loss = p.length, p.loss
			o.Length = length
			s.move(length, direction)
			optimal = s.small(gradient)
		} else {
			s.move(length, direction)
			if done != o.o.Iterations { // the loss behind the last change belongs to the next Step
				loss, gradient = s.evaluate()
				optimal = s.small(gradient)
			}
		}
		if done == o.o.Iterations || o.Evaluations-before >= o.o.Evaluations || optimal ||
			s.largest(direction)*math.Abs(length) <= o.o.ChangeTolerance || math.Abs(loss-previous) < o.o.ChangeTolerance {
			return first
		}
	}
}

// direction returns the direction of the next change: minus the gradient, times an estimate of the
// inverse Hessian. It first remembers the last change.
func (s *search) direction(gradient *cgotorch.Tensor) *cgotorch.Tensor {
	o, x := s.o, s.x
	if o.Iterations == 1 {
		o.Scale = 1
		return x.Neg(gradient)
	}
	y, change := x.Sub(gradient, o.Gradient), x.MulScalar(o.Direction, o.Length)
	if ys := s.dot(y, change); ys > 1e-10 {
		if len(o.Y) == o.o.History {
			o.Y[0].Close()
			o.S[0].Close()
			o.Y, o.S, o.Ro = slices.Delete(o.Y, 0, 1), slices.Delete(o.S, 0, 1), slices.Delete(o.Ro, 0, 1)
		}
		o.Y, o.S, o.Ro = append(o.Y, x.Keep(y)), append(o.S, x.Keep(change)), append(o.Ro, 1/ys)
		o.Scale = ys / s.dot(y, y)
	}
	direction := x.Neg(gradient)
	factors := make([]float64, len(o.Y))
	for i := len(o.Y) - 1; i >= 0; i-- {
		factors[i] = s.dot(o.S[i], direction) * o.Ro[i]
		x.AddScaledInPlace(direction, o.Y[i], -factors[i])
	}
	x.MulScalarInPlace(direction, o.Scale)
	for i := range o.Y {
		back := s.dot(o.Y[i], direction) * o.Ro[i]
		x.AddScaledInPlace(direction, o.S[i], factors[i]-back)
	}
	return direction
}

// replace keeps a copy of t in place of the tensor in *kept.
func (o *LBFGS) replace(x *cgotorch.Exec, kept **cgotorch.Tensor, t *cgotorch.Tensor) {
	old := *kept
	*kept = x.Keep(x.Clone(t))
	old.Close()
}

// State returns the state to save. It does not wait. The optimizer owns the tensors, and the next
// Step changes them.
func (o *LBFGS) State() LBFGSState {
	s := o.LBFGSState
	s.Ro, s.Y, s.S = slices.Clone(s.Ro), slices.Clone(s.Y), slices.Clone(s.S)
	return s
}

// Restore makes the optimizer continue from s, whose tensors it copies. It fails with
// [cgotorch.ErrInvalidArgument], and changes nothing, if s does not fit the parameters. It fails
// with [cgotorch.ErrClosed] after Close.
func (o *LBFGS) Restore(x *cgotorch.Exec, s LBFGSState) error {
	if o.closed {
		return fmt.Errorf("optim: lbfgs: the optimizer: %w", cgotorch.ErrClosed)
	}
	var elements int64
	for _, p := range o.params {
		elements += p.Numel()
	}
	all := append(append([]*cgotorch.Tensor{}, s.Y...), s.S...)
	if s.Iterations > 0 {
		all = append(all, s.Direction, s.Gradient)
	}
	for _, t := range all {
		if t == nil || t.Closed() || t.Dim() != 1 || t.Numel() != elements {
			return fmt.Errorf("optim: lbfgs: the state has %s, want an open vector of %d numbers: %w", t, elements, cgotorch.ErrInvalidArgument)
		}
	}
	if len(s.Y) != len(s.S) || len(s.Y) != len(s.Ro) || len(s.Y) > o.o.History || s.Iterations < 0 {
		return fmt.Errorf("optim: lbfgs: the state has %d, %d and %d numbers of changes, and %d iterations: %w", len(s.Y), len(s.S), len(s.Ro), s.Iterations, cgotorch.ErrInvalidArgument)
	}
	x = x.NoGrad().NoAutocast()
	own := func(t *cgotorch.Tensor) *cgotorch.Tensor {
		if t == nil {
			return nil
		}
		made := x.Empty(o.params[0].DType(), elements)
		x.CopyInPlace(made, t).Close()
		return x.Keep(made)
	}
	old := o.LBFGSState
	s.Direction, s.Gradient = own(s.Direction), own(s.Gradient)
	s.Y, s.S, s.Ro = slices.Clone(s.Y), slices.Clone(s.S), slices.Clone(s.Ro)
	for i := range s.Y {
		s.Y[i], s.S[i] = own(s.Y[i]), own(s.S[i])
	}
	o.LBFGSState = s
	return old.close()
}

func (s *LBFGSState) close() error {
	errs := []error{s.Direction.Close(), s.Gradient.Close()}
	for i := range s.Y {
		errs = append(errs, s.Y[i].Close(), s.S[i].Close())
	}
	*s = LBFGSState{}
	return errors.Join(errs...)
}

// Close frees the tensors that the optimizer remembers. A second Close does nothing.
func (o *LBFGS) Close() error {
	if o == nil {
		return nil
	}
	o.closed = true
	return o.close()
}
