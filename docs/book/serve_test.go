package book

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

func Example_inference() {
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (nn.Module, error) {
		return nn.NewLinear(x, 2, 1, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)

	// cut: inference
	nn.SetTraining(model, false)
	infer, err := cgotorch.NewInference(cgotorch.CPU, model.Forward, cgotorch.InferenceOptions{BatchSizes: []int{1, 8}})
	cgotorch.Check(err)
	defer infer.Close()
	cgotorch.Check(infer.Prepare(context.Background(), func(x *cgotorch.Exec) *cgotorch.Tensor { return x.Zeros(cgotorch.Float32, 1, 2) }))

	var all sync.WaitGroup
	answers := make([][]float32, 10)
	for i := range answers {
		all.Add(1)
		go func() { // a request
			defer all.Done()
			cgotorch.Check(infer.Do(context.Background(), func(x *cgotorch.Exec, forward func(*cgotorch.Tensor) *cgotorch.Tensor) error {
				in := cgotorch.FromSlice(x, []float32{1, 2}, 1, 2)
				answers[i] = cgotorch.ToSlice[float32](x, forward(in)) // waits for the device
				return nil
			}))
		}()
	}
	all.Wait()
	// end: inference
	fmt.Println(len(answers[0]), answers[0][0] == answers[9][0])
	// Output: 1 true
}

func Example_batcher() {
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (nn.Module, error) {
		return nn.NewLinear(x, 2, 1, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)

	// cut: batcher
	nn.SetTraining(model, false)
	forward := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{model.Forward(x, in[0])}
	}
	batcher, err := serve.New(cgotorch.CPU, forward, serve.Options{
		Inputs:     []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}}, // of one entry
		BatchSizes: []int{1, 8, 32},
	})
	cgotorch.Check(err)
	defer batcher.Close()

	var all sync.WaitGroup
	answers := make([][]float32, 10)
	for i := range answers {
		all.Add(1)
		go func() { // a request of one entry
			defer all.Done()
			out, err := batcher.Predict(context.Background(), serve.Of([]float32{1, 2}, 1, 2))
			cgotorch.Check(err)
			answers[i], err = serve.Elements[float32](out[0])
			cgotorch.Check(err)
		}()
	}
	all.Wait()
	// end: batcher
	fmt.Println(len(answers[0]))
	// Output: 1
}
