package optim

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// No part of a step waits for the device, nor reads a value on the host.
func TestStep_NoWaits(t *testing.T) {
	for _, device := range devices(t) {
		for _, c := range capturedCases {
			if c.between != nil {
				continue // State reads counts
			}
			doOn(t, device, func(x *cgotorch.Exec) error {
				l, err := c.learner(x)
				if err != nil {
					return err
				}
				defer l.close()
				in := []*cgotorch.Tensor{x.Ones(cgotorch.Float32, 16, 8), x.Ones(cgotorch.Float32, 16, 4), x.Ones(cgotorch.Float32)}
				l.step(x, in...) // loads kernels, which may wait
				for range 2 {
					l.step(x.NoWaits(), in...)
				}
				if l.ema != nil {
					l.ema.Swap(x)
					l.ema.Swap(x)
					l.ema.Swap(x.NoWaits())
					l.ema.Swap(x.NoWaits())
				}
				return nil
			})
		}
	}
}
