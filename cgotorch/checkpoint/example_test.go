package checkpoint_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

type config struct{ In, Out int }

// This example saves a run. Then it continues as another program would: it makes the model again
// from the config in the checkpoint, and resumes the run.
func Example() {
	folder, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "run.safetensors")

	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 3, 2, nn.LinearOptions{})
		defer nn.Close(model)
		return checkpoint.Save(x, path, checkpoint.Checkpoint{Model: model, Epoch: 4, Config: config{3, 2}})
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	err = stream.Do(func(x *cgotorch.Exec) error {
		info, err := checkpoint.Inspect(path)
		if err != nil {
			return err
		}
		var c config
		if err := json.Unmarshal(info.Config, &c); err != nil {
			return err
		}
		model := nn.NewLinear(x, c.In, c.Out, nn.LinearOptions{})
		defer nn.Close(model)
		run := checkpoint.Checkpoint{Model: model}
		err = checkpoint.Resume(x, path, &run)
		fmt.Println("epoch", run.Epoch, model.Weight.Shape())
		return err
	})
	fmt.Println(err)
	// Output:
	// epoch 4 [2 3]
	// <nil>
}
