package nn_test

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestConstructors_RefuseArguments(t *testing.T) {
	conv := func(in, out int, kernel nn.Size, o nn.Conv2dOptions) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) { nn.NewConv2d(x, in, out, kernel, o) }
	}
	transpose := func(in, out int, o nn.ConvTranspose2dOptions) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) { nn.NewConvTranspose2d(x, in, out, nn.Square(3), o) }
	}
	three := nn.Square(3)
	for _, c := range []struct {
		make func(x *cgotorch.Exec)
		want []string
	}{
		{func(x *cgotorch.Exec) { nn.NewLinear(x, 0, 2, nn.LinearOptions{}) }, []string{"nn.NewLinear", "in is 0"}},
		{func(x *cgotorch.Exec) { nn.NewLinear(x, 2, -1, nn.LinearOptions{}) }, []string{"nn.NewLinear", "out is -1"}},
		{conv(0, 1, three, nn.Conv2dOptions{}), []string{"nn.NewConv2d", "in is 0"}},
		{conv(1, 0, three, nn.Conv2dOptions{}), []string{"nn.NewConv2d", "out is 0"}},
		{conv(1, 1, nn.Size{3, 0}, nn.Conv2dOptions{}), []string{"nn.NewConv2d", "kernel is 0"}},
		{conv(1, 1, three, nn.Conv2dOptions{Stride: nn.Size{1, 0}}), []string{"Stride is 0"}},
		{conv(1, 1, three, nn.Conv2dOptions{Dilation: nn.Size{-1, 1}}), []string{"Dilation is -1"}},
		{conv(1, 1, three, nn.Conv2dOptions{Padding: nn.Size{0, -1}}), []string{"Padding is -1"}},
		{conv(1, 1, three, nn.Conv2dOptions{Groups: -1}), []string{"Groups is -1"}},
		{conv(4, 6, three, nn.Conv2dOptions{Groups: 4}), []string{"4 groups", "6 output"}},
		{conv(6, 4, three, nn.Conv2dOptions{Groups: 4}), []string{"4 groups", "6 input"}},
		{conv(1, 1, three, nn.Conv2dOptions{PaddingMode: "mirror"}), []string{"nn.NewConv2d", "PaddingMode", `"mirror"`, "reflect"}},
		{transpose(0, 1, nn.ConvTranspose2dOptions{}), []string{"nn.NewConvTranspose2d", "in is 0"}},
		{transpose(4, 6, nn.ConvTranspose2dOptions{Groups: 4}), []string{"nn.NewConvTranspose2d", "4 groups"}},
		{transpose(1, 1, nn.ConvTranspose2dOptions{OutputPadding: nn.Size{0, -1}}), []string{"OutputPadding is -1"}},
		{func(x *cgotorch.Exec) { nn.NewBatchNorm2d(x, 0, nn.BatchNormOptions{}) }, []string{"nn.NewBatchNorm2d", "channels is 0"}},
		{func(x *cgotorch.Exec) { nn.NewLayerNorm(x, nil, nn.LayerNormOptions{}) }, []string{"nn.NewLayerNorm", "shape is []"}},
		{func(x *cgotorch.Exec) { nn.NewLayerNorm(x, []int64{3, 0}, nn.LayerNormOptions{}) }, []string{"nn.NewLayerNorm", "[3 0]"}},
		{func(x *cgotorch.Exec) { nn.NewMultiheadAttention(x, 6, 4, nn.AttentionOptions{}) }, []string{"nn.NewMultiheadAttention", "heads is 4"}},
		{func(x *cgotorch.Exec) { nn.NewMultiheadAttention(x, 6, 0, nn.AttentionOptions{}) }, []string{"heads is 0"}},
		{func(x *cgotorch.Exec) { nn.NewMultiheadAttention(x, 6, 2, nn.AttentionOptions{Dropout: 1}) }, []string{"Dropout is 1"}},
		{func(x *cgotorch.Exec) { (&nn.StochasticDepth{P: 1.5}).Forward(x, x.Ones(cgotorch.Float32, 2)) }, []string{"nn.StochasticDepth", "P is 1.5"}},
		{func(x *cgotorch.Exec) { nn.XavierUniform(x, x.Zeros(cgotorch.Float32, 3), 1) }, []string{"nn.XavierUniform", "2 dimensions"}},
		{func(x *cgotorch.Exec) { nn.XavierNormal(x, x.Zeros(cgotorch.Float32, 3, 0), 1) }, []string{"nn.XavierNormal", "and elements"}},
		{func(x *cgotorch.Exec) { nn.KaimingNormal(x, nil, nn.KaimingOptions{}) }, []string{"nn.KaimingNormal", "the tensor is nil"}},
		{func(x *cgotorch.Exec) {
			nn.KaimingUniform(x, x.Zeros(cgotorch.Float32, 3, 2), nn.KaimingOptions{Gain: nn.Gain("rleu", 0)})
		}, []string{"nn.KaimingUniform", "Gain is NaN", "nn.Gain gives NaN for an activation"}},
		{func(x *cgotorch.Exec) {
			nn.KaimingUniform(x, x.Zeros(cgotorch.Int64, 3, 2), nn.KaimingOptions{})
		}, []string{"int64[3 2]", "a floating dtype"}},
		{func(x *cgotorch.Exec) {
			nn.XavierUniform(x, x.Zeros(cgotorch.Float32, 3, 2), -1)
		}, []string{"gain is -1, want a number from 0 up"}},
		{func(x *cgotorch.Exec) { nn.Uniform(x, x.Zeros(cgotorch.Float32, 3), 1, -1) }, []string{"nn.Uniform", "from is 1 and to is -1"}},
		{func(x *cgotorch.Exec) { nn.Uniform(x, x.Zeros(cgotorch.Float32, 3), math.Inf(-1), 1) }, []string{"nn.Uniform", "from is -Inf"}},
		{func(x *cgotorch.Exec) { nn.Normal(x, x.Zeros(cgotorch.Float32, 3), 0, -1) }, []string{"nn.Normal", "deviation is -1"}},
		{func(x *cgotorch.Exec) { nn.Normal(x, x.Zeros(cgotorch.Float32, 3), math.NaN(), 1) }, []string{"nn.Normal", "mean is NaN"}},
		{func(x *cgotorch.Exec) { nn.TruncatedNormal(x, x.Zeros(cgotorch.Float32, 3), math.NaN(), 1, -2, 2) }, []string{"nn.TruncatedNormal", "mean is NaN"}},
		{func(x *cgotorch.Exec) { nn.Orthogonal(x, x.Zeros(cgotorch.Float32, 3, 3), math.NaN()) }, []string{"nn.Orthogonal", "gain is NaN"}},
		{func(x *cgotorch.Exec) { nn.Constant(x, nil, 1) }, []string{"nn.Constant", "the tensor is nil"}},
		{func(x *cgotorch.Exec) { nn.NewEmbedding(x, 0, 2, nn.EmbeddingOptions{}) }, []string{"nn.NewEmbedding", "rows is 0"}},
		{func(x *cgotorch.Exec) { nn.NewEmbedding(x, 2, 0, nn.EmbeddingOptions{}) }, []string{"nn.NewEmbedding", "width is 0"}},
		{func(x *cgotorch.Exec) { nn.NewEmbedding(x, 2, 2, nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(2)}) }, []string{"PaddingIndex is 2"}},
		{func(x *cgotorch.Exec) { nn.NewConv1d(x, 1, 1, 0, nn.Conv1dOptions{}) }, []string{"nn.NewConv1d", "kernel is 0"}},
		{func(x *cgotorch.Exec) { nn.NewConv3d(x, 1, 1, nn.Volume{1, 0, 1}, nn.Conv3dOptions{}) }, []string{"nn.NewConv3d", "kernel is 0"}},
		{func(x *cgotorch.Exec) {
			nn.NewConv3d(x, 1, 1, nn.Cube(1), nn.Conv3dOptions{Stride: nn.Volume{1, 1, 0}})
		}, []string{"Stride is 0"}},
		{func(x *cgotorch.Exec) {
			nn.NewConvTranspose1d(x, 1, 1, 1, nn.ConvTranspose1dOptions{OutputPadding: -1})
		}, []string{"nn.NewConvTranspose1d", "OutputPadding is -1"}},
		{func(x *cgotorch.Exec) {
			nn.NewConvTranspose3d(x, 4, 6, nn.Cube(1), nn.ConvTranspose3dOptions{Groups: 4})
		}, []string{"4 groups", "6 output"}},
		{func(x *cgotorch.Exec) { nn.NewBatchNorm1d(x, 0, nn.BatchNormOptions{}) }, []string{"nn.NewBatchNorm1d", "channels is 0"}},
		{func(x *cgotorch.Exec) { nn.NewInstanceNorm3d(x, 0, nn.InstanceNormOptions{}) }, []string{"nn.NewInstanceNorm3d", "channels is 0"}},
		{func(x *cgotorch.Exec) { nn.NewGroupNorm(x, 4, 6, nn.GroupNormOptions{}) }, []string{"nn.NewGroupNorm", "4 groups", "6 channels"}},
		{func(x *cgotorch.Exec) { nn.NewRMSNorm(x, []int64{0}, nn.RMSNormOptions{}) }, []string{"nn.NewRMSNorm", "shape is [0]"}},
		{func(x *cgotorch.Exec) { nn.NewRNN(x, 0, 1, nn.RNNOptions{}) }, []string{"nn.NewRNN", "in is 0"}},
		{func(x *cgotorch.Exec) { nn.NewLSTM(x, 1, 2, nn.RNNOptions{Projection: 2}) }, []string{"nn.NewLSTM", "Projection is 2"}},
		{func(x *cgotorch.Exec) { nn.NewGRU(x, 1, 2, nn.RNNOptions{Projection: 1}) }, []string{"nn.NewGRU", "of an LSTM"}},
		{func(x *cgotorch.Exec) { nn.NewGRU(x, 1, 2, nn.RNNOptions{ReLU: true}) }, []string{"ReLU is for an RNN"}},
		{func(x *cgotorch.Exec) { nn.NewLSTM(x, 1, 2, nn.RNNOptions{Dropout: 1.5}) }, []string{"Dropout is 1.5"}},
		{func(x *cgotorch.Exec) { nn.NewLSTMCell(x, 1, 2, nn.RNNCellOptions{ReLU: true}) }, []string{"nn.NewLSTMCell", "ReLU"}},
		{func(x *cgotorch.Exec) { nn.NewEmbeddingBag(x, 2, 2, nn.EmbeddingBagOptions{Mode: "last"}) }, []string{"nn.NewEmbeddingBag", `"last"`}},
		{func(x *cgotorch.Exec) { nn.NewPReLU(x, nn.PReLUOptions{Channels: -1}) }, []string{"nn.NewPReLU", "Channels is -1"}},
		{func(x *cgotorch.Exec) { nn.NewTransformerEncoder(x, 6, 2, 0, nn.TransformerOptions{}) }, []string{"layers is 0"}},
		{func(x *cgotorch.Exec) { nn.NewTransformer(x, 6, 4, nn.TransformerOptions{}) }, []string{"nn.NewMultiheadAttention", "heads is 4"}},
		{func(x *cgotorch.Exec) { nn.NewTransformerDecoderLayer(x, 6, 2, nn.TransformerOptions{FeedForward: -1}) }, []string{"nn.NewLinear", "out is -1"}},
		{func(x *cgotorch.Exec) {
			nn.MaxUnpool(x, x.Zeros(cgotorch.Float32, 1, 1, 2), x.Zeros(cgotorch.Int64, 1, 1, 2), 4, 4)
		}, []string{"nn.MaxUnpool", "sizes [4 4]"}},
		{func(x *cgotorch.Exec) {
			nn.NewConv2d(x, 1, 1, three, nn.Conv2dOptions{Same: true, Stride: nn.Square(2)})
		}, []string{"nn.NewConv2d", "Same with a Stride"}},
		{func(x *cgotorch.Exec) { nn.Orthogonal(x, x.Zeros(cgotorch.Float32, 3), 1) }, []string{"nn.Orthogonal", "2 dimensions"}},
		{func(x *cgotorch.Exec) { nn.XavierNormal(x, x.Zeros(cgotorch.Float32, 3), 1) }, []string{"nn.XavierNormal", "2 dimensions"}},
		{func(x *cgotorch.Exec) { nn.To(x, &nn.ReLU{}, nn.ToOptions{DType: cgotorch.Int64}) }, []string{"nn.To", "DType is int64"}},
		{func(x *cgotorch.Exec) { nn.NewEmbedding(x, 2, 2, nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(-3)}) }, []string{"PaddingIndex is -3"}},
		{func(x *cgotorch.Exec) { nn.KaimingNormal(x, x.Zeros(cgotorch.Float32, 3), nn.KaimingOptions{}) }, []string{"nn.KaimingNormal", "two dimensions"}},
		{func(x *cgotorch.Exec) { nn.KaimingUniform(x, x.Zeros(cgotorch.Float32), nn.KaimingOptions{}) }, []string{"nn.KaimingUniform", "two dimensions"}},
		{func(x *cgotorch.Exec) { nn.TruncatedNormal(x, x.Zeros(cgotorch.Float32, 3), 0, 0, -2, 2) }, []string{"nn.TruncatedNormal", "deviation is 0"}},
		{func(x *cgotorch.Exec) { nn.TruncatedNormal(x, x.Zeros(cgotorch.Float32, 3), 0, 1, 2, -2) }, []string{"nn.TruncatedNormal", "from 2, to -2"}},
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, c.make), cgotorch.ErrInvalidArgument, c.want...)
	}
}

