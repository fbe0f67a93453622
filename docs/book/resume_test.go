package book

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher"
)

var errKilled = errors.New("the process was killed")

// trainClouds trains for three epochs, as a process that continues what an earlier one has saved
// at path. It fails in the step with number `last` of its own steps. It returns the sum of the
// squares of the weights.
func trainClouds(path string, last int) (squares float64, err error) {
	cgotorch.Check(cgotorch.Seed(1))
	ctx := context.Background()
	points, labels := twoClouds()
	table := cgotorch.Must(data.NewTable(data.Of("point", points, 2), data.Of("label", labels)))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: 50, Shuffle: true}))
	defer loader.Close()
	ahead := cgotorch.Must(prefetcher.NewTensors(loader, cgotorch.CPU, prefetcher.TensorOptions{}))
	defer ahead.Close()
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) {
		return nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()

	lossOf := func(x *cgotorch.Exec, in map[string]*cgotorch.Tensor) *cgotorch.Tensor {
		if last--; last == 0 {
			cgotorch.Check(errKilled)
		}
		return nn.CrossEntropy(x, model.Forward(x, in["point"]), in["label"], nn.CrossEntropyOptions{})
	}

	// cut: goon
	run := checkpoint.Checkpoint{Model: model, Optimizer: opt, Loader: ahead}
	if _, err := os.Stat(path); err == nil { // an earlier process has saved
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { return checkpoint.Resume(x, path, &run) }))
		fmt.Println("continues in epoch", run.Epoch, "after step", run.Step)
	}
	for run.Epoch < 3 {
		step := func(x *cgotorch.Exec, batch *prefetcher.TensorBatch) error {
			opt.Minimize(x, lossOf(x, batch.Use(x)))
			if run.Step++; run.Step%4 == 0 {
				return checkpoint.Save(x, path, run) // a resumed run continues with the next batch
			}
			return nil
		}
		if _, err := cgotorch.DoEach(stream, ahead.Epoch(ctx), step); err != nil {
			return 0, err
		}
		run.Epoch++ // here the place of the prefetcher is the start of the next epoch
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { return checkpoint.Save(x, path, run) }))
	}
	// end: goon
	return cgotorch.DoValue(stream, func(x *cgotorch.Exec) (float64, error) { return x.Item(x.Sum(x.Square(model.Weight))), nil })
}

func Example_resume() {
	folder := cgotorch.Must(os.MkdirTemp("", "book"))
	defer os.RemoveAll(folder)
	whole := cgotorch.Must(trainClouds(filepath.Join(folder, "whole.safetensors"), 0))
	path := filepath.Join(folder, "run.safetensors")
	for _, last := range []int{15, 9} { // 10 batches an epoch
		_, err := trainClouds(path, last)
		fmt.Println(errors.Is(err, errKilled))
	}
	fmt.Println("as without the two ends:", cgotorch.Must(trainClouds(path, 0)) == whole)
	// Output:
	// true
	// continues in epoch 1 after step 12
	// true
	// continues in epoch 2 after step 20
	// as without the two ends: true
}
