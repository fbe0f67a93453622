package modules_test

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A moduleCase makes a module and calls it.
type moduleCase struct {
	make func(x *cgotorch.Exec) any
	call func(x *cgotorch.Exec, m any, in *cgotorch.Tensor) *cgotorch.Tensor // nil means Forward
}

// is returns a case whose module has no parameters.
func is(m nn.Module) moduleCase {
	return moduleCase{make: func(*cgotorch.Exec) any { return m }}
}

// function returns a case of a function that is no module.
func function(fn nn.Func) moduleCase {
	return calls(func(*cgotorch.Exec) *nn.Identity { return &nn.Identity{} },
		func(x *cgotorch.Exec, _ *nn.Identity, in *cgotorch.Tensor) *cgotorch.Tensor { return fn(x, in) })
}

// with returns a case whose module is called with its input alone.
func with[M nn.Module](make func(x *cgotorch.Exec) M) moduleCase {
	return moduleCase{make: func(x *cgotorch.Exec) any { return make(x) }}
}

// calls returns a case whose module is called by `call`.
func calls[M any](make func(x *cgotorch.Exec) M, call func(x *cgotorch.Exec, m M, in *cgotorch.Tensor) *cgotorch.Tensor) moduleCase {
	return moduleCase{
		make: func(x *cgotorch.Exec) any { return make(x) },
		call: func(x *cgotorch.Exec, m any, in *cgotorch.Tensor) *cgotorch.Tensor { return call(x, m.(M), in) },
	}
}

// joined joins the elements of tensors.
func joined(x *cgotorch.Exec, tensors ...*cgotorch.Tensor) *cgotorch.Tensor {
	for i, t := range tensors {
		tensors[i] = x.Flatten(t, 0, -1)
	}
	return x.Cat(tensors, 0)
}

func adaptive(o nn.AdaptiveLogSoftmaxWithLossOptions) func(x *cgotorch.Exec) *nn.AdaptiveLogSoftmaxWithLoss {
	return func(x *cgotorch.Exec) *nn.AdaptiveLogSoftmaxWithLoss {
		return nn.NewAdaptiveLogSoftmaxWithLoss(x, 9, 12, []int{3, 6}, o)
	}
}

// words returns the WORDS of make.py.
func words(x *cgotorch.Exec) *cgotorch.Tensor {
	return cgotorch.FromSlice(x, []int64{2, 0, 11, 7, 6, 0})
}

// state returns a state for a recurrent module.
func state(x *cgotorch.Exec, states int, o nn.RNNOptions, in *cgotorch.Tensor, start int, width int64) *cgotorch.Tensor {
	n := in.Shape()[1]
	if o.BatchFirst {
		n = in.Shape()[0]
	}
	return more(x, in, start, int64(states), n, width)
}

var lengths = []int64{2, 5, 3, 5} // of the sequences in a batch

func lstm(o nn.RNNOptions) func(x *cgotorch.Exec) *nn.LSTM {
	return func(x *cgotorch.Exec) *nn.LSTM { return nn.NewLSTM(x, 3, 4, o) }
}

func lstmWithState(x *cgotorch.Exec, m *nn.LSTM, in *cgotorch.Tensor) *cgotorch.Tensor {
	width := int64(m.Hidden)
	if m.Projection != 0 {
		width = int64(m.Projection)
	}
	out, h, c := m.ForwardState(x, in, state(x, len(m.Weights), m.RNNOptions, in, 5000, width), state(x, len(m.Weights), m.RNNOptions, in, 6000, int64(m.Hidden)))
	return joined(x, out, h, c)
}

func mask(x *cgotorch.Exec, rows, columns int64, diagonal int) *cgotorch.Tensor {
	return x.Triu(x.Ones(cgotorch.Bool, rows, columns), diagonal)
}

func padding(x *cgotorch.Exec) *cgotorch.Tensor {
	return cgotorch.FromSlice(x, []bool{false, false, false, false, false, false, false, false, true, true}, 2, 5)
}

func attention(o nn.AttentionOptions) func(x *cgotorch.Exec) *nn.MultiheadAttention {
	return func(x *cgotorch.Exec) *nn.MultiheadAttention { return nn.NewMultiheadAttention(x, 6, 2, o) }
}

// transformer adds what all transformers of make.py share.
func transformer(o nn.TransformerOptions) nn.TransformerOptions {
	o.FeedForward = 8
	if _, ok := o.Dropout.Get(); !ok {
		o.Dropout = cgotorch.Set(0.0)
	}
	return o
}

func encoderLayer(o nn.TransformerOptions) func(x *cgotorch.Exec) *nn.TransformerEncoderLayer {
	return func(x *cgotorch.Exec) *nn.TransformerEncoderLayer {
		return nn.NewTransformerEncoderLayer(x, 6, 2, transformer(o))
	}
}