func TestForward_RefusesShapes(t *testing.T) {
	forward := func(make func(x *cgotorch.Exec) nn.Module, shape ...int64) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) {
			m := make(x)
			defer nn.Close(m)
			m.Forward(x, x.Zeros(cgotorch.Float32, shape...))
		}
	}
	linear := func(x *cgotorch.Exec) nn.Module { return nn.NewLinear(x, 3, 2, nn.LinearOptions{}) }
	norm := func(x *cgotorch.Exec) nn.Module { return nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{}) }
	for _, c := range []struct {
		run  func(x *cgotorch.Exec)
		want []string
	}{
		{forward(linear, 2, 4), []string{"aten::linear", "float32[2 4]", "float32[2 3]"}},
		{forward(norm, 1, 3, 1, 1), []string{"nn.BatchNorm2d", "float32[1 3 1 1]", "one value per channel"}},
		{forward(norm, 2, 4, 2, 2), []string{"nn.BatchNorm2d", "float32[2 4 2 2]", "4 channels", "want 3"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewBatchNorm1d(x, 8, nn.BatchNormOptions{}) }, 2, 4), []string{"nn.BatchNorm1d", "4 channels", "want 8"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.Dropout{P: 1.5} }, 2), []string{"aten::dropout", "1.5"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.MaxPool2d{} }, 1, 1, 2, 2), []string{"nn.MaxPool2d", "Kernel is 0"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.AvgPool2d{} }, 1, 1, 2, 2), []string{"nn.AvgPool2d", "Kernel is 0"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.MaxPool1d{} }, 1, 1, 2), []string{"nn.MaxPool1d", "Kernel is 0"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.LPPool1d{Kernel: 1} }, 1, 1, 2), []string{"nn.LPPool1d", "Norm is 0"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.Pad{Padding: []int{1, 1}, Mode: "mirror"} }, 1, 1, 2), []string{"nn.Pad", `"mirror"`}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.Upsample{} }, 1, 1, 2), []string{"nn.Upsample", "one of the two"}},
		{forward(func(*cgotorch.Exec) nn.Module { return &nn.Upsample{Mode: "bilinear", Size: []int64{2}} }, 1, 1, 2), []string{"nn.Upsample", "bilinear"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewBatchNorm1d(x, 3, nn.BatchNormOptions{}) }, 2, 3, 2, 2), []string{"nn.BatchNorm1d", "[N, 3, L]"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewBatchNorm3d(x, 3, nn.BatchNormOptions{}) }, 1, 3, 1, 1, 1), []string{"nn.BatchNorm3d", "one value per channel"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewInstanceNorm1d(x, 3, nn.InstanceNormOptions{}) }, 2, 3, 2, 2), []string{"nn.InstanceNorm1d", "3 dimensions"}},
		{forward(func(x *cgotorch.Exec) nn.Module {
			return nn.NewInstanceNorm2d(x, 3, nn.InstanceNormOptions{Statistics: true})
		}, 2, 3, 1, 1), []string{"nn.InstanceNorm2d", "one spatial value per channel"}},
		{forward(func(x *cgotorch.Exec) nn.Module {
			m := nn.NewInstanceNorm1d(x, 3, nn.InstanceNormOptions{})
			m.Eval = true // without running statistics
			return m
		}, 2, 3, 1), []string{"nn.InstanceNorm1d", "one spatial value per channel"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewGroupNorm(x, 3, 3, nn.GroupNormOptions{}) }, 1, 3, 1, 1), []string{"nn.GroupNorm", "one value in each of 3 groups"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewLSTM(x, 3, 2, nn.RNNOptions{BatchFirst: true}) }, 2, 4, 4), []string{"nn.LSTM", "[N, L, 3]"}},
		{forward(func(x *cgotorch.Exec) nn.Module { return nn.NewMultiheadAttention(x, 4, 2, nn.AttentionOptions{}) }, 2, 4, 3), []string{"nn.MultiheadAttention", "[N, L, 4]"}},
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, c.run), cgotorch.ErrInvalidArgument, c.want...)
	}
}

