package distributed_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Without a launcher this is a training with one rank. Started by torchrun, each process trains on
// its own batches, and all have the same weights.
func Example() {
	group, err := distributed.Join(context.Background(), distributed.Options{Device: "cpu"})
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
		gradients, err := distributed.NewGradients(x, group, model, distributed.GradientsOptions{})
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

// Each rank keeps its part of the moments of Adam. All ranks call Save and Load, and rank 0 writes
// the file, which a program with another number of ranks can load too.
func ExampleNewSharded() {
	group, err := distributed.Join(context.Background(), distributed.Options{Device: "cpu"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer group.Close()
	folder, err := os.MkdirTemp("", "sharded")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	stream := cgotorch.DefaultStream(group.Device())
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 4, 1, nn.LinearOptions{})
		defer nn.Close(model)
		adamw := func(groups ...optim.Group) (*optim.Optimizer, error) {
			return optim.NewAdamW(optim.AdamOptions{LR: 1e-3}, groups...)
		}
		opt, err := distributed.NewSharded(x, group, distributed.ShardedOptions{}, adamw, optim.Group{Params: nn.Parameters(model)})
		if err != nil {
			return err
		}
		defer opt.Close()
		for range 3 {
			loss := x.Mean(x.Square(model.Forward(x, x.Randn(cgotorch.Float32, 8, 4))))
			opt.ZeroGrad()
			x.Backward(loss) // the step reduces the gradients
			opt.ClipGradNorm(x, 1)
			opt.Step(x)
		}
		path := filepath.Join(folder, "run.safetensors")
		run := checkpoint.Checkpoint{Model: model, Optimizer: opt, Step: 3}
		if err := checkpoint.Save(x, path, run); err != nil {
			return err
		}
		group.Barrier(x) // the file is there
		err = checkpoint.Resume(x, path, &run)
		fmt.Println("step", run.Step, "with", opt.Stats().WholeBytes, "bytes of state")
		return err
	})
	fmt.Println(err)
	// Output:
	// step 3 with 40 bytes of state
	// <nil>
}
