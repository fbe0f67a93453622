package nn_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Net is a module: its fields are its children.
type Net struct {
	Conv1 *nn.Conv2d
	BN1   *nn.BatchNorm2d
	FC    *nn.Linear
}

func NewNet(x *cgotorch.Exec) *Net {
	return &Net{
		Conv1: nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true}),
		BN1:   nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}),
		FC:    nn.NewLinear(x, 8, 10, nn.LinearOptions{}),
	}
}

func (n *Net) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
	return nn.NewSequential(
		n.Conv1, n.BN1, &nn.ReLU{InPlace: true}, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, n.FC,
	).Forward(x, images)
}

func Example() {
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		net := NewNet(x)
		defer nn.Close(net)
		for _, n := range nn.State(net) {
			fmt.Println(n.Name, n.Tensor.Shape())
		}
		images := x.Rand(cgotorch.Float32, 4, 3, 16, 16)
		labels := cgotorch.FromSlice(x, []int64{0, 9, 3, 3})
		loss := nn.CrossEntropy(x, net.Forward(x, images), labels, nn.CrossEntropyOptions{LabelSmoothing: 0.1})
		x.Backward(loss)
		fmt.Println("loss", loss.Shape(), "gradient", net.FC.Weight.Grad().Shape())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// conv1.weight [8 3 3 3]
	// bn1.weight [8]
	// bn1.bias [8]
	// bn1.running_mean [8]
	// bn1.running_var [8]
	// bn1.num_batches_tracked []
	// fc.weight [10 8]
	// fc.bias [10]
	// loss [] gradient [10 8]
}

// First the host reads which experts the tokens need, for instance to fetch their weights. Then
// the host calls each of these experts.
func ExampleDispatch() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		tokens, ids := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 4, 1), cgotorch.FromSlice(x, []int64{2, 0, 2, 1})
		out := nn.Dispatch(x, tokens, cgotorch.ToSlice[int64](x, ids), nn.ExpertOrder(x, ids), func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
			fmt.Println("expert", expert, "has", cgotorch.ToSlice[float32](x, rows))
			return x.MulScalar(rows, 10*expert)
		})
		fmt.Println(cgotorch.ToSlice[float32](x, out))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// expert 0 has [2]
	// expert 1 has [4]
	// expert 2 has [1 3]
	// [20 0 60 40]
}

// A recurrent layer reads a sequence in two parts: its state goes from the first to the second.
func ExampleLSTM() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		m := nn.NewLSTM(x, 3, 4, nn.RNNOptions{BatchFirst: true})
		defer nn.Close(m)
		in := x.Randn(cgotorch.Float32, 2, 6, 3)
		whole := m.Forward(x, in)
		_, state, cell := m.ForwardState(x, x.Narrow(in, 1, 0, 4), nil, nil)
		rest, _, _ := m.ForwardState(x, x.Narrow(in, 1, 4, 2), state, cell)
		fmt.Println(whole.Shape(), rest.Shape(), x.AllClose(rest, x.Narrow(whole, 1, 4, 2), cgotorch.ToleranceOptions{}))
		for _, n := range nn.State(m) {
			fmt.Println(n.Name, n.Tensor.Shape())
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// [2 6 4] [2 2 4] true
	// weight_ih_l0 [16 3]
	// weight_hh_l0 [16 4]
	// bias_ih_l0 [16]
	// bias_hh_l0 [16]
}

// A translation model: the decoder sees the encoder's result, and no later position of its own.
func ExampleTransformer() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		m := nn.NewTransformer(x, 8, 2, nn.TransformerOptions{Layers: [2]int{1, 1}, FeedForward: 16, Causal: true})
		defer nn.Close(m)
		source, target := x.Randn(cgotorch.Float32, 2, 5, 8), x.Randn(cgotorch.Float32, 2, 3, 8)
		ends := cgotorch.FromSlice(x, []bool{false, false, false, false, false, false, false, false, true, true}, 2, 5)
		out := m.ForwardWith(x, source, target, nn.AttentionMask{Padding: ends}, nn.AttentionMask{})
		fmt.Println(out.Shape())
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// [2 3 8]
}
