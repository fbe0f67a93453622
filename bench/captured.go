package main

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// capturedWork is a function that captures itself. It runs many times on the default stream,
// always with the same inputs.
type capturedWork struct {
	c        *config
	stream   *cgotorch.Stream
	captured *cgotorch.Captured
	in       []*cgotorch.Tensor
}

// work is a function that can be captured.
type work = func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor

// newCapturedWork runs fn `warm` times, or once in a brief run. These runs include the warm-up
// runs, the capture and the trials. The caller must close the result, also after an error.
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

// side returns a side of a comparison. The side makes the given number of runs one after another.
// It measures the microseconds of one run.
func (w *capturedWork) side(runs int) side {
	return func() (float64, error) { return microseconds(w.c, runs, w.run) }
}

// inference returns the Forward of m, run without gradients.
func inference(m nn.Module) work {
	return func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{m.Forward(x.NoGrad(), in[0])}
	}
}

func (w *capturedWork) close() { w.captured.Close() }

// microseconds makes the given number of calls between two waits for the device. It returns the
// time of one call.
func microseconds(c *config, calls int, call func() error) (float64, error) {
	seconds, err := c.secondsEach(calls, call)
	return seconds * 1e6, err
}
