package main

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// capturedWork is a function that captures itself. It runs on the default stream again and again,
// on the same inputs.
type capturedWork struct {
	c        *config
	stream   *cgotorch.Stream
	captured *cgotorch.Captured
	in       []*cgotorch.Tensor
}

// work is a function that can be captured.
type work = func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor

// newCapturedWork runs fn warm times: warm-up runs, the capture and trials. The caller closes the
// result, also after a failure.
func newCapturedWork(c *config, fn work, o cgotorch.CapturedOptions, warm int, in ...*cgotorch.Tensor) (*capturedWork, error) {
	w := &capturedWork{c, cgotorch.DefaultStream(c.device), cgotorch.NewCaptured(fn, o), in}
	for range c.or(1, warm) {
		if err := w.run(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *capturedWork) run() error {
	return w.stream.Do(func(x *cgotorch.Exec) error { w.captured.Run(x, w.in...); return nil })
}

// side returns a side that measures microseconds of a run, of that many back to back.
func (w *capturedWork) side(runs int) side {
	return func() (float64, error) { return microseconds(w.c, runs, w.run) }
}

// inference returns m's Forward without gradients.
func inference(m nn.Module) work {
	return func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{m.Forward(x.NoGrad(), in[0])}
	}
}

func (w *capturedWork) close() { w.captured.Close() }

// microseconds returns the time of a call, of that many between two synchronisations.
func microseconds(c *config, calls int, call func() error) (float64, error) {
	seconds, err := c.secondsEach(calls, call)
	return seconds * 1e6, err
}