func decoderLayer(o nn.TransformerOptions) func(x *cgotorch.Exec) *nn.TransformerDecoderLayer {
	return func(x *cgotorch.Exec) *nn.TransformerDecoderLayer {
		return nn.NewTransformerDecoderLayer(x, 6, 2, transformer(o))
	}
}

func decodeLayer(x *cgotorch.Exec, m *nn.TransformerDecoderLayer, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.ForwardWith(x, in, more(x, in, 5000, 2, 5, 6), nn.AttentionMask{Hidden: mask(x, 4, 4, 1)}, nn.AttentionMask{Padding: padding(x)})
}

func drawn(fn func(x *cgotorch.Exec, weight *cgotorch.Tensor)) moduleCase {
	return with(func(x *cgotorch.Exec) *nn.Linear {
		m := nn.NewLinear(x, 5, 3, nn.LinearOptions{})
		fn(x, m.Weight)
		return m
	})
}

// The map `modules` has the same modules as MODULES in make.py.
var modules = map[string]moduleCase{
	"rnn": with(func(x *cgotorch.Exec) *nn.RNN { return nn.NewRNN(x, 3, 4, nn.RNNOptions{}) }),
	"rnn_relu": calls(func(x *cgotorch.Exec) *nn.RNN {
		return nn.NewRNN(x, 3, 4, nn.RNNOptions{Layers: 2, ReLU: true, NoBias: true, BatchFirst: true})
	}, func(x *cgotorch.Exec, m *nn.RNN, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, h := m.ForwardState(x, in, state(x, len(m.Weights), m.RNNOptions, in, 5000, 4))
		return joined(x, out, h)
	}),
	"lstm":                    with(lstm(nn.RNNOptions{})),
	"lstm_all":                calls(lstm(nn.RNNOptions{Layers: 2, Bidirectional: true, BatchFirst: true, Projection: 2}), lstmWithState),
	"lstm_dropout":            with(lstm(nn.RNNOptions{Layers: 3, Dropout: 0.3})),
	"lstm_projection_no_bias": calls(lstm(nn.RNNOptions{Projection: 3, NoBias: true}), lstmWithState),
	"gru":                     with(func(x *cgotorch.Exec) *nn.GRU { return nn.NewGRU(x, 3, 4, nn.RNNOptions{}) }),
	"gru_all": calls(func(x *cgotorch.Exec) *nn.GRU {
		return nn.NewGRU(x, 3, 4, nn.RNNOptions{Layers: 2, Bidirectional: true, BatchFirst: true})
	}, func(x *cgotorch.Exec, m *nn.GRU, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, h := m.ForwardState(x, in, state(x, len(m.Weights), m.RNNOptions, in, 5000, 4))
		return joined(x, out, h)
	}),

	"rnn_lengths": calls(func(x *cgotorch.Exec) *nn.RNN { return nn.NewRNN(x, 3, 4, nn.RNNOptions{}) },
		func(x *cgotorch.Exec, m *nn.RNN, in *cgotorch.Tensor) *cgotorch.Tensor {
			out, last := m.ForwardLengths(x, in, lengths, nil)
			return joined(x, out, last)
		}),
	"gru_lengths": calls(func(x *cgotorch.Exec) *nn.GRU {
		return nn.NewGRU(x, 3, 4, nn.RNNOptions{Layers: 2, Bidirectional: true})
	}, func(x *cgotorch.Exec, m *nn.GRU, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, last := m.ForwardLengths(x, in, lengths, nil)
		return joined(x, out, last)
	}),
	"lstm_lengths": calls(lstm(nn.RNNOptions{Bidirectional: true, BatchFirst: true}), func(x *cgotorch.Exec, m *nn.LSTM, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, last, cell := m.ForwardLengths(x, in, lengths, nil, nil)
		return joined(x, out, last, cell)
	}),

	"conv1d": with(func(x *cgotorch.Exec) *nn.Conv1d { return nn.NewConv1d(x, 3, 4, 3, nn.Conv1dOptions{}) }),
	"conv1d_options": with(func(x *cgotorch.Exec) *nn.Conv1d {
		return nn.NewConv1d(x, 4, 6, 3, nn.Conv1dOptions{Stride: 2, Padding: 2, Dilation: 2, Groups: 2, NoBias: true, PaddingMode: "circular"})
	}),
	"conv1d_same": with(func(x *cgotorch.Exec) *nn.Conv1d {
		return nn.NewConv1d(x, 3, 4, 4, nn.Conv1dOptions{Same: true, Dilation: 3})
	}),
	"conv2d_same": with(func(x *cgotorch.Exec) *nn.Conv2d {
		return nn.NewConv2d(x, 3, 4, nn.Size{4, 3}, nn.Conv2dOptions{Same: true, PaddingMode: "reflect"})
	}),
	"conv3d_same": with(func(x *cgotorch.Exec) *nn.Conv3d {
		return nn.NewConv3d(x, 2, 3, nn.Cube(3), nn.Conv3dOptions{Same: true})
	}),
	"conv3d": with(func(x *cgotorch.Exec) *nn.Conv3d { return nn.NewConv3d(x, 2, 3, nn.Cube(2), nn.Conv3dOptions{}) }),
	"conv3d_options": with(func(x *cgotorch.Exec) *nn.Conv3d {
		return nn.NewConv3d(x, 2, 4, nn.Volume{3, 2, 3}, nn.Conv3dOptions{
			Stride: nn.Volume{1, 2, 1}, Padding: nn.Volume{1, 0, 2}, Groups: 2, PaddingMode: "replicate",
		})
	}),
	"conv_transpose1d": with(func(x *cgotorch.Exec) *nn.ConvTranspose1d {
		return nn.NewConvTranspose1d(x, 3, 4, 3, nn.ConvTranspose1dOptions{})
	}),
	"conv_transpose1d_options": with(func(x *cgotorch.Exec) *nn.ConvTranspose1d {
		return nn.NewConvTranspose1d(x, 4, 6, 3, nn.ConvTranspose1dOptions{Stride: 3, Padding: 1, OutputPadding: 2, Groups: 2, Dilation: 2, NoBias: true})
	}),
	"conv_transpose3d": with(func(x *cgotorch.Exec) *nn.ConvTranspose3d {
		return nn.NewConvTranspose3d(x, 2, 3, nn.Cube(2), nn.ConvTranspose3dOptions{})
	}),
	"conv_transpose3d_options": with(func(x *cgotorch.Exec) *nn.ConvTranspose3d {
		return nn.NewConvTranspose3d(x, 2, 4, nn.Volume{3, 2, 2}, nn.ConvTranspose3dOptions{
			Stride: nn.Volume{2, 1, 2}, Padding: nn.Volume{1, 0, 0}, OutputPadding: nn.Volume{1, 0, 1}, Groups: 2,
		})
	}),

	"batch_norm1d": with(func(x *cgotorch.Exec) *nn.BatchNorm1d { return nn.NewBatchNorm1d(x, 3, nn.BatchNormOptions{}) }),
	"batch_norm1d_sequences": with(func(x *cgotorch.Exec) *nn.BatchNorm1d {
		return nn.NewBatchNorm1d(x, 3, nn.BatchNormOptions{Eps: cgotorch.Set(0.1), Momentum: cgotorch.Set(0.3)})
	}),
	"batch_norm1d_cumulative": with(func(x *cgotorch.Exec) *nn.BatchNorm1d {
		return nn.NewBatchNorm1d(x, 3, nn.BatchNormOptions{CumulativeAverage: true})
	}),
	"batch_norm3d": with(func(x *cgotorch.Exec) *nn.BatchNorm3d { return nn.NewBatchNorm3d(x, 3, nn.BatchNormOptions{}) }),
	"batch_norm3d_plain": with(func(x *cgotorch.Exec) *nn.BatchNorm3d {
		return nn.NewBatchNorm3d(x, 3, nn.BatchNormOptions{NoAffine: true, NoStatistics: true})
	}),
	"group_norm": with(func(x *cgotorch.Exec) *nn.GroupNorm { return nn.NewGroupNorm(x, 2, 6, nn.GroupNormOptions{}) }),
	"group_norm_options": with(func(x *cgotorch.Exec) *nn.GroupNorm {
		return nn.NewGroupNorm(x, 3, 6, nn.GroupNormOptions{Eps: cgotorch.Set(0.1), NoAffine: true})
	}),
	"instance_norm1d": with(func(x *cgotorch.Exec) *nn.InstanceNorm1d {
		return nn.NewInstanceNorm1d(x, 3, nn.InstanceNormOptions{})
	}),
	"instance_norm2d": with(func(x *cgotorch.Exec) *nn.InstanceNorm2d {
		return nn.NewInstanceNorm2d(x, 3, nn.InstanceNormOptions{Affine: true, Statistics: true})
	}),
	"instance_norm3d": with(func(x *cgotorch.Exec) *nn.InstanceNorm3d {
		return nn.NewInstanceNorm3d(x, 3, nn.InstanceNormOptions{Eps: cgotorch.Set(0.1), Momentum: cgotorch.Set(0.3), Statistics: true})
	}),
	"rms_norm": with(func(x *cgotorch.Exec) *nn.RMSNorm { return nn.NewRMSNorm(x, []int64{6}, nn.RMSNormOptions{}) }),
	"rms_norm_options": with(func(x *cgotorch.Exec) *nn.RMSNorm {
		return nn.NewRMSNorm(x, []int64{4, 6}, nn.RMSNormOptions{Eps: cgotorch.Set(0.1), NoAffine: true})
	}),

	"prelu": with(func(x *cgotorch.Exec) *nn.PReLU { return nn.NewPReLU(x, nn.PReLUOptions{}) }),
	"prelu_channels": with(func(x *cgotorch.Exec) *nn.PReLU {
		return nn.NewPReLU(x, nn.PReLUOptions{Channels: 3, Initial: cgotorch.Set(0.1)})
	}),
	"glu":          is(&nn.GLU{}),
	"glu_dim":      is(&nn.GLU{Dim: cgotorch.Set(1)}),
	"hard_sigmoid": is(&nn.HardSigmoid{}),
	"hard_tanh":    is(&nn.HardTanh{Min: -0.4, Max: 0.3}),
	"log_sigmoid":  is(&nn.LogSigmoid{}),
	"mish":         is(&nn.Mish{}),
	"elu":          is(&nn.ELU{}),
	"elu_alpha":    is(&nn.ELU{Alpha: 0.5}),
	"celu":         is(&nn.CELU{Alpha: cgotorch.Set(0.5)}),
	"selu":         is(&nn.SELU{}),
	"softplus":     is(&nn.Softplus{Beta: 2, Threshold: 0.5}),
	"softsign":     is(&nn.Softsign{}),
	"tanh_shrink":  is(&nn.TanhShrink{}),
	"hard_shrink":  is(&nn.HardShrink{Lambda: cgotorch.Set(0.3)}),
	"soft_shrink":  is(&nn.SoftShrink{Lambda: cgotorch.Set(0.3)}),
	"threshold":    is(&nn.Threshold{Threshold: 0.1, Value: 0.4}),
	"rrelu":        is(&nn.RReLU{}),
	"softmax":      is(&nn.Softmax{}),
	"softmax_dim":  is(&nn.Softmax{Dim: cgotorch.Set(1)}),
	"log_softmax":  is(&nn.LogSoftmax{}),
	"softmin":      is(&nn.Softmin{}),

	"dropout1d":             is(&nn.Dropout1d{P: 0.4}),
	"dropout2d":             is(&nn.Dropout2d{P: 0.4}),
	"dropout3d":             is(&nn.Dropout3d{P: 0.4}),
	"alpha_dropout":         is(&nn.AlphaDropout{P: 0.4}),
	"feature_alpha_dropout": is(&nn.FeatureAlphaDropout{P: 0.4}),

	"unflatten":       is(&nn.Unflatten{Dim: 1, Sizes: []int64{2, 3}}),
	"pixel_shuffle":   is(&nn.PixelShuffle{Factor: 2}),
	"pixel_unshuffle": is(&nn.PixelUnshuffle{Factor: 2}),
	"channel_shuffle": is(&nn.ChannelShuffle{Groups: 2}),

	"pad_zero":        is(&nn.Pad{Padding: []int{1, 2, 0, 3}}),
	"pad_constant":    is(&nn.Pad{Padding: []int{2, 1}, Value: 0.7}),
	"pad_reflection":  is(&nn.Pad{Padding: []int{1, 2, 0, 3}, Mode: "reflect"}),
	"pad_replication": is(&nn.Pad{Padding: []int{1, 2, 0, 3, 1, 1}, Mode: "replicate"}),
	"pad_circular":    is(&nn.Pad{Padding: []int{2, 1}, Mode: "circular"}),

	"upsample_nearest":       is(&nn.Upsample{Scale: []float64{2}}),
	"upsample_nearest_exact": is(&nn.Upsample{Size: []int64{7}, Mode: "nearest-exact"}),
	"upsample_linear":        is(&nn.Upsample{Scale: []float64{1.7}, Mode: "linear"}),
	"upsample_bilinear":      is(&nn.Upsample{Size: []int64{5, 8}, Mode: "bilinear", AlignCorners: true}),
	"upsample_bicubic":       is(&nn.Upsample{Scale: []float64{1.5, 2}, Mode: "bicubic"}),
	"upsample_trilinear":     is(&nn.Upsample{Scale: []float64{2}, Mode: "trilinear"}),

	"max_pool1d":                  is(&nn.MaxPool1d{Kernel: 3, Stride: 2, Padding: 1, Dilation: 2, CeilMode: true}),
	"max_pool3d":                  is(&nn.MaxPool3d{Kernel: nn.Volume{2, 3, 2}, Padding: nn.Volume{1, 0, 1}}),
	"avg_pool1d":                  is(&nn.AvgPool1d{Kernel: 3, Stride: 2, Padding: 1, ExcludePadding: true}),
	"avg_pool3d":                  is(&nn.AvgPool3d{Kernel: nn.Volume{2, 3, 2}, Stride: nn.Volume{1, 2, 1}, Padding: nn.Cube(1)}),
	"adaptive_avg_pool1d":         is(&nn.AdaptiveAvgPool1d{Output: 3}),
	"adaptive_avg_pool3d":         is(&nn.AdaptiveAvgPool3d{Output: nn.Volume{1, 2, 3}}),
	"adaptive_max_pool1d":         is(&nn.AdaptiveMaxPool1d{Output: 3}),
	"adaptive_max_pool2d":         is(&nn.AdaptiveMaxPool2d{Output: nn.Size{2, 3}}),
	"adaptive_max_pool3d":         is(&nn.AdaptiveMaxPool3d{}),
	"lp_pool3d":                   is(&nn.LPPool3d{Norm: 2, Kernel: nn.Cube(2)}),
	"fractional_max_pool2d":       is(&nn.FractionalMaxPool2d{Kernel: nn.Size{2, 3}, Output: nn.Size{4, 3}}),
	"fractional_max_pool2d_ratio": is(&nn.FractionalMaxPool2d{Kernel: nn.Square(2), Ratio: [2]float64{0.6, 0.5}}),
	"fractional_max_pool3d":       is(&nn.FractionalMaxPool3d{Kernel: nn.Volume{2, 1, 2}, Output: nn.Volume{2, 3, 2}}),
	"fractional_max_pool3d_ratio": is(&nn.FractionalMaxPool3d{Kernel: nn.Cube(2), Ratio: [3]float64{0.6, 0.5, 0.7}}),
	"adaptive_log_softmax": calls(adaptive(nn.AdaptiveLogSoftmaxWithLossOptions{DivValue: 3}), func(x *cgotorch.Exec, m *nn.AdaptiveLogSoftmaxWithLoss, in *cgotorch.Tensor) *cgotorch.Tensor {
		output, loss := m.Loss(x, in, words(x))
		return joined(x, output, x.Reshape(loss, 1))
	}),
	"adaptive_log_softmax_options": calls(adaptive(nn.AdaptiveLogSoftmaxWithLossOptions{DivValue: 2, HeadBias: true}), func(x *cgotorch.Exec, m *nn.AdaptiveLogSoftmaxWithLoss, in *cgotorch.Tensor) *cgotorch.Tensor {
		_, loss := m.Loss(x, in, words(x))
		return loss
	}),
	"adaptive_log_softmax_log_prob": with(adaptive(nn.AdaptiveLogSoftmaxWithLossOptions{DivValue: 3})),
	"max_unpool1d": function(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, indices := (&nn.MaxPool1d{Kernel: 2}).ForwardIndices(x, in)
		return nn.MaxUnpool(x, out, indices, 8)
	}),
	"max_unpool2d": function(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, indices := (&nn.MaxPool2d{Kernel: nn.Size{3, 2}}).ForwardIndices(x, in)
		return nn.MaxUnpool(x, out, indices, 7, 6)
	}),
	"max_unpool3d": function(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		out, indices := (&nn.MaxPool3d{Kernel: nn.Cube(2)}).ForwardIndices(x, in)
		return nn.MaxUnpool(x, out, indices, 4, 4, 2)
	}),
	"unfold":                   is(&nn.Unfold{Kernel: nn.Size{2, 3}, Dilation: nn.Size{1, 2}, Padding: nn.Size{1, 0}, Stride: nn.Size{2, 1}}),
	"fold":                     is(&nn.Fold{Output: nn.Size{5, 6}, Kernel: nn.Size{2, 3}, Dilation: nn.Size{1, 2}, Padding: nn.Size{1, 0}, Stride: nn.Size{2, 1}}),
	"local_response_norm":      is(&nn.LocalResponseNorm{Neighbours: 3, Alpha: cgotorch.Set(0.5), Beta: cgotorch.Set(0.6), K: cgotorch.Set(2.0)}),
	"local_response_norm_even": is(&nn.LocalResponseNorm{Neighbours: 2}),
	"cosine_similarity": function(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CosineSimilarity(x, in, more(x, in, 5000, 2, 4, 6), nn.CosineSimilarityOptions{Dim: cgotorch.Set(2)})
	}),
	"pairwise_distance": function(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.PairwiseDistance(x, in, more(x, in, 5000, 2, 4, 6), nn.PairwiseDistanceOptions{P: cgotorch.Set(1.5), KeepDim: true})
	}),
	"lp_pool1d": is(&nn.LPPool1d{Norm: 2, Kernel: 3, Stride: 2}),
	"lp_pool2d": is(&nn.LPPool2d{Norm: 2, Kernel: nn.Size{2, 3}}),

	"embedding_bag": calls(bag(nn.EmbeddingBagOptions{}), func(x *cgotorch.Exec, m *nn.EmbeddingBag, in *cgotorch.Tensor) *cgotorch.Tensor {
		return x.Add(m.Forward(x, cgotorch.FromSlice(x, []int64{1, 6, 3, 0, 1, 1}, 2, 3)), in)
	}),
	"embedding_bag_sum": calls(bag(nn.EmbeddingBagOptions{Mode: "sum", PaddingIndex: cgotorch.Set(-1)}), bags),
	"embedding_bag_max": calls(bag(nn.EmbeddingBagOptions{Mode: "max"}), bags),

	"multihead_attention": with(attention(nn.AttentionOptions{})),
	"multihead_attention_masks": calls(attention(nn.AttentionOptions{}), func(x *cgotorch.Exec, m *nn.MultiheadAttention, in *cgotorch.Tensor) *cgotorch.Tensor {
		key := more(x, in, 5000, 2, 5, 6)
		return m.Attend(x, in, key, key, nn.AttentionMask{Hidden: mask(x, 4, 5, 2), Padding: padding(x)})
	}),
	"multihead_attention_weights": calls(attention(nn.AttentionOptions{}), func(x *cgotorch.Exec, m *nn.MultiheadAttention, in *cgotorch.Tensor) *cgotorch.Tensor {
		key := more(x, in, 5000, 2, 5, 6)
		out, weights := m.AttendWeights(x, in, key, key, nn.AttentionMask{Padding: padding(x)})
		return joined(x, out, weights)
	}),
	"multihead_attention_widths": calls(attention(nn.AttentionOptions{KeyWidth: 3, ValueWidth: 5}), func(x *cgotorch.Exec, m *nn.MultiheadAttention, in *cgotorch.Tensor) *cgotorch.Tensor {
		return m.Attend(x, in, more(x, in, 5000, 2, 5, 3), more(x, in, 6000, 2, 5, 5), nn.AttentionMask{})
	}),
	"multihead_attention_three": calls(attention(nn.AttentionOptions{NoBias: true}), func(x *cgotorch.Exec, m *nn.MultiheadAttention, in *cgotorch.Tensor) *cgotorch.Tensor {
		return m.Attend(x, in, more(x, in, 5000, 2, 5, 6), more(x, in, 6000, 2, 5, 6), nn.AttentionMask{Hidden: more(x, in, 7000, 4, 4, 5)})
	}),
	"transformer_encoder_layer": with(encoderLayer(nn.TransformerOptions{})),
	"transformer_encoder_layer_options": calls(encoderLayer(nn.TransformerOptions{GELU: true, NormFirst: true, NoBias: true, Causal: true, Eps: cgotorch.Set(0.1)}),
		func(x *cgotorch.Exec, m *nn.TransformerEncoderLayer, in *cgotorch.Tensor) *cgotorch.Tensor {
			return m.ForwardMasked(x, in, nn.AttentionMask{Padding: padding(x)})
		}),
	"transformer_decoder_layer":         calls(decoderLayer(nn.TransformerOptions{}), decodeLayer),
	"transformer_decoder_layer_options": calls(decoderLayer(nn.TransformerOptions{GELU: true, NormFirst: true}), decodeLayer),
	"transformer_encoder": calls(func(x *cgotorch.Exec) *nn.TransformerEncoder {
		return nn.NewTransformerEncoder(x, 6, 2, 2, transformer(nn.TransformerOptions{FinalNorm: true}))
	}, func(x *cgotorch.Exec, m *nn.TransformerEncoder, in *cgotorch.Tensor) *cgotorch.Tensor {
		return m.ForwardMasked(x, in, nn.AttentionMask{Padding: padding(x)})
	}),
	"transformer_decoder": calls(func(x *cgotorch.Exec) *nn.TransformerDecoder {
		return nn.NewTransformerDecoder(x, 6, 2, 2, transformer(nn.TransformerOptions{FinalNorm: true, Causal: true}))
	}, func(x *cgotorch.Exec, m *nn.TransformerDecoder, in *cgotorch.Tensor) *cgotorch.Tensor {
		return m.ForwardWith(x, in, more(x, in, 5000, 2, 5, 6), nn.AttentionMask{}, nn.AttentionMask{Padding: padding(x)})
	}),
	"transformer": calls(func(x *cgotorch.Exec) *nn.Transformer {
		return nn.NewTransformer(x, 6, 2, transformer(nn.TransformerOptions{Layers: [2]int{1, 2}, Causal: true}))
	}, func(x *cgotorch.Exec, m *nn.Transformer, in *cgotorch.Tensor) *cgotorch.Tensor {
		return m.ForwardWith(x, more(x, in, 5000, 2, 5, 6), in, nn.AttentionMask{Padding: padding(x)}, nn.AttentionMask{})
	}),

	"xavier_normal": drawn(func(x *cgotorch.Exec, w *cgotorch.Tensor) { nn.XavierNormal(x, w, 0.7) }),
	"xavier_uniform": drawn(func(x *cgotorch.Exec, w *cgotorch.Tensor) {
		nn.XavierUniform(x, w, nn.Gain("tanh", 0))
	}),
	"kaiming_normal": drawn(func(x *cgotorch.Exec, w *cgotorch.Tensor) { nn.KaimingNormal(x, w, nn.KaimingOptions{FanOut: true}) }),
	"kaiming_uniform": drawn(func(x *cgotorch.Exec, w *cgotorch.Tensor) {
		nn.KaimingUniform(x, w, nn.KaimingOptions{Gain: nn.Gain("leaky_relu", 0.2)})
	}),
	"orthogonal": drawn(func(x *cgotorch.Exec, w *cgotorch.Tensor) { nn.Orthogonal(x, w, 0.7) }),
	"apply": with(func(x *cgotorch.Exec) *nn.Sequential {
		linear := func(in, out int) *nn.Linear { return nn.NewLinear(x, in, out, nn.LinearOptions{}) }
		m := nn.NewSequential(linear(5, 4), nn.NewSequential(linear(4, 3), &nn.Tanh{}), linear(3, 2))
		nn.Apply(m, func(m any) {
			switch m := m.(type) {
			case *nn.Linear:
				nn.XavierNormal(x, m.Weight, 1)
			case *nn.Sequential:
				nn.Normal(x, m.Modules[0].Module.(*nn.Linear).Bias, 0, 1)
			}
		})
		return m
	}),
}

