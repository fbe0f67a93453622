package docs

import (
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

type tensor = cgotorch.Tensor

const (
	f32 = cgotorch.Float32
	i64 = cgotorch.Int64
	u8  = cgotorch.Uint8
)

var stepMistakes = []mistake{
	// Shapes.
	{"grey images into a network for colours", "expected input…to have 3 channels…make the layer for these channels", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{})).Forward(x, x.Ones(f32, 8, 1, 28, 28))
	})},
	{"a head for images of another size", "mat1 and mat2 shapes cannot be multiplied (4x2352 and 3072x10)…the last size of the first must be", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewSequential(&nn.Flatten{}, nn.NewLinear(x, 3*32*32, 10, nn.LinearOptions{}))).Forward(x, x.Ones(f32, 4, 3, 28, 28))
	})},
	{"labels [N, 1]", "the labels have more dimensions than [N]…x.Squeeze", step(func(x *cgotorch.Exec) {
		nn.CrossEntropy(x, x.Ones(f32, 8, 10), x.Zeros(i64, 8, 1), nn.CrossEntropyOptions{})
	})},
	{"labels of another batch", "input batch_size (8) to match target batch_size (4)…give one label for each row", step(func(x *cgotorch.Exec) {
		nn.CrossEntropy(x, x.Ones(f32, 8, 10), x.Zeros(i64, 4), nn.CrossEntropyOptions{})
	})},
	{"predictions [N, 1] of targets [N]", "float32[8 1] and float32[8] are of different shapes…x.Squeeze or x.Reshape", step(func(x *cgotorch.Exec) {
		nn.L1(x, x.Ones(f32, 8, 1), x.Ones(f32, 8), nn.L1Options{})
	})},
	{"a sequence of another width", "the input is float32[4 10 8]…want [N, L, 16]", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewLSTM(x, 16, 32, nn.RNNOptions{BatchFirst: true})).Forward(x, x.Ones(f32, 4, 10, 8))
	})},
	{"batch norm of points", "the input is float32[4 8]…want [N, 8, H, W]", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})).Forward(x, x.Ones(f32, 4, 8))
	})},

	// Dtypes and values.
	{"words as floats", "Long, Int; but got CPUFloatType…x.To(t, cgotorch.Int64)", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewEmbedding(x, 100, 8, nn.EmbeddingOptions{})).Forward(x, x.Ones(f32, 2, 5))
	})},
	{"a word beyond the vocabulary", "index out of range…indices are from 0", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewEmbedding(x, 100, 8, nn.EmbeddingOptions{})).Forward(x, x.Full(i64, 100, 2, 5))
	})},
	{"float64 input of a float32 model", "must have the same dtype, but got Double and Float…give both one dtype with x.To", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewLinear(x, 4, 2, nn.LinearOptions{})).Forward(x, x.Ones(cgotorch.Float64, 3, 4))
	})},
	{"bytes into a convolution", "Input type (unsigned char) and bias type (float)…vision.Normalize", step(func(x *cgotorch.Exec) {
		layer(x, nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{})).Forward(x, x.Zeros(u8, 4, 3, 32, 32))
	})},
	{"integer targets of a binary loss", "can't be cast to the desired output type Long…an argument has another dtype…with x.To", step(func(x *cgotorch.Exec) {
		nn.BCEWithLogits(x, x.Ones(f32, 8), x.Ones(i64, 8), nn.BCEOptions{})
	})},
	{"logits as probabilities", "between 0 and 1…use x.Sigmoid before", step(func(x *cgotorch.Exec) {
		nn.BCE(x, x.Full(f32, -3, 8), x.Ones(f32, 8), nn.BCEProbabilitiesOptions{})
	})},
	{"a label of -1", "Target -1 is out of bounds…class numbers are from 0", step(func(x *cgotorch.Exec) {
		nn.CrossEntropy(x, x.Ones(f32, 2, 10), x.Full(i64, -1, 2), nn.CrossEntropyOptions{})
	})},
	{"a misspelled operator", "no operator aten::conv2D…cgotorch.Schemas lists all", step(func(x *cgotorch.Exec) { x.Call("aten::conv2D", x.Ones(f32, 2)) })},

	// Layers, optimizers and rates.
	{"a pool without a window", "Kernel is 0…want at least 1", step(func(x *cgotorch.Exec) { (&nn.MaxPool2d{}).Forward(x, x.Ones(f32, 1, 1, 8, 8)) })},
	{"heads that do not divide the width", "width is 100, heads is 8…want a divisor of width", step(func(x *cgotorch.Exec) {
		nn.NewTransformerEncoderLayer(x, 100, 8, nn.TransformerOptions{})
	})},
	{"an optimizer without parameters", "optim: adam: there are no parameters…give at least one Group with Params", step(func(x *cgotorch.Exec) {
		cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(&nn.ReLU{})}))
	})},
	{"a schedule of 1/step", "sgd: group 0: a learning rate of +Inf…is not a number from 0 up", step(func(x *cgotorch.Exec) {
		o, w := oneWeight(x)
		defer o.Close()
		schedule := optim.Schedule(func(step int) float64 { return 1 / float64(step) })
		o.SetScale(schedule(0))
		o.Minimize(x, x.Sum(x.Mul(w, w)))
	})},
	{"the state of another rule", `optim: adam: the state is one of "sgd"…restore it to an optimizer of that rule`, step(func(x *cgotorch.Exec) {
		o, _ := oneWeight(x)
		defer o.Close()
		adam := cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*tensor{leaf(x)}}))
		defer adam.Close()
		cgotorch.Check(adam.Restore(x, o.State(x)))
	})},
	{"a loss without the parameters", "does not require grad…call SetRequiresGrad before the forward", step(func(x *cgotorch.Exec) {
		o, _ := oneWeight(x)
		defer o.Close()
		o.Minimize(x, x.Sum(x.Ones(f32, 3)))
	})},
	{"accuracy of other classes", "the logits are float32[4]…want [N, C]", step(func(x *cgotorch.Exec) { metric.Accuracy(x, x.Ones(f32, 4), x.Zeros(i64, 4), 1) })},
	{"normalised images, normalised again", "vision.Normalize(float32[2 3 8 8])…pixels must be uint8 [N, H, W, 3]", step(func(x *cgotorch.Exec) {
		vision.Normalize(x, x.Ones(f32, 2, 3, 8, 8), vision.ImageNetMean, vision.ImageNetStd)
	})},

	// Streams, Dos and captures.
	{"a Do of a stream that is closed", "Stream.Do at …test.go:…the stream is closed…close it after its last use", func(string) error {
		s := cgotorch.Must(cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{}))
		s.Close()
		_, err := cgotorch.DoValue(s, func(x *cgotorch.Exec) (int, error) { return 1, nil })
		return err
	}},
	{"a graph of a stream inside its Do", "a Do inside a Do…use Exec.On", step(func(x *cgotorch.Exec) {
		cgotorch.Must(x.Stream().Capture(func(x *cgotorch.Exec) error { return nil }, 0))
	})},
	{"a library of operators that is not there", "OpenOperators at …test.go:…ops.so: no such file…check the path", func(folder string) error { return cgotorch.OpenOperators(filepath.Join(folder, "ops.so")) }},
	{"a tensor of another Do", "a tensor is closed…Keep it there", step(func(x *cgotorch.Exec) {
		var lost *tensor
		done := make(chan error)
		go func() { done <- step(func(x *cgotorch.Exec) { lost = x.Ones(f32, 2) })("") }()
		cgotorch.Check(<-done)
		x.Exp(lost)
	})},
}

func oneWeight(x *cgotorch.Exec) (*optim.Optimizer, *tensor) {
	w := leaf(x)
	return cgotorch.Must(optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: []*tensor{w}})), w
}

// layer returns a module that ends with the Do.
func layer[M any](x *cgotorch.Exec, m M) M {
	x.AtEnd(func() { nn.Close(m) })
	return m
}

func linear(x *cgotorch.Exec, outputs int) *nn.Linear {
	return layer(x, nn.NewLinear(x, 2, outputs, nn.LinearOptions{}))
}

// step returns a function that calls fn in a Do of a stream of its own.
func step(fn func(x *cgotorch.Exec)) func(string) error {
	return func(string) error {
		s := cgotorch.Must(cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{}))
		defer s.Close()
		return s.Do(func(x *cgotorch.Exec) error { fn(x); return nil })
	}
}

// leaf returns a tensor that requires gradients.
func leaf(x *cgotorch.Exec) *tensor {
	v := x.Ones(f32, 2, 2)
	cgotorch.Check(v.SetRequiresGrad(true))
	return v
}
