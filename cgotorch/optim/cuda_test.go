package optim

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Steps, clipping and ZeroGrad return while the device is still busy with earlier work.
func TestStep_CUDA_DoesNotWait(t *testing.T) {
	device := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	stream := torchtest.NewStream(t, device)
	var optimizers []*Optimizer
	var params []*cgotorch.Tensor
	run := func(x *cgotorch.Exec, backlog int) (before *cgotorch.Event) {
		product := x.Ones(cgotorch.Float32, 8192, 8192)
		for range backlog {
			x.AddOut(product, product, product)
			x.MatMul(product, product).Close()
		}
		before = x.Record()
		ClipGradNorm(x, params, 1)
		for i, o := range optimizers {
			o.SetScale(1 / float64(i+1))
			o.Step(x)
		}
		return before
	}
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
		for range 10 {
			params = append(params, x.Keep(x.Ones(cgotorch.Float32, 64, 64)), x.Keep(x.Ones(cgotorch.BFloat16, 64)))
		}
		for _, p := range params {
			setGrad(x, p, 1)
		}
		for _, foreach := range []bool{false, true} {
			sgd := cgotorch.Must(NewSGD(SGDOptions{Momentum: 0.9, Nesterov: true, WeightDecay: 0.1, Foreach: foreach}, Group{Params: params}))
			adam := cgotorch.Must(NewAdamW(AdamOptions{AMSGrad: true, Foreach: foreach}, Group{Params: params}))
			optimizers = append(optimizers, sgd, adam)
		}
		return run(x, 1).Close() // the first run loads kernels and allocates memory, which may wait
	})
	must.Do(t, stream.Synchronize())
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
		before := run(x, 100) // the work of the device takes a second or more
		for _, o := range optimizers {
			o.ZeroGrad()
		}
		if done, err := before.Query(); err != nil || done {
			t.Errorf("the work before the steps was done when they returned: %v, %v", done, err)
		}
		return before.Close()
	})
	for _, o := range optimizers {
		o.Close()
	}
	for _, p := range params {
		p.Close()
	}
}
