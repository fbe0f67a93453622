package book

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

func Example_captured() {
	var model *nn.Linear
	var opt *optim.Optimizer
	var batch, labels *cgotorch.Tensor
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) (err error) {
		model = nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		batch, labels = x.Keep(x.Ones(cgotorch.Float32, 4, 2)), x.Keep(x.Zeros(cgotorch.Int64, 4))
		return err
	}))
	defer nn.Close(model)
	defer opt.Close()
	defer batch.Close()
	defer labels.Close()

	// cut: captured
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		opt.ZeroGrad()
		loss := nn.CrossEntropy(x, model.Forward(x, in[0]), in[1], nn.CrossEntropyOptions{})
		x.Backward(loss)
		opt.Step(x)
		return []*cgotorch.Tensor{loss}
	}, cgotorch.CapturedOptions{})
	defer step.Close()
	var losses []float64
	for range 10 {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
			losses = append(losses, x.Item(step.Run(x, batch, labels)[0]))
			return nil
		}))
	}
	fmt.Println("the loss falls:", losses[9] < losses[0])
	fmt.Println(step.Stats().Launches, "launches, because", step.Stats().Why)
	// end: captured

	// Output:
	// the loss falls: true
	// 0 launches, because the CPU has no graphs
}

// A teacher and its pupil learn in one step: the teacher the truth, and the pupil the teacher.
func Example_twoOptimizers() {
	var teacher, pupil *nn.Linear
	var ofTeacher, ofPupil *optim.Optimizer
	var points, values *cgotorch.Tensor
	cgotorch.Check(cgotorch.Seed(1))
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) (err error) {
		teacher, pupil = nn.NewLinear(x, 1, 1, nn.LinearOptions{}), nn.NewLinear(x, 1, 1, nn.LinearOptions{})
		points = x.Keep(cgotorch.FromSlice(x, []float32{-1, 0, 1}, 3, 1))
		values = x.Keep(cgotorch.FromSlice(x, []float32{1, 3, 5}, 3, 1))
		if ofTeacher, err = optim.NewSGD(optim.SGDOptions{LR: 0.3}, optim.Group{Params: nn.Parameters(teacher)}); err != nil {
			return err
		}
		ofPupil, err = optim.NewSGD(optim.SGDOptions{LR: 0.3}, optim.Group{Params: nn.Parameters(pupil)})
		return err
	}))
	defer nn.Close(teacher)
	defer nn.Close(pupil)
	defer ofTeacher.Close()
	defer ofPupil.Close()
	defer points.Close()
	defer values.Close()

	// cut: two
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		ofTeacher.ZeroGrad()
		ofPupil.ZeroGrad()
		answer := teacher.Forward(x, in[0])
		x.Backward(nn.MSE(x, answer, in[1], nn.MSEOptions{}))
		loss := nn.MSE(x, pupil.Forward(x, in[0]), x.Detach(answer), nn.MSEOptions{})
		x.Backward(loss)
		ofTeacher.Step(x)
		ofPupil.Step(x)
		return []*cgotorch.Tensor{loss}
	}, cgotorch.CapturedOptions{})
	// end: two
	defer step.Close()
	var loss float64
	for range 60 {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { loss = x.Item(step.Run(x, points, values)[0]); return nil }))
	}
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		fmt.Printf("%.2f %.2f\n", x.Item(pupil.Weight), x.Item(pupil.Bias))
		return nil
	}))
	fmt.Println(loss < 1e-3)
	// Output:
	// 2.00 3.00
	// true
}

func Example_eachLaunch() {
	// cut: eachlaunch
	rounds := 0
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		x.EachLaunch(func(*cgotorch.Exec) { rounds++ }) // once for each Run, also when a graph is launched
		return []*cgotorch.Tensor{x.MulScalar(in[0], 2)}
	}, cgotorch.CapturedOptions{})
	// end: eachlaunch
	defer step.Close()
	for range 5 {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { step.Run(x, x.Ones(cgotorch.Float32, 2)); return nil }))
	}
	fmt.Println(rounds)
	// Output: 5
}