func bag(o nn.EmbeddingBagOptions) func(x *cgotorch.Exec) *nn.EmbeddingBag {
	return func(x *cgotorch.Exec) *nn.EmbeddingBag { return nn.NewEmbeddingBag(x, 7, 4, o) }
}

func bags(x *cgotorch.Exec, m *nn.EmbeddingBag, in *cgotorch.Tensor) *cgotorch.Tensor {
	indices, offsets := cgotorch.FromSlice(x, []int64{1, 6, 3, 0, 1, 1, 2}), cgotorch.FromSlice(x, []int64{0, 3, 3, 5})
	var factors *cgotorch.Tensor
	if m.Mode == "sum" {
		factors = in
	}
	return x.Add(m.ForwardBags(x, indices, offsets, factors), x.Sum(in))
}

type moduleFixture struct {
	Input            []int64
	State            []stateEntry
	Losses, Losses32 []float64
	Evaluated        float64
}

// stateEntry is a list in the fixture: the name and the shape of a tensor.
type stateEntry struct {
	Name  string
	Shape []int64
}

func (e *stateEntry) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&e.Name, &e.Shape})
}

// Each module draws PyTorch's numbers, loads PyTorch's state dict, and learns what PyTorch learns.
func TestModules_EqualPyTorch(t *testing.T) {
	var fixtures map[string]moduleFixture
	read(t, "modules", &fixtures)
	if got, want := slices.Sorted(maps.Keys(modules)), slices.Sorted(maps.Keys(fixtures)); !slices.Equal(got, want) {
		t.Fatalf("the modules here are\n%v\nand in the fixture\n%v", got, want)
	}
	w, exact, single := openWeights(t), &worst{}, &worst{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		t.Run(name, func(t *testing.T) {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				must.Do(t, cgotorch.Seed(seed))
				m := modules[name].make(x)
				defer nn.Close(m)
				must.Check(t, nn.Check(m))
				fixtures[name].checkState(t, x, m, w, name)
				fixtures[name].checkTraining(t, x, m, w, name, exact, single)
			})
		})
	}
	t.Logf("largest differences: %.2g (%s), in float32 %.2g (%s)", exact.difference, exact.where, single.difference, single.where)
}

