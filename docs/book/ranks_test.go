package book

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
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

func Example_ranks() {
	// cut: ranks
	group, err := distributed.Join(context.Background(), distributed.Options{Device: "cpu"}) // without Device: cuda:LOCAL_RANK
	cgotorch.Check(err)
	defer group.Close()
	stream := cgotorch.DefaultStream(group.Device())
	defer stream.Close()

	var model *nn.Linear
	var opt *optim.Optimizer
	var gradients *distributed.Gradients
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) (err error) {
		model = nn.NewLinear(x, 4, 1, nn.LinearOptions{})
		gradients, err = distributed.NewGradients(x, group, model, distributed.GradientsOptions{}) // all ranks get the weights of rank 0
		cgotorch.Check(err)
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		return err
	}))
	defer nn.Close(model)
	defer opt.Close()
	defer gradients.Close()

	var loss float64
	for range 50 {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
			in := x.Randn(cgotorch.Float32, 8, 4) // the batch of this rank
			out := x.SumDim(in, []int64{1}, cgotorch.SumOptions{KeepDim: true})
			mse := nn.MSE(x, model.Forward(x, in), out, nn.MSEOptions{})
			opt.ZeroGrad()
			gradients.Backward(x, mse) // the mean over all ranks
			opt.Step(x)
			mean := x.Detach(mse)
			group.AllReduce(x, mean, distributed.Mean)
			loss = x.Item(mean) // waits for the device
			return nil
		}))
	}
	fmt.Println(group, "has learnt:", loss < 0.01)
	// end: ranks

	// Output:
	// rank 0 of 1 on cpu has learnt: true
}

func Example_ranksResume() {
	group := cgotorch.Must(distributed.Join(context.Background(), distributed.Options{Device: "cpu"}))
	defer group.Close()
	folder := cgotorch.Must(os.MkdirTemp("", "ranks"))
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "run.safetensors")
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 4, 1, nn.LinearOptions{})
		defer nn.Close(model)
		opt := cgotorch.Must(optim.NewAdamW(optim.AdamOptions{LR: 1e-3}, optim.Group{Params: nn.Parameters(model)}))
		defer opt.Close()
		gradients := cgotorch.Must(distributed.NewGradients(x, group, model, distributed.GradientsOptions{}))
		defer gradients.Close()
		const seed = 1
		// cut: resume
		run := checkpoint.Checkpoint{Model: model, Optimizer: opt, Step: 100}
		if group.Rank() == 0 { // a Sharded is saved by all ranks, and rank 0 writes the file
			cgotorch.Check(checkpoint.Save(x, path, run))
		}
		group.Barrier(x) // the file is there

		cgotorch.Check(checkpoint.Resume(x, path, &run))                                      // on all ranks: the optimizer's state is in it
		cgotorch.Check(cgotorch.Seed(seed + uint64(run.Step)<<20 + uint64(group.Rank())<<48)) // other dropouts on each rank
		distributed.CheckEqual(x, group, model)
		// end: resume
		fmt.Println("step", run.Step)
		return nil
	}))
	// Output:
	// step 100
}

func Example_ranksLoad() {
	rank, ranks := 0, 1
	// cut: divided
	loader, err := imageloader.Open(photosTGZ, imageloader.Options{
		Split: "test", BatchSize: 64, Crop: imageloader.Crop{Transform: decode.Resize{Height: 32, Width: 32}},
		// Each rank has other images. For a test: no image twice, and the last batches may differ in size.
		Ranks: imageloader.Ranks{World: ranks, Rank: rank, EachOnce: true},
	})
	cgotorch.Check(err)
	defer loader.Close()
	// end: divided
	fmt.Println(loader.Len() > 0)
	// Output:
	// true
}
