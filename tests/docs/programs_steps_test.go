package docs

import (
	"math"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/fft"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

var wrongSteps = []wrong{
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
		name: "binary targets [N] of logits [N, 1]",
		want: "float32[8 1] and float32[8] are of different shapes…x.Squeeze or x.Reshape",
		do: func(x *cgotorch.Exec) error {
			nn.BCEWithLogits(x, x.Ones(f32, 8, 1), x.Ones(f32, 8), nn.BCEOptions{})
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
		name: "lengths of another batch",
		want: "the lengths are [3 2]…want 4 numbers from 1 to 10",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewLSTM(x, 8, 4, nn.RNNOptions{BatchFirst: true})).ForwardLengths(x, x.Ones(f32, 4, 10, 8), []int64{3, 2}, nil, nil)
			return nil
		},
	},
	{
		name: "an empty sequence",
		want: "the lengths are [3 0]…want 2 numbers from 1 to 10",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewGRU(x, 8, 4, nn.RNNOptions{BatchFirst: true})).ForwardLengths(x, x.Ones(f32, 2, 10, 8), []int64{3, 0}, nil)
			return nil
		},
	},
	{
		name: "attention over vectors of another width",
		want: "the input is float32[2 10 32]…want [N, L, 64]",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewMultiheadAttention(x, 64, 8, nn.AttentionOptions{})).Forward(x, x.Ones(f32, 2, 10, 32))
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
		name: "group norm of other channels",
		want: "divisible by num_groups…make the layer for the number of channels",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewGroupNorm(x, 4, 8, nn.GroupNormOptions{})).Forward(x, x.Ones(f32, 4, 6, 5, 5))
			return nil
		},
	},
	{
		name: "a generator's input without height and width",
		want: "Expected 3D…add a dimension with x.Unsqueeze",
		do: func(x *cgotorch.Exec) error {
			layer(x, nn.NewConvTranspose2d(x, 100, 64, nn.Square(4), nn.ConvTranspose2dOptions{})).Forward(x, x.Ones(f32, 16, 100))
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
	{
		name: "batches of matrices that do not match",
		want: "to be: [4, 3] but got: [5, 3]…the tensors are [B, N, M] and [B, M, P]",
		do:   func(x *cgotorch.Exec) error { x.BMM(x.Ones(f32, 4, 2, 3), x.Ones(f32, 5, 3, 2)); return nil },
	},
	{
		name: "unflatten into other sizes",
		want: "don't multiply up to the size of dim 1 (12)…one of them may be -1",
		do:   func(x *cgotorch.Exec) error { x.Unflatten(x.Ones(f32, 4, 12), 1, 5, 2); return nil },
	},
	{
		name: "pixel shuffle of too few channels",
		want: "=6 is not divisible by 4…times the square of the factor",
		do:   func(x *cgotorch.Exec) error { x.PixelShuffle(x.Ones(f32, 1, 6, 4, 4), 2); return nil },
	},
	{
		name: "padding beyond the dimensions",
		want: "got padding length 4…give two numbers for each of the last dimensions",
		do: func(x *cgotorch.Exec) error {
			x.Pad(x.Ones(f32, 3), []int64{1, 1, 1, 1}, cgotorch.PadOptions{})
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
		name: "an index out of range",
		want: "index out of range…indices are from 0",
		do: func(x *cgotorch.Exec) error {
			x.IndexSelect(x.Ones(f32, 3), 0, cgotorch.FromSlice(x, []int64{0, 7}))
			return nil
		},
	},
	{
		name: "weights of a draw below 0",
		want: "element < 0…use x.Softmax on logits",
		do:   func(x *cgotorch.Exec) error { x.Multinomial(x.Full(f32, -1, 4), 1, true); return nil },
	},
	{
		name: "more draws than weights",
		want: "without replacement…draw fewer, or with replacement",
		do:   func(x *cgotorch.Exec) error { x.Multinomial(x.Ones(f32, 4), 5, false); return nil },
	},
	{
		name: "a dropout of 50",
		want: "but got 50…give a share, such as 0.5",
		do:   func(x *cgotorch.Exec) error { (&nn.Dropout{P: 50}).Forward(x, x.Ones(f32, 4)); return nil },
	},
	{
		name: "quantile of 90",
		want: "range [0, 1]…give shares",
		do: func(x *cgotorch.Exec) error {
			x.Quantile(x.Ones(f32, 4), x.Full(f32, 90), cgotorch.QuantileOptions{})
			return nil
		},
	},
	{
		name: "counts of negative numbers",
		want: "non-negative integral inputs…give numbers from 0 up",
		do:   func(x *cgotorch.Exec) error { x.BinCount(x.Full(i64, -1, 4), cgotorch.BinCountOptions{}); return nil },
	},
	{
		name: "an empty range of random numbers",
		want: "got from=5 >= to=5…give a high above low",
		do:   func(x *cgotorch.Exec) error { x.RandInt(i64, 5, 5, 3); return nil },
	},
	{
		name: "the inverse of a singular matrix",
		want: "matrix is singular…use linalg.Pinv",
		do:   func(x *cgotorch.Exec) error { linalg.Inv(x, x.Zeros(f32, 3, 3)); return nil },
	},
	{
		name: "Cholesky of a matrix that is not positive definite",
		want: "not positive-definite…add a small multiple of the identity",
		do: func(x *cgotorch.Exec) error {
			linalg.Cholesky(x, x.Full(f32, -1, 2, 2), linalg.CholeskyOptions{})
			return nil
		},
	},
	{
		name: "the inverse of a matrix that is not square",
		want: "they are 3 by 2 matrices…give [..., N, N]",
		do:   func(x *cgotorch.Exec) error { linalg.Inv(x, x.Ones(f32, 3, 2)); return nil },
	},
	{
		name: "a transform of nothing",
		want: "number of data points (0)…give at least one point",
		do:   func(x *cgotorch.Exec) error { fft.FFT(x, x.Ones(f32, 0), fft.Options{}); return nil },
	},
	{
		name: "the maximum of nothing",
		want: "the tensor has no elements…test Numel first",
		do:   func(x *cgotorch.Exec) error { x.Item(x.Max(x.Ones(f32, 0))); return nil },
	},
	{
		name: "a misspelled operator",
		want: "no operator aten::conv2D…cgotorch.Schemas lists all",
		do:   func(x *cgotorch.Exec) error { x.Call("aten::conv2D", x.Ones(f32, 2)); return nil },
	},
	{
		name: "an operator with too few arguments",
		want: "argument 2 (Tensor mat1) is missing…in the order of the operator's schema",
		do:   func(x *cgotorch.Exec) error { x.Call("aten::addmm", x.Ones(f32, 2, 2)); return nil },
	},
	{
		name: "an operator with an argument of another type",
		want: "argument 2 (int dim) cannot be a string…in the order of the operator's schema",
		do:   func(x *cgotorch.Exec) error { x.Call("aten::softmax.int", x.Ones(f32, 2), "last"); return nil },
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
		name: "an LSTM of -1 layers",
		want: "Layers is -1…want at least 0",
		do:   func(x *cgotorch.Exec) error { nn.NewLSTM(x, 4, 4, nn.RNNOptions{Layers: -1}); return nil },
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
		name: "a rate of NaN",
		want: "optim: adam: a learning rate of NaN…is not a number from 0 up",
		do: func(x *cgotorch.Exec) error {
			_, err := optim.NewAdam(optim.AdamOptions{LR: math.NaN()}, optim.Group{Params: []*tensor{leaf(x)}})
			return err
		},
	},
	{
		name: "a rate of NaN, later",
		want: "sgd: group 0: a learning rate of NaN…is not a number from 0 up",
		do: func(x *cgotorch.Exec) error {
			o, w, err := oneWeight(x)
			if err != nil {
				return err
			}
			defer o.Close()
			o.SetLR(math.NaN())
			o.Minimize(x, x.Sum(x.Mul(w, w)))
			return nil
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
		name: "a decay of momentum above 1",
		want: "optim: adam: betas 0.9 and 1.5…each must be in [0, 1)",
		do: func(x *cgotorch.Exec) error {
			_, err := optim.NewAdam(optim.AdamOptions{Betas: cgotorch.Set([2]float64{0.9, 1.5})}, optim.Group{Params: []*tensor{leaf(x)}})
			return err
		},
	},
	{
		name: "a group that is not there",
		want: "optim: sgd: there is no group 1 of 1…groups count from 0",
		do: func(x *cgotorch.Exec) error {
			o, _, err := oneWeight(x)
			if err != nil {
				return err
			}
			defer o.Close()
			return o.SetGroupLR(1, 0.1)
		},
	},
	{
		name: "clipping to -1",
		want: "a largest norm of -1…is not a number from 0 up",
		do: func(x *cgotorch.Exec) error {
			w := leaf(x)
			x.Backward(x.Sum(w))
			optim.ClipGradNorm(x, []*tensor{w}, -1)
			return nil
		},
	},
	{
		name: "the average of 2",
		want: "optim: ema: a decay of 2…is not from 0 to 1",
		do:   func(x *cgotorch.Exec) error { _, err := optim.NewEMA(x, []*tensor{leaf(x)}, 2); return err },
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
		name: "a closed graph",
		want: "Launch at …test.go:…the graph is closed…close it after its last launch",
		outside: func(string) error {
			s := cgotorch.DefaultStream(cgotorch.CPU)
			g, err := s.Capture(func(x *cgotorch.Exec) error { x.Ones(f32, 2); return nil }, cgotorch.CaptureOptions{})
			if err != nil {
				return err
			}
			g.Close()
			return g.Launch(s)
		},
	},
	{
		name: "a closed Captured",
		want: "the captured function is closed…close it after its last Run",
		do: func(x *cgotorch.Exec) error {
			c := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*tensor) []*tensor { return in }, cgotorch.CapturedOptions{})
			c.Close()
			c.Run(x, x.Ones(f32, 2))
			return nil
		},
	},
	{
		name: "an event that is closed",
		want: "the event is closed, or was never recorded…Record returns events",
		do: func(x *cgotorch.Exec) error {
			e := x.Record()
			e.Close()
			x.Wait(e)
			return nil
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
