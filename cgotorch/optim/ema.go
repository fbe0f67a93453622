package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// EMA keeps exponential moving averages of parameters. A model with the averages often does
// better on validation data than the model with the parameters.
//
// The averages begin as copies of the parameters. Each Update moves an average towards its
// parameter by 1-decay of the distance. This is the arithmetic of get_ema_multi_avg_fn in
// torch.optim.swa_utils. But in PyTorch, the first update makes the copies of the parameters. The
// parameters stay the caller's. An EMA is used by one goroutine at a time.
type EMA struct {
	decay    float64
	params   []*cgotorch.Tensor
	averages []*cgotorch.Tensor
	lists    []emaList
	// `aside` is not nil while the parameters hold the averages (see Swap). It then holds the
	// parameters' own values, in the order of `lists`.
	aside  []*cgotorch.Tensor
	closed bool
}

// emaList holds parameters of one device and dtype, so that one operator can read all of them.
type emaList struct {
	params, averages []*cgotorch.Tensor
	wide             bool // the parameters are of 16 bits and the averages float32
}

// NewEMA makes averages of `params`, on the devices of the parameters. An average has the dtype
// of its parameter. The average of a float16 or bfloat16 parameter is float32, because 16 bits do
// not hold small changes. The decay is from 0 to 1, usually 0.999 or more. The caller must Close
// the EMA. NewEMA fails with [cgotorch.ErrInvalidArgument] if the decay is below 0 or above 1, or
// if `params` is empty. It fails with the same error if a parameter is closed or not of a
// floating dtype. In a captured function it fails with [cgotorch.ErrNotCapturable].
func NewEMA(x *cgotorch.Exec, params []*cgotorch.Tensor, decay float64) (*EMA, error) {
	fail := func(format string, args ...any) (*EMA, error) {
		return nil, fmt.Errorf("optim: ema: %s: %w", fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
	}
	switch {
	case x.Capturing():
		return nil, fmt.Errorf("optim: ema: make it before the function that is captured: %w", cgotorch.ErrNotCapturable)
	case !(decay >= 0 && decay <= 1):
		return fail("a decay of %v is not from 0 to 1", decay)
	case len(params) == 0:
		return fail("there are no parameters")
	}
	for i, p := range params {
		if p == nil || p.Closed() || !p.DType().IsFloat() {
			return fail("parameter %d is %s: only open tensors of floating dtypes can be averaged", i, p)
		}
	}
	x = x.NoGrad().NoAutocast()
	e := &EMA{decay: decay, params: slices.Clone(params)}
	for _, p := range params {
		wide := p.DType().Size() < 4
		var average *cgotorch.Tensor
		if wide {
			average = x.Keep(x.To(p, cgotorch.Float32))
		} else {
			average = x.Keep(x.Clone(p))
		}
		e.averages = append(e.averages, average)
		e.insert(p, average, wide)
	}
	return e, nil
}

func (e *EMA) insert(p, average *cgotorch.Tensor, wide bool) {
	for i := range e.lists {
		if l := &e.lists[i]; l.params[0].Device() == p.Device() && l.params[0].DType() == p.DType() {
			l.params, l.averages = append(l.params, p), append(l.averages, average)
			return
		}
	}
	e.lists = append(e.lists, emaList{[]*cgotorch.Tensor{p}, []*cgotorch.Tensor{average}, wide})
}

// Update moves the averages towards the parameters. Call it after the optimizer's Step. Update
// does not wait, and can be captured. While the parameters hold the averages (see [EMA.Swap]),
// Update fails with [cgotorch.ErrInvalidArgument]. After Close of the EMA or of a parameter it
// fails with [cgotorch.ErrClosed].
func (e *EMA) Update(x *cgotorch.Exec) {
	const op = "optim.EMA.Update"
	e.use(x, op)
	if e.aside != nil {
		x.Fail(op, fmt.Errorf("the averages are in the parameters' place: call Swap before: %w", cgotorch.ErrInvalidArgument))
	}
	x.DependsOn(func() string {
		switch {
		case e.closed:
			return "the averages were closed"
		case e.aside != nil:
			return "the averages were put in the parameters' place"
		}
		return ""
	})
	x = x.NoGrad().NoAutocast()
	x.Tidy(func() *cgotorch.Tensor {
		for _, l := range e.lists {
			now := l.params
			if l.wide {
				now = make([]*cgotorch.Tensor, len(l.params))
				for i, average := range l.averages {
					now[i] = x.EmptyLike(average)
				}
				x.ForeachCopyInPlace(now, l.params)
			}
			x.ForeachLerpInPlace(l.averages, now, 1-e.decay)
		}
		return nil
	})
}

// Swap writes the averages into the parameters, for an evaluation or to save the model. The next
// Swap restores the parameters' own values. The program must not train the parameters between the
// two Swaps. Until the second Swap, the EMA holds the parameters' own values, in as much memory
// as the parameters take. Swap cannot be captured.
func (e *EMA) Swap(x *cgotorch.Exec) {
	const op = "optim.EMA.Swap"
	e.use(x, op)
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("call it between launches: %w", cgotorch.ErrNotCapturable))
	}
	x = x.NoGrad().NoAutocast()
	defer func() {
		for _, p := range e.params {
			p.BumpVersion() // as a step does
		}
	}()
	if e.aside == nil {
		var aside []*cgotorch.Tensor
		for _, l := range e.lists {
			for _, p := range l.params {
				aside = append(aside, x.Clone(p))
			}
		}
		for _, t := range aside {
			x.Keep(t)
		}
		e.aside = aside
		for _, l := range e.lists {
			x.ForeachCopyInPlace(l.params, l.averages)
		}
		return
	}
	at := 0
	for _, l := range e.lists {
		x.ForeachCopyInPlace(l.params, e.aside[at:at+len(l.params)])
		at += len(l.params)
	}
	for _, t := range e.aside {
		t.Close()
	}
	e.aside = nil
}

