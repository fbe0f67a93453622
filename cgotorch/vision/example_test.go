package vision_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// A model by its name. The names of its tensors are torchvision's, so their weights load.
func ExampleNew() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		model, err := vision.New(x, "resnet20", vision.Options{Classes: 10})
		if err != nil {
			return err
		}
		defer nn.Close(model)
		nn.SetTraining(model, false)
		pixels := x.Zeros(cgotorch.Uint8, 2, 32, 32, 3) // two pictures
		images := vision.Normalize(x, pixels, vision.ImageNetMean, vision.ImageNetStd)
		fmt.Println(images.Shape(), model.Forward(x.NoGrad(), images).Shape())
		fmt.Println(nn.State(model)[0].Name, len(nn.Parameters(model)))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// [2 3 32 32] [2 10]
	// conv1.weight 65
}
