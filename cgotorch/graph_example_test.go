package cgotorch_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// On a GPU a step of gradient descent becomes one launch. On the CPU, as in this example, each
// Run calls the function.
func ExampleCaptured() {
	device, err := cgotorch.ParseDevice("cpu") // "auto" chooses a GPU if there is one
	if err != nil {
		panic(err)
	}
	stream := cgotorch.DefaultStream(device)
	defer stream.Close()
	var weight, batch *cgotorch.Tensor
	err = stream.Do(func(x *cgotorch.Exec) error {
		weight, batch = x.Keep(x.Ones(cgotorch.Float32, 2, 1)), x.Keep(x.Ones(cgotorch.Float32, 4, 2))
		return weight.SetRequiresGrad(true)
	})
	if err != nil {
		panic(err)
	}
	defer weight.Close()
	defer batch.Close()

	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		if err := weight.SetGrad(nil); err != nil {
			x.Fail("step", err)
		}
		out := x.MatMul(in[0], weight)
		loss := x.Mean(x.Mul(out, out))
		x.Backward(loss)
		y := x.NoGrad()
		y.AddInPlace(weight, y.MulScalar(weight.Grad(), -0.125))
		return []*cgotorch.Tensor{loss}
	}, cgotorch.CapturedOptions{})
	defer step.Close()

	for range 3 {
		err := stream.Do(func(x *cgotorch.Exec) error {
			fmt.Println(x.Item(step.Run(x, batch)[0]))
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(step.Stats().Why)
	// Output:
	// 4
	// 1
	// 0.25
	// the CPU has no graphs
}

// A model is given by its Forward, after nn.SetTraining(model, false).
func ExampleInference() {
	double := func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.MulScalar(in, 2) }
	options := cgotorch.InferenceOptions{BatchSizes: []int{1, 8}}
	infer := cgotorch.Must(cgotorch.NewInference(cgotorch.CPU, double, options))
	defer infer.Close()
	cgotorch.Check(infer.Prepare(context.Background(), func(x *cgotorch.Exec) *cgotorch.Tensor {
		return x.Zeros(cgotorch.Float32, 1, 2)
	}))

	var all sync.WaitGroup
	answers := make([][]float32, 4)
	for i := range answers {
		all.Add(1)
		go func() { // a request
			defer all.Done()
			type forward = func(*cgotorch.Tensor) *cgotorch.Tensor
			cgotorch.Check(infer.Do(context.Background(), func(x *cgotorch.Exec, f forward) error {
				in := cgotorch.FromSlice(x, []float32{float32(i), 0.5}, 1, 2)
				answers[i] = cgotorch.ToSlice[float32](x, f(in)) // waits for the device
				return nil
			}))
		}()
	}
	all.Wait()
	fmt.Println(answers)
	// Output: [[0 1] [2 1] [4 1] [6 1]]
}

// On a GPU the gradients of a layer's weights are computed in parallel with the gradients of the
// layer's input.
func ExampleNewOverlap() {
	overlap, err := cgotorch.NewOverlap(cgotorch.OverlapOptions{})
	if err != nil {
		panic(err)
	}
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		images, weight := x.Ones(cgotorch.Float32, 1, 1, 3, 3), x.Ones(cgotorch.Float32, 1, 1, 2, 2)
		if err := weight.SetRequiresGrad(true); err != nil {
			return err
		}
		loss := x.Sum(x.Conv2d(images, weight, nil, cgotorch.Conv2dOptions{}))
		x.BackwardWith(cgotorch.BackwardOptions{Overlap: overlap}, loss)
		fmt.Println(cgotorch.ToSlice[float32](x, weight.Grad()))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: [4 4 4 4]
}

// Work is captured once and can be launched on any stream. The tensor that the work writes is
// made before the capture.
func ExampleStream_Capture() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	var sum *cgotorch.Tensor
	err := stream.Do(func(x *cgotorch.Exec) error { sum = x.Keep(x.Zeros(cgotorch.Float32)); return nil })
	if err != nil {
		panic(err)
	}
	defer sum.Close()
	graph, err := stream.Capture(func(x *cgotorch.Exec) error {
		x.AddScalarInPlace(sum, 1.5)
		return nil
	}, 0)
	if err != nil {
		panic(err)
	}
	defer graph.Close()
	for range 4 {
		if err := graph.Launch(stream); err != nil {
			panic(err)
		}
	}
	err = stream.Do(func(x *cgotorch.Exec) error { fmt.Println(x.Item(sum)); return nil })
	if err != nil {
		panic(err)
	}
	// Output: 6
}