// One value has a norm where running statistics, or other samples, are there.
func TestForward_TakesOneValue(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		norm := nn.NewInstanceNorm1d(x, 3, nn.InstanceNormOptions{Statistics: true})
		norm.Eval = true
		for _, m := range []nn.Module{norm, nn.NewGroupNorm(x, 3, 3, nn.GroupNormOptions{})} {
			m.Forward(x, x.Zeros(cgotorch.Float32, 2, 3, 1))
			nn.Close(m)
		}
	})
}

// A wrong name of a batch's field gives a nil tensor. A module then fails with an error, and not
// with a panic of Go.
func TestForward_RefusesNil(t *testing.T) {
	for name, make := range map[string]func(x *cgotorch.Exec) nn.Module{
		"aten::linear":            func(x *cgotorch.Exec) nn.Module { return nn.NewLinear(x, 3, 2, nn.LinearOptions{}) },
		"aten::conv2d":            func(x *cgotorch.Exec) nn.Module { return nn.NewConv2d(x, 3, 2, nn.Square(1), nn.Conv2dOptions{}) },
		"aten::embedding":         func(x *cgotorch.Exec) nn.Module { return nn.NewEmbedding(x, 3, 2, nn.EmbeddingOptions{}) },
		"aten::layer_norm":        func(x *cgotorch.Exec) nn.Module { return nn.NewLayerNorm(x, []int64{3}, nn.LayerNormOptions{}) },
		"aten::relu":              func(x *cgotorch.Exec) nn.Module { return nn.NewSequential(&nn.ReLU{}) },
		"aten::group_norm":        func(x *cgotorch.Exec) nn.Module { return nn.NewGroupNorm(x, 1, 3, nn.GroupNormOptions{}) },
		"streamtorch::max_pool2d": func(x *cgotorch.Exec) nn.Module { return &nn.MaxPool2d{Kernel: nn.Square(2)} },
		"nn.BatchNorm2d":          func(x *cgotorch.Exec) nn.Module { return nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{}) },
		"nn.LSTM":                 func(x *cgotorch.Exec) nn.Module { return nn.NewLSTM(x, 3, 2, nn.RNNOptions{}) },
		"nn.GRU":                  func(x *cgotorch.Exec) nn.Module { return nn.NewGRU(x, 3, 2, nn.RNNOptions{}) },
		"nn.MultiheadAttention":   func(x *cgotorch.Exec) nn.Module { return nn.NewMultiheadAttention(x, 4, 2, nn.AttentionOptions{}) },
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := make(x)
			defer nn.Close(m)
			m.Forward(x, nil)
		}), cgotorch.ErrInvalidArgument, name, "nil", "check the name in a")
	}
}