// checkState compares names, shapes, order and numbers of a new module with PyTorch's.
func (f moduleFixture) checkState(t *testing.T, x *cgotorch.Exec, m any, w weights, name string) {
	t.Helper()
	var got []stateEntry
	for _, n := range nn.State(m) {
		got = append(got, stateEntry{n.Name, n.Tensor.Shape()})
		got, want := values(x, n.Tensor), values(x, w.tensor(x, name+"/initial/"+n.Name))
		equal := slices.Equal(got, want)
		if name == "orthogonal" { // LAPACK's rounding depends on the processor
			equal = slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 })
		}
		if !equal {
			t.Errorf("%s has other numbers than PyTorch draws", n.Name)
		}
	}
	if !slices.EqualFunc(got, f.State, func(a, b stateEntry) bool { return a.Name == b.Name && slices.Equal(a.Shape, b.Shape) }) {
		t.Fatalf("the state is\n%v\nwant\n%v", got, f.State)
	}
}

func (f moduleFixture) checkTraining(t *testing.T, x *cgotorch.Exec, m any, w weights, name string, exact, single *worst) {
	t.Helper()
	call := modules[name].call
	if call == nil {
		call = func(x *cgotorch.Exec, m any, in *cgotorch.Tensor) *cgotorch.Tensor {
			return m.(nn.Module).Forward(x, in)
		}
	}
	objective := func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		out := call(x, m, in)
		return nn.MSE(x, out, more(x, in, 1000, out.Shape()...), nn.MSEOptions{})
	}
	initial := map[string]*cgotorch.Tensor{}
	for _, n := range f.State {
		initial[n.Name] = w.tensor(x, name+"/initial/"+n.Name)
	}
	run := func(dtype cgotorch.DType) (*cgotorch.Tensor, []float64) {
		nn.SetTraining(m, true)
		nn.To(x, m, nn.ToOptions{DType: dtype})
		must.Do(t, nn.Load(x, m, initial, nn.LoadOptions{}))
		in := leaf(t, x, dtype, 0, f.Input...)
		return in, train(t, x, append(nn.Parameters(m), in), func() *cgotorch.Tensor { return objective(x, in) })
	}
	_, losses := run(cgotorch.Float32)
	single.compare(t, name+", float32", losses, f.Losses32, roughly)
	in, losses := run(cgotorch.Float64)
	exact.compare(t, name, losses, f.Losses, tolerance)
	for _, n := range nn.State(m) {
		exact.compare(t, name+": "+n.Name, values(x, n.Tensor), values(x, w.tensor(x, name+"/final/"+n.Name)), tolerance)
	}
	exact.compare(t, name+": the input", values(x, in), values(x, w.tensor(x, name+"/final input")), tolerance)
	nn.SetTraining(m, false)
	exact.compare(t, name+": evaluated", []float64{x.Item(objective(x.NoGrad(), in))}, []float64{f.Evaluated}, tolerance)
}

