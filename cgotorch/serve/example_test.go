package serve_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// A function that doubles its entries answers four goroutines. A model answers as its Forward does,
// after nn.SetTraining(model, false).
func ExampleBatcher() {
	double := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{x.MulScalar(in[0], 2)}
	}
	batcher := cgotorch.Must(serve.New(cgotorch.CPU, double, serve.Options{
		Inputs:     []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}}, // of one entry
		BatchSizes: []int{1, 8, 32},
	}))
	defer batcher.Close()

	var all sync.WaitGroup
	answers := make([][]float32, 4)
	for i := range answers {
		all.Add(1)
		go func() { // a request of one entry
			defer all.Done()
			in := serve.Of([]float32{float32(i), 0.5}, 1, 2)
			out := cgotorch.Must(batcher.Predict(context.Background(), in))
			answers[i] = cgotorch.Must(serve.Elements[float32](out[0]))
		}()
	}
	all.Wait()
	fmt.Println(answers)
	// Output: [[0 1] [2 1] [4 1] [6 1]]
}