func TestLosses_RefuseArguments(t *testing.T) {
	for _, c := range []struct {
		run  func(x *cgotorch.Exec, logits *cgotorch.Tensor)
		want []string
	}{
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.CrossEntropy(x, logits, cgotorch.FromSlice(x, []int64{0, 7}), nn.CrossEntropyOptions{})
		}, []string{"aten::cross_entropy_loss", "Target 7 is out of bounds"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.CrossEntropy(x, logits, cgotorch.FromSlice(x, []int64{0, -1}), nn.CrossEntropyOptions{})
		}, []string{"Target -1 is out of bounds"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.CrossEntropy(x, logits, cgotorch.FromSlice(x, []int64{0, 1, 2}), nn.CrossEntropyOptions{})
		}, []string{"aten::cross_entropy_loss", "int64[3]"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.CrossEntropy(x, logits, cgotorch.FromSlice(x, []int32{0, 1}), nn.CrossEntropyOptions{})
		}, []string{"nn.CrossEntropy", "int32[2]", "int64"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.NLL(x, logits, cgotorch.FromSlice(x, []uint8{0, 1}), nn.NLLOptions{})
		}, []string{"nn.NLL", "uint8[2]", "int64"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.BCEWithLogits(x, logits, x.Zeros(cgotorch.Float32, 2, 1), nn.BCEOptions{})
		}, []string{"nn.BCEWithLogits", "float32[2 3]", "float32[2 1]"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.MSE(x, logits, x.Zeros(cgotorch.Float32, 3), nn.MSEOptions{})
		}, []string{"nn.MSE", "float32[2 3]", "float32[3]"}},
		{func(x *cgotorch.Exec, logits *cgotorch.Tensor) {
			nn.CTC(x, x.Ones(cgotorch.Float32, 5, 1, 3), x.Ones(cgotorch.Int64, 1), []int64{5}, nil, nn.CTCOptions{})
		}, []string{"nn.CTC", "lengths of 1 inputs and of 0 labels"}},
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { c.run(x, x.Zeros(cgotorch.Float32, 2, 3)) }), cgotorch.ErrInvalidArgument, c.want...)
	}
}

