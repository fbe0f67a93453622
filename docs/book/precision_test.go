package book

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

func Example_autocast() {
	// cut: autocast
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 4, 2, nn.LinearOptions{}) // its weights stay float32
		defer nn.Close(model)
		ax := x.Autocast(cgotorch.BFloat16) // another Exec of the same Do
		logits := model.Forward(ax, x.Ones(cgotorch.Float32, 3, 4))
		loss := nn.CrossEntropy(ax, logits, x.Zeros(cgotorch.Int64, 3), nn.CrossEntropyOptions{})
		x.Backward(loss) // without autocast: each gradient gets the dtype of its forward
		fmt.Println("logits", logits.DType(), "loss", loss.DType(), "gradient", model.Weight.Grad().DType())
		return nil
	}))
	// end: autocast

	// Output: logits bfloat16 loss float32 gradient float32
}
