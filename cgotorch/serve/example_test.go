package serve_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// A function that doubles its entries answers four goroutines.
func ExampleBatcher() {
	double := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{x.MulScalar(in[0], 2)}
	}
	b, err := serve.New(cgotorch.CPU, double, serve.Options{
		Inputs: []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	answers := make([][]float32, 4)
	var all sync.WaitGroup
	for i := range answers {
		all.Add(1)
		go func() {
			defer all.Done()
			out, err := b.Predict(context.Background(), serve.Of([]float32{float32(i), 0.5}, 1, 2))
			if err == nil {
				answers[i], err = serve.Elements[float32](out[0])
			}
			if err != nil {
				fmt.Println(err)
			}
		}()
	}
	all.Wait()
	fmt.Println(answers)
	// Output: [[0 1] [2 1] [4 1] [6 1]]
}