// A loss with a nil or closed tensor gives an error, and not a panic of Go.
func TestLosses_RefuseNilAndClosed(t *testing.T) {
	type loss = func(x *cgotorch.Exec, a, b *cgotorch.Tensor)
	for name, run := range map[string]loss{
		"nn.CrossEntropy":  func(x *cgotorch.Exec, a, b *cgotorch.Tensor) { nn.CrossEntropy(x, a, b, nn.CrossEntropyOptions{}) },
		"nn.NLL":           func(x *cgotorch.Exec, a, b *cgotorch.Tensor) { nn.NLL(x, a, b, nn.NLLOptions{}) },
		"nn.BCEWithLogits": func(x *cgotorch.Exec, a, b *cgotorch.Tensor) { nn.BCEWithLogits(x, a, b, nn.BCEOptions{}) },
		"nn.MSE":           func(x *cgotorch.Exec, a, b *cgotorch.Tensor) { nn.MSE(x, a, b, nn.MSEOptions{}) },
	} {
		for _, c := range []struct {
			want string
			run  func(x *cgotorch.Exec, open, closed *cgotorch.Tensor)
		}{
			{": nil (check the name in a batch's map, or set the variable), ", func(x *cgotorch.Exec, open, closed *cgotorch.Tensor) { run(x, nil, open) }},
			{": nil (check the name in a batch's map, or set the variable);", func(x *cgotorch.Exec, open, closed *cgotorch.Tensor) { run(x, open, nil) }},
			{": closed, ", func(x *cgotorch.Exec, open, closed *cgotorch.Tensor) { run(x, closed, open) }},
			{": closed;", func(x *cgotorch.Exec, open, closed *cgotorch.Tensor) { run(x, open, closed) }},
		} {
			torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				closed := x.Zeros(cgotorch.Float32, 2)
				closed.Close()
				c.run(x, x.Zeros(cgotorch.Float32, 2), closed)
			}), cgotorch.ErrInvalidArgument, name, c.want)
		}
	}
}
