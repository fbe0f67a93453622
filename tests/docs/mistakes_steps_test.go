package docs

import (
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
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
	{
		name: "grey images into a network for colours",
		want: "expected input…to have 3 channels…make the layer for these channels",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{})).Forward(x, x.Ones(f32, 8, 1, 28, 28))
			return nil
		},
	},
	{
		name: "a head for images of another size",
		want: "mat1 and mat2 shapes cannot be multiplied (4x2352 and 3072x10)…the last size of the first must be",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewSequential(&nn.Flatten{}, nn.NewLinear(x, 3*32*32, 10, nn.LinearOptions{}))).Forward(x, x.Ones(f32, 4, 3, 28, 28))
			return nil
		},
	},
	{
		name: "labels [N, 1]",
		want: "the labels have more dimensions than [N]…x.Squeeze",
		do: func(x *cgotorch.Exec) error {
			nn.CrossEntropy(x, x.Ones(f32, 8, 10), x.Zeros(i64, 8, 1), nn.CrossEntropyOptions{})
			return nil
		},
	},
	{
		name: "labels of another batch",
		want: "input batch_size (8) to match target batch_size (4)…give one label for each row",
		do: func(x *cgotorch.Exec) error {
			nn.CrossEntropy(x, x.Ones(f32, 8, 10), x.Zeros(i64, 4), nn.CrossEntropyOptions{})
			return nil
		},
	},
	{
		name: "predictions [N, 1] of targets [N]",
		want: "float32[8 1] and float32[8] are of different shapes…x.Squeeze or x.Reshape",
		do: func(x *cgotorch.Exec) error {
			nn.L1(x, x.Ones(f32, 8, 1), x.Ones(f32, 8), nn.L1Options{})
			return nil
		},
	},
	{
		name: "a sequence of another width",
		want: "the input is float32[4 10 8]…want [N, L, 16]",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewLSTM(x, 16, 32, nn.RNNOptions{BatchFirst: true})).Forward(x, x.Ones(f32, 4, 10, 8))
			return nil
		},
	},
	{
		name: "batch norm of points",
		want: "the input is float32[4 8]…want [N, 8, H, W]",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{})).Forward(x, x.Ones(f32, 4, 8))
			return nil
		},
	},
	{
		name: "permute of some dimensions",
		want: "the dimensions do not name each of the tensor's once…name each dimension",
		do:   func(x *cgotorch.Exec) error { x.Permute(x.Ones(f32, 2, 3, 4, 5), 1, 2, 0); return nil },
	},
	{
		name: "einsum with a missing index",
		want: "output subscript l does not appear…each letter behind -> stands before it",
		do:   func(x *cgotorch.Exec) error { x.Einsum("ij,jk->il", x.Ones(f32, 2, 3), x.Ones(f32, 3, 4)); return nil },
	},
	{
		name: "where of other sizes",
		want: "size of tensor a (3) must match the size of tensor b (2)…x.Reshape or x.Unsqueeze",
		do: func(x *cgotorch.Exec) error {
			x.Where(x.Ones(cgotorch.Bool, 3), x.Ones(f32, 2), x.Zeros(f32, 2))
			return nil
		},
	},

	// Dtypes and values.
	{
		name: "words as floats",
		want: "Long, Int; but got CPUFloatType…x.To(t, cgotorch.Int64)",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewEmbedding(x, 100, 8, nn.EmbeddingOptions{})).Forward(x, x.Ones(f32, 2, 5))
			return nil
		},
	},
	{
		name: "a word beyond the vocabulary",
		want: "index out of range…indices are from 0",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewEmbedding(x, 100, 8, nn.EmbeddingOptions{})).Forward(x, x.Full(i64, 100, 2, 5))
			return nil
		},
	},
	{
		name: "float64 input of a float32 model",
		want: "must have the same dtype, but got Double and Float…give both one dtype with x.To",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewLinear(x, 4, 2, nn.LinearOptions{})).Forward(x, x.Ones(cgotorch.Float64, 3, 4))
			return nil
		},
	},
	{
		name: "bytes into a convolution",
		want: "Input type (unsigned char) and bias type (float)…vision.Normalize",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewConv2d(x, 3, 8, nn.Square(3), nn.Conv2dOptions{})).Forward(x, x.Zeros(u8, 4, 3, 32, 32))
			return nil
		},
	},
	{
		name: "integer targets of a binary loss",
		want: "can't be cast to the desired output type Long…an argument has another dtype…with x.To",
		do: func(x *cgotorch.Exec) error {
			nn.BCEWithLogits(x, x.Ones(f32, 8), x.Ones(i64, 8), nn.BCEOptions{})
			return nil
		},
	},
	{
		name: "logits as probabilities",
		want: "between 0 and 1…use x.Sigmoid before",
		do: func(x *cgotorch.Exec) error {
			nn.BCE(x, x.Full(f32, -3, 8), x.Ones(f32, 8), nn.BCEProbabilitiesOptions{})
			return nil
		},
	},
	{
		name: "a label of -1",
		want: "Target -1 is out of bounds…class numbers are from 0",
		do: func(x *cgotorch.Exec) error {
			nn.CrossEntropy(x, x.Ones(f32, 2, 10), x.Full(i64, -1, 2), nn.CrossEntropyOptions{})
			return nil
		},
	},
	{
		name: "a dropout of 50",
		want: "but got 50…give a share, such as 0.5",
		do:   func(x *cgotorch.Exec) error { (&nn.Dropout{P: 50}).Forward(x, x.Ones(f32, 4)); return nil },
	},
	{
		name: "the inverse of a singular matrix",
		want: "matrix is singular…use linalg.Pinv",
		do:   func(x *cgotorch.Exec) error { linalg.Inv(x, x.Zeros(f32, 3, 3)); return nil },
	},
	{
		name: "a misspelled operator",
		want: "no operator aten::conv2D…cgotorch.Schemas lists all",
		do:   func(x *cgotorch.Exec) error { x.Call("aten::conv2D", x.Ones(f32, 2)); return nil },
	},

	// Layers, optimizers and rates.
	{
		name: "a pool without a window",
		want: "Kernel is 0…want at least 1",
		do:   func(x *cgotorch.Exec) error { (&nn.MaxPool2d{}).Forward(x, x.Ones(f32, 1, 1, 8, 8)); return nil },
	},
	{
		name: "heads that do not divide the width",
		want: "width is 100, heads is 8…want a divisor of width",
		do: func(x *cgotorch.Exec) error {
			nn.NewTransformerEncoderLayer(x, 100, 8, nn.TransformerOptions{})
			return nil
		},
	},
	{
		name: "an image size that is no multiple of the patches",
		want: "ImageSize is 100x100…want a square of a multiple of 16",
		do: func(x *cgotorch.Exec) error {
			_, err := vision.New(x, "vit_b_16", vision.Options{Classes: 2, ImageSize: nn.Square(100)})
			return err
		},
	},
	{
		name: "an optimizer without parameters",
		want: "optim: adam: there are no parameters…give at least one Group with Params",
		do: func(x *cgotorch.Exec) error {
			_, err := optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(&nn.ReLU{})})
			return err
		},
	},
	{
		name: "a schedule of 1/step",
		want: "sgd: group 0: a learning rate of +Inf…is not a number from 0 up",
		do: func(x *cgotorch.Exec) error {
			o, w, err := oneWeight(x)
			if err != nil {
				return err
			}
			defer o.Close()
			schedule := optim.Schedule(func(step int) float64 { return 1 / float64(step) })
			o.SetScale(schedule(0))
			o.Minimize(x, x.Sum(x.Mul(w, w)))
			return nil
		},
	},
	{
		name: "the state of another rule",
		want: `optim: adam: the state is one of "sgd"…restore it to an optimizer of that rule`,
		do: func(x *cgotorch.Exec) error {
			o, _, err := oneWeight(x)
			if err != nil {
				return err
			}
			defer o.Close()
			adam, err := optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: []*tensor{leaf(x)}})
			if err != nil {
				return err
			}
			defer adam.Close()
			return adam.Restore(x, o.State(x))
		},
	},
	{
		name: "a loss without the parameters",
		want: "does not require grad…call SetRequiresGrad before the forward",
		do: func(x *cgotorch.Exec) error {
			o, _, err := oneWeight(x)
			if err != nil {
				return err
			}
			defer o.Close()
			o.Minimize(x, x.Sum(x.Ones(f32, 3)))
			return nil
		},
	},
	{
		name: "accuracy of other classes",
		want: "the logits are float32[4]…want [N, C]",
		do:   func(x *cgotorch.Exec) error { metric.Accuracy(x, x.Ones(f32, 4), x.Zeros(i64, 4), 1); return nil },
	},
	{
		name: "normalised images, normalised again",
		want: "vision.Normalize(float32[2 3 8 8])…pixels must be uint8 [N, H, W, 3]",
		do: func(x *cgotorch.Exec) error {
			vision.Normalize(x, x.Ones(f32, 2, 3, 8, 8), vision.ImageNetMean, vision.ImageNetStd)
			return nil
		},
	},

	// Streams, Dos and captures.
	{
		name: "a Do of a stream that is closed",
		want: "Stream.Do at …test.go:…the stream is closed…close it after its last use",
		outside: func(string) error {
			s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				return err
			}
			s.Close()
			_, err = cgotorch.DoValue(s, func(x *cgotorch.Exec) (int, error) { return 1, nil })
			return err
		},
	},
	{
		name: "a graph of a stream inside its Do",
		want: "a Do inside a Do…use Exec.On",
		do: func(x *cgotorch.Exec) error {
			g, err := x.Stream().Capture(func(x *cgotorch.Exec) error { return nil }, cgotorch.CaptureOptions{})
			g.Close()
			return err
		},
	},
	{
		name:    "a library of operators that is not there",
		want:    "OpenOperators at …test.go:…ops.so: no such file…check the path",
		outside: func(folder string) error { return cgotorch.OpenOperators(filepath.Join(folder, "ops.so")) },
	},
	{
		name: "a tensor of another Do",
		want: "a tensor is closed…Keep it there",
		do: func(x *cgotorch.Exec) error {
			s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				return err
			}
			defer s.Close()
			var lost *tensor
			done := make(chan error)
			go func() { done <- s.Do(func(x *cgotorch.Exec) error { lost = x.Ones(f32, 2); return nil }) }()
			if err := <-done; err != nil {
				return err
			}
			x.Exp(lost)
			return nil
		},
	},
}

func oneWeight(x *cgotorch.Exec) (*optim.Optimizer, *tensor, error) {
	w := leaf(x)
	o, err := optim.NewSGD(optim.SGDOptions{LR: 0.1}, optim.Group{Params: []*tensor{w}})
	return o, w, err
}

// layer returns a module that ends with the Do.
func layer[M any](x *cgotorch.Exec, m M) M {
	x.AtEnd(func() { nn.Close(m) })
	return m
}

func linear(x *cgotorch.Exec, in, out int) *nn.Linear {
	return layer(x, nn.NewLinear(x, in, out, nn.LinearOptions{}))
}

func inDo(fn func(x *cgotorch.Exec) error) error {
	s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Do(fn)
}

// leaf returns a tensor of two rows that requires gradients.
func leaf(x *cgotorch.Exec) *tensor {
	v := x.Ones(f32, 2, 2)
	cgotorch.Check(v.SetRequiresGrad(true))
	return v
}