// Swapped reports whether the parameters now hold the averages. See [EMA.Swap].
func (e *EMA) Swapped() bool { return e.aside != nil }

// Params returns the parameters. They stay the caller's.
func (e *EMA) Params() []*cgotorch.Tensor { return slices.Clone(e.params) }

// Averages returns the averages, for saving, in the order of the parameters. The EMA owns them,
// and the next Update changes them.
func (e *EMA) Averages() []*cgotorch.Tensor { return slices.Clone(e.averages) }

// Restore replaces the averages by the given values, in the order of the parameters. It copies
// the values, and converts their dtypes. It fails with [cgotorch.ErrInvalidArgument] unless there
// is one value for each average, of the same shape. It fails with [cgotorch.ErrClosed] if the EMA
// is closed. After a failure nothing has changed.
func (e *EMA) Restore(x *cgotorch.Exec, averages []*cgotorch.Tensor) error {
	if e.closed {
		return fmt.Errorf("optim: ema: %w", cgotorch.ErrClosed)
	}
	if len(averages) != len(e.averages) {
		return fmt.Errorf("optim: ema: %d averages for %d parameters: %w", len(averages), len(e.averages), cgotorch.ErrInvalidArgument)
	}
	for i, t := range averages {
		if t == nil || t.Closed() || !slices.Equal(t.Shape(), e.averages[i].Shape()) {
			return fmt.Errorf("optim: ema: average %d is %s, the parameter is %s: %w", i, t, e.params[i], cgotorch.ErrInvalidArgument)
		}
	}
	x = x.NoGrad().NoAutocast()
	for i, t := range averages {
		x.CopyInPlace(e.averages[i], t).Close()
	}
	return nil
}

// Close frees the averages. The parameters keep their present values. After an odd number of
// Swaps these values are the averages. A second Close does nothing.
func (e *EMA) Close() error {
	if e == nil {
		return nil
	}
	e.closed = true
	var errs []error
	for _, t := range slices.Concat(e.averages, e.aside) {
		errs = append(errs, t.Close())
	}
	e.aside = nil
	return errors.Join(errs...)
}

func (e *EMA) use(x *cgotorch.Exec, op string) {
	if e.closed {
		x.Fail(op, fmt.Errorf("the averages: %w", cgotorch.ErrClosed))
	}
	for i, p := range e.params {
		if p.Closed() {
			x.Fail(op, fmt.Errorf("parameter %d: %w", i, cgotorch.ErrClosed))
		}
	}
}
