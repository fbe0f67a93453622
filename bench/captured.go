package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// capturedCall is a model's captured call on the default stream, always with the same input.
type capturedCall struct {
	c        *config
	stream   *cgotorch.Stream
	captured *cgotorch.Captured
	input    *cgotorch.Tensor
}

// capture captures a call of m without gradients. The caller must close the result, also after an
// error.
func (c *config) capture(m nn.Module, input *cgotorch.Tensor) (*capturedCall, error) {
	forward := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{m.Forward(x.NoGrad(), in[0])}
	}
	w := &capturedCall{c, cgotorch.DefaultStream(c.device), cgotorch.NewCaptured(forward, cgotorch.CapturedOptions{InPlace: true, Log: c.tell}), input}
	for range c.or(1, 5) { // warm-up and the capture
		if err := w.run(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *capturedCall) run() error {
	return w.stream.Do(func(x *cgotorch.Exec) error { w.captured.Run(x, w.input); return nil })
}

// side returns a side that makes so many calls back to back. It measures the microseconds of one.
func (w *capturedCall) side(calls int) side {
	return func() (float64, error) { return w.c.microseconds(calls, w.run) }
}

func (w *capturedCall) close() { w.captured.Close() }

// difference returns the largest difference of an element of the result from `want`, as a part of
// the largest element. It fails if the difference is no rounding in bfloat16.
func (w *capturedCall) difference(want []float32) (share float64, err error) {
	err = w.stream.Do(func(x *cgotorch.Exec) error {
		got := cgotorch.ToSlice[float32](x, x.To(w.captured.Run(x, w.input)[0], cgotorch.Float32))
		share, err = deviation(got, want)
		return err
	})
	if err == nil && w.c.device.IsCUDA() && !w.c.brief && w.captured.Stats().Graphs != 1 {
		err = fmt.Errorf("it was not captured: %s", w.captured.Stats().Why)
	}
	return share, err
}

// deviation returns the largest difference of an element, as a part of the largest element. It
// fails if the difference is no rounding in bfloat16, where two algorithms add in other orders.
func deviation(got, want []float32) (float64, error) {
	if len(got) != len(want) {
		return 0, fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	var top, far float32
	for i := range want {
		top, far = max(top, want[i], -want[i]), max(far, got[i]-want[i], want[i]-got[i])
	}
	if !(far <= 0.05*top) {
		return 0, fmt.Errorf("a wrong result: an element differs by %g, and the largest one is %g", far, top)
	}
	return float64(far / top), nil
}

// microseconds makes so many calls between two waits for the device. It returns the time of one.
func (c *config) microseconds(calls int, call func() error) (float64, error) {
	seconds, err := c.secondsEach(calls, call)
	return seconds * 1e6, err
}
