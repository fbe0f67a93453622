package cgotorch_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// This example is the way from slices to saved weights. It fits y = 2*a - b. On a GPU, a prefetcher
// around the loader copies the batches ahead: see prefetcher.NewTensors.
func ExampleDoEach() {
	var in, out []float32
	for i := range 256 {
		a, b := float32(i%16)/16, float32(i/16)/16
		in, out = append(in, a, b), append(out, 2*a-b)
	}
	table := cgotorch.Must(data.NewTable(data.Of("in", in, 2), data.Of("out", out, 1)))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: 32, Shuffle: true}))
	defer loader.Close()

	cgotorch.Check(cgotorch.Seed(1)) // the weights begin with random numbers
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) {
		return nn.NewLinear(x, 2, 1, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.05}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()
	schedule := optim.Cosine(30*loader.Batches(), 0)
	for epoch := range 30 {
		cgotorch.Must(cgotorch.DoEach(stream, loader.Epoch(context.Background()), func(x *cgotorch.Exec, batch *data.Batch) {
			columns := batch.Use(x)
			opt.SetScale(schedule(epoch*loader.Batches() + batch.Index))
			opt.Minimize(x, nn.MSE(x, model.Forward(x, columns["in"]), columns["out"], nn.MSEOptions{}))
		}))
	}

	path := filepath.Join(os.TempDir(), fmt.Sprintf("line-%d.safetensors", os.Getpid()))
	defer os.Remove(path)
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		return checkpoint.Save(x, path, checkpoint.Checkpoint{Model: model})
	}))
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { // in another program, to use the weights
		again := nn.NewLinear(x, 2, 1, nn.LinearOptions{})
		defer nn.Close(again)
		cgotorch.Check(checkpoint.LoadModel(x, path, again, nn.LoadOptions{})) // an error ends the Do
		fmt.Printf("%.1f\n", cgotorch.ToSlice[float32](x, again.Weight))
		return nil
	}))
	// Output: [2.0 -1.0]
}
