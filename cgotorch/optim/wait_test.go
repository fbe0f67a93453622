package optim

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// No part of a step waits for the device, and no part reads a value of the device on the host.
func TestStep_NoWaits(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
		for _, c := range capturedCases {
			if c.between != nil {
				continue // the function c.between may call State, which waits for the device
			}
			torchtest.Do(t, device, func(x *cgotorch.Exec) {
				l := cgotorch.Must(c.learner(x))
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
			})
		}
	})
}
