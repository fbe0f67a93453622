package dist_test

import (
	"context"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/dist"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Without a launcher this is a training with one rank. Started by torchrun, each process trains on
// its own batches, and all have the same weights.
func Example() {
	group, err := dist.Join(context.Background(), dist.Options{OnCPU: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer group.Close()
	stream := cgotorch.DefaultStream(group.Device())
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 4, 1, nn.LinearOptions{})
		defer nn.Close(model)
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		if err != nil {
			return err
		}
		defer opt.Close()
		gradients, err := dist.NewGradients(x, group, model, dist.GradientsOptions{})
		if err != nil {
			return err
		}
		defer gradients.Close()
		for range 3 {
			loss := x.Mean(x.Square(model.Forward(x, x.Randn(cgotorch.Float32, 8, 4))))
			opt.ZeroGrad()
			gradients.Backward(x, loss)
			opt.Step(x)
		}
		fmt.Println(group)
		return nil
	})
	fmt.Println(err)
	// Output:
	// rank 0 of 1 on cpu
	// <nil>
}
