package optim_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// This example fits a line to points by gradient descent. The learning rate warms up and then
// falls.
func Example() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		in, want := cgotorch.FromSlice(x, []float32{-1, 0, 1, 2}), cgotorch.FromSlice(x, []float32{-1, 1, 3, 5})
		slope, offset := x.Zeros(cgotorch.Float32), x.Zeros(cgotorch.Float32)
		params := []*cgotorch.Tensor{slope, offset}
		for _, p := range params {
			if err := p.SetRequiresGrad(true); err != nil {
				return err
			}
		}
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.2, Momentum: 0.5}, optim.Group{Params: params})
		if err != nil {
			return err
		}
		defer opt.Close()
		schedule := optim.Warmup(5, 0.1, optim.Cosine(95, 0))
		for step := range 100 {
			opt.ZeroGrad()
			opt.SetScale(schedule(step))
			x.Backward(x.MSELoss(x.Add(x.Mul(in, slope), offset), want, cgotorch.LossOptions{}))
			opt.Step(x)
		}
		fmt.Printf("%.3f*x + %.3f\n", x.Item(slope), x.Item(offset))
		return nil
	})
	fmt.Println(err)
	// Output:
	// 2.000*x + 1.000
	// <nil>
}

// Gradients in float16 need a factor. The scaler finds this factor. It begins with a factor that
// is too high here, so it skips the first steps.
func ExampleScaler() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		weight := x.Ones(cgotorch.Float16, 4)
		if err := weight.SetRequiresGrad(true); err != nil {
			return err
		}
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.5, MasterWeights: true}, optim.Group{Params: []*cgotorch.Tensor{weight}})
		if err != nil {
			return err
		}
		defer opt.Close()
		scaler, err := optim.NewScaler(x, optim.ScalerOptions{InitScale: 1 << 18})
		if err != nil {
			return err
		}
		defer scaler.Close()
		for range 5 {
			opt.ZeroGrad()
			loss := x.Mean(x.Square(x.To(weight, cgotorch.Float32)))
			x.Backward(scaler.Scale(x, loss))
			scaler.Step(x, opt)
			scaler.Update(x)
		}
		state := scaler.State(x)
		fmt.Println("steps skipped:", state.Skipped, "factor:", state.Scale)
		fmt.Println(cgotorch.ToSlice[float32](x, x.To(weight, cgotorch.Float32)))
		return nil
	})
	fmt.Println(err)
	// Output:
	// steps skipped: 2 factor: 65536
	// [0.421875 0.421875 0.421875 0.421875]
	// <nil>
}

// Two backwards of half of the samples give the gradient of all samples.
func ExampleOptimizer_ZeroGrad_accumulate() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		weight := x.Ones(cgotorch.Float32, 1)
		if err := weight.SetRequiresGrad(true); err != nil {
			return err
		}
		opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: []*cgotorch.Tensor{weight}})
		if err != nil {
			return err
		}
		defer opt.Close()
		parts := x.Chunk(cgotorch.FromSlice(x, []float32{1, 2, 3, 4}), 2, 0)
		opt.ZeroGrad()
		for _, part := range parts {
			loss := x.Mean(x.Mul(part, weight))
			x.Backward(x.DivScalar(loss, len(parts)))
		}
		fmt.Println("gradient", x.Item(weight.Grad()))
		opt.Step(x)
		return nil
	})
	fmt.Println(err)
	// Output:
	// gradient 2.5
	// <nil>
}

// LBFGS calls the loss itself, several times in a step.
func ExampleLBFGS() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		p := cgotorch.FromSlice(x, []float64{-1.5, 2})
		if err := p.SetRequiresGrad(true); err != nil {
			return err
		}
		opt, err := optim.NewLBFGS(optim.LBFGSOptions{StrongWolfe: true}, []*cgotorch.Tensor{p})
		if err != nil {
			return err
		}
		defer opt.Close()
		for range 5 { // the valley of Rosenbrock's function
			opt.Step(x, func(x *cgotorch.Exec) *cgotorch.Tensor {
				a, b := x.Select(p, 0, 0), x.Select(p, 0, 1)
				return x.Add(x.Square(x.ScalarSub(a, 1)), x.MulScalar(x.Square(x.Sub(b, x.Square(a))), 100))
			})
		}
		fmt.Printf("%.4f\n", cgotorch.ToSlice[float64](x, p))
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1.0000 1.0000]
	// <nil>
}

// A plateau lowers the learning rate after more than Patience epochs without progress.
func ExamplePlateau() {
	plateau, err := optim.NewPlateau(optim.PlateauOptions{Factor: 0.5, Patience: cgotorch.Set(1)})
	if err != nil {
		panic(err)
	}
	for _, loss := range []float64{1, 0.8, 0.8, 0.8, 0.7} {
		fmt.Print(plateau.Update(loss), " ") // opt.SetScale(plateau.Update(loss))
	}
	fmt.Println()
	// Output:
	// 1 1 1 0.5 0.5
}