// A forward of each module leaves one new handle open. Under the stream checker's eyes it closes
// neither its input nor its parameters.
func TestModules_CloseIntermediates(t *testing.T) {
	var fixtures map[string]moduleFixture
	read(t, "modules", &fixtures)
	for name, c := range modules {
		if c.call != nil {
			continue
		}
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := c.make(x)
			defer nn.Close(m)
			in := leaf(t, x, cgotorch.Float32, 0, fixtures[name].Input...)
			for _, training := range []bool{true, false} {
				nn.SetTraining(m, training)
				before := cgotorch.LiveHandles()["tensor"]
				out := m.(nn.Module).Forward(x, in)
				if got := cgotorch.LiveHandles()["tensor"] - before; got != 1 || out == in || in.Closed() {
					t.Errorf("%s, training %v: %d handles after Forward, want 1; input closed: %v", name, training, got, in.Closed())
				}
				out.Close()
			}
		})
	}
}

// Fuse, Recompute and a copy of the model for inference work with every module.
func TestModules_InContainers(t *testing.T) {
	var fixtures map[string]moduleFixture
	read(t, "modules", &fixtures)
	for name, c := range modules {
		if c.call != nil {
			continue
		}
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := nn.NewSequential(c.make(x).(nn.Module))
			defer nn.Close(m)
			in := leaf(t, x, cgotorch.Float32, 0, fixtures[name].Input...)
			step := func(segments int) []float64 {
				m.Recompute = segments
				must.Do(t, cgotorch.Seed(seed))
				must.Do(t, in.SetGrad(nil))
				must.Do(t, nn.ZeroGrad(m))
				x.Backward(x.Sum(x.Square(m.Forward(x, in))))
				got := values(x, in.Grad())
				for _, p := range nn.Parameters(m) {
					got = append(got, values(x, p.Grad())...)
				}
				return got
			}
			var difference worst // leaves with several readers may add their gradients in another order
			difference.compare(t, name+" with Recompute", step(1), step(0), 1e-6)
			m.Recompute = 0
			nn.SetTraining(m, false)
			fused := nn.Fuse(x, m, nn.FuseOptions{Log: func(text string) {
				if !strings.Contains(text, "batch norm") {
					t.Errorf("%s: %s", name, text)
				}
			}})
			defer nn.Close(fused)
			forward := func(m nn.Module) []float64 {
				if err := cgotorch.Seed(seed); err != nil { // a FractionalMaxPool2d draws in evaluation too
					t.Fatal(err)
				}
				return values(x, m.Forward(x.NoGrad(), in))
			}
			if got, want := forward(fused), forward(m); !slices.Equal(got, want) {
				t.Errorf("%s: another result when fused", name)
			}
		})
	}
}
