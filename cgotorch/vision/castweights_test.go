package vision_test

import (
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Under autocast each model casts the weights of its convolutions and linear layers by one
// operator: their gradients lie in one storage. The loss and the gradients have the bits of
// layers that cast their own weights.
func TestForward_CastsWeights(t *testing.T) {
	torchtest.ForEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if d.IsCUDA() {
			torchtest.Deterministic(t)
		}
		for _, name := range []string{"efficientnet_b0", "googlenet", "mlp", "mobilenet_v2", "resnet18", "squeezenet1_1"} {
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				m := must.Get(vision.New(x, name, vision.Options{Classes: 10, NoAux: true}))(t)
				defer nn.Close(m)
				nn.SetParallelism(m, nn.AlwaysParallel)
				nn.To(x, m, nn.ToOptions{ChannelsLast: true})
				images := x.Contiguous(x.Randn(cgotorch.Float32, 2, 3, 32, 32), cgotorch.ChannelsLast)
				step := func(y *cgotorch.Exec) (all [][]float32) {
					cgotorch.Seed(1)
					must.Do(t, nn.ZeroGrad(m))
					before := cgotorch.LiveHandles()["tensor"]
					out := m.Forward(y, images)
					if n := cgotorch.LiveHandles()["tensor"] - before; n != 1 {
						t.Errorf("%s: Forward leaves %d tensors open, want 1", name, n)
					}
					loss := x.Mean(x.To(out, cgotorch.Float32))
					x.Backward(loss)
					all = append(all, cgotorch.ToSlice[float32](x, loss))
					for _, p := range nn.Parameters(m) {
						all = append(all, cgotorch.ToSlice[float32](x, x.Contiguous(p.Grad(), cgotorch.Contiguous)))
					}
					return all
				}
				half := x.Autocast(cgotorch.BFloat16)
				other := nn.NewLinear(x, 1, 1, nn.LinearOptions{})
				defer nn.Close(other)
				own, release := nn.CastWeights(half, other) // with casts of another module, the model makes none
				defer release()
				want := step(own)
				if got := step(half); !slices.EqualFunc(got, want, slices.Equal) {
					t.Errorf("%s: the loss or the gradients differ", name)
				}
				var first *cgotorch.Tensor
				for _, n := range nn.NamedParameters(m) {
					if n.Tensor.Dim() < 2 { // of a norm, or a bias
						continue
					}
					if first == nil {
						first = n.Tensor.Grad()
					}
					if !n.Tensor.Grad().SharesMemory(first) {
						t.Errorf("%s: the gradient of %s has memory of its own", name, n.Name)
					}
				}
			})
		}
	})
}
