package book

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// cut: gated

// Gated is a linear layer whose result a second layer weakens or keeps.
type Gated struct {
	Value, Gate *nn.Linear       // value.weight, value.bias, gate.weight, gate.bias
	Scale       *cgotorch.Tensor // scale, a parameter
	Steps       *cgotorch.Tensor `state:",buffer"` // steps: saved, but not trained
}

func NewGated(x *cgotorch.Exec, in, out int) *Gated {
	m := &Gated{
		Value: nn.NewLinear(x, in, out, nn.LinearOptions{}),
		Gate:  nn.NewLinear(x, in, out, nn.LinearOptions{}),
		Scale: x.Keep(x.Ones(cgotorch.Float32, int64(out))), // the module outlives the Do
		Steps: x.Keep(x.Zeros(cgotorch.Int64)),
	}
	if err := m.Scale.SetRequiresGrad(true); err != nil {
		x.Fail("NewGated", err)
	}
	return m
}

func (m *Gated) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { // closes all handles but that of the result
		gate := x.Sigmoid(m.Gate.Forward(x, in))
		return x.Mul(x.Mul(m.Value.Forward(x, in), gate), m.Scale)
	})
}

// end: gated

func Example_layer() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		model := nn.NewSequential(
			NewGated(x, 4, 8),
			nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Square(in) }), // no state
			nn.NewLinear(x, 8, 2, nn.LinearOptions{}),
		)
		defer nn.Close(model)
		x.Backward(x.Sum(model.Forward(x, x.Ones(cgotorch.Float32, 3, 4))))
		for _, n := range nn.State(model)[:3] {
			fmt.Println(n.Name, n.Tensor.Shape(), n.Tensor.Grad() != nil)
		}
		return nil
	}))
	// Output:
	// 0.scale [8] true
	// 0.steps [] false
	// 0.value.weight [8 4] true
}

func Example_check() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		heads := &struct{ Heads map[string]*nn.Linear }{map[string]*nn.Linear{"a": nn.NewLinear(x, 2, 2, nn.LinearOptions{})}}
		defer nn.Close(heads.Heads["a"])
		fmt.Println(nn.Check(heads) != nil) // the error names the field: a map has no order, so use a slice
		return nil
	}))
	// Output: true
}

func Example_call() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		channels := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 1, 4, 1, 1)
		mixed := x.Call1("aten::channel_shuffle", channels, 2) // channel_shuffle(Tensor self, int groups) -> Tensor
		fmt.Println(cgotorch.ToSlice[float32](x, mixed))
		return nil
	}))
	// Output: [1 3 2 4]
}

func Example_straightThrough() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		in := cgotorch.FromSlice(x, []float32{0.2, 0.9})
		if err := in.SetRequiresGrad(true); err != nil {
			return err
		}
		// cut: through
		rounded := x.Add(in, x.Detach(x.Sub(x.Round(in), in))) // the value of Round, the gradient of in
		// end: through
		x.Backward(x.Sum(x.MulScalar(rounded, 3)))
		fmt.Println(cgotorch.ToSlice[float32](x, rounded), cgotorch.ToSlice[float32](x, in.Grad()))
		return nil
	}))
	// Output: [0 1] [3 3]
}
