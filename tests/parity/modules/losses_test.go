package modules_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const (
	sum  = cgotorch.ReductionSum
	none = cgotorch.ReductionNone
)

func aims(x *cgotorch.Exec, in *cgotorch.Tensor, shape ...int64) *cgotorch.Tensor {
	return x.Abs(more(x, in, 3000, shape...))
}

func signs(x *cgotorch.Exec, in *cgotorch.Tensor, start int, shape ...int64) *cgotorch.Tensor {
	return x.Sign(more(x, in, start, shape...))
}

// The map `losses` has the same losses as LOSSES in make.py.
var losses = map[string]func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor{
	"l1": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.L1(x, in, aims(x, in, 6, 5), nn.L1Options{})
	},
	"smooth_l1": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.SmoothL1(x, in, aims(x, in, 6, 5), nn.SmoothL1Options{Reduction: sum, Beta: cgotorch.Set(0.3)})
	},
	"huber": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.Huber(x, in, aims(x, in, 6, 5), nn.HuberOptions{})
	},
	"huber_delta": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.Huber(x, in, aims(x, in, 6, 5), nn.HuberOptions{Delta: 0.3, Reduction: none})
	},
	"poisson_nll": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.PoissonNLL(x, in, x.MulScalar(aims(x, in, 6, 5), 4), nn.PoissonNLLOptions{})
	},
	"poisson_nll_options": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.PoissonNLL(x, x.AddScalar(x.Square(in), 0.1), x.MulScalar(aims(x, in, 6, 5), 4),
			nn.PoissonNLLOptions{NoLog: true, Full: true, Eps: cgotorch.Set(0.01), Reduction: sum})
	},
	"gaussian_nll": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.GaussianNLL(x, in, aims(x, in, 6, 5), x.AddScalar(aims(x, in, 6, 5), 0.1), nn.GaussianNLLOptions{})
	},
	"gaussian_nll_variance": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.GaussianNLL(x, more(x, in, 100, 6, 5), aims(x, in, 6, 5), x.Square(in),
			nn.GaussianNLLOptions{Full: true, Eps: cgotorch.Set(0.05), Reduction: sum})
	},
	"kl_div": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.KLDiv(x, x.LogSoftmax(in, 1), aims(x, in, 6, 5), nn.KLDivOptions{})
	},
	"kl_div_batch_mean": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.KLDiv(x, x.LogSoftmax(in, 1), x.LogSoftmax(aims(x, in, 6, 5), 1), nn.KLDivOptions{LogTarget: true, BatchMean: true})
	},
	"bce": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.BCE(x, x.Sigmoid(in), aims(x, in, 6, 5), nn.BCEProbabilitiesOptions{})
	},
	"bce_weight": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.BCE(x, x.Sigmoid(in), aims(x, in, 6, 5), nn.BCEProbabilitiesOptions{Weight: x.AddScalar(aims(x, in, 5), 0.1), Reduction: sum})
	},
	"margin_ranking": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MarginRanking(x, in, more(x, in, 50, 6), signs(x, in, 0, 6), nn.MarginOptions{Margin: 0.2})
	},
	"cosine_embedding": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CosineEmbedding(x, in, more(x, in, 50, 6, 5), signs(x, in, 0, 6), nn.MarginOptions{Margin: 0.1})
	},
	"hinge_embedding": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.HingeEmbedding(x, in, signs(x, in, 9, 6, 5), nn.HingeEmbeddingOptions{})
	},
	"soft_margin": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.SoftMargin(x, in, signs(x, in, 9, 6, 5), cgotorch.LossOptions{})
	},
	"multi_label_margin": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MultiLabelMargin(x, in, cgotorch.FromSlice(x, []int64{3, 0, -1, 1, 2, 1, -1, 0, 0, 0}, 2, 5), cgotorch.LossOptions{})
	},
	"multi_label_soft_margin": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MultiLabelSoftMargin(x, in, x.Round(aims(x, in, 6, 5)), nn.MultiLabelSoftMarginOptions{Weight: x.AddScalar(aims(x, in, 5), 0.1)})
	},
	"multi_margin": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MultiMargin(x, in, cgotorch.FromSlice(x, []int64{2, 0, 1, 4, 4, 3}), nn.MultiMarginOptions{})
	},
	"multi_margin_options": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.MultiMargin(x, in, cgotorch.FromSlice(x, []int64{2, 0, 1, 4, 4, 3}),
			nn.MultiMarginOptions{P: 2, Margin: cgotorch.Set(0.7), Weight: x.AddScalar(aims(x, in, 5), 0.1), Reduction: sum})
	},
	"triplet_margin":      triplet(nn.TripletMarginOptions{}),
	"triplet_margin_swap": triplet(nn.TripletMarginOptions{Margin: 0.5, P: 1, Swap: true, Reduction: sum}),
	"triplet_margin_distance": triplet(nn.TripletMarginOptions{Swap: true, Distance: func(x *cgotorch.Exec, a, b *cgotorch.Tensor) *cgotorch.Tensor {
		return x.ScalarSub(x.Call1("aten::cosine_similarity", a, b), 1)
	}}),
	"ctc": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CTC(x, x.LogSoftmax(in, 2), cgotorch.FromSlice(x, []int64{1, 2, 2, 3, 1, 0}, 2, 3), []int64{7, 6}, []int64{3, 2}, nn.CTCOptions{})
	},
	"ctc_options": func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.CTC(x, x.LogSoftmax(in, 2), cgotorch.FromSlice(x, []int64{1, 2, 2, 2, 3, 1}), []int64{4, 6}, []int64{4, 2},
			nn.CTCOptions{Blank: 4, ZeroInfinity: true, Reduction: sum})
	},
}

func triplet(o nn.TripletMarginOptions) func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return nn.TripletMargin(x, in, more(x, in, 50, 6, 5), more(x, in, 90, 6, 5), o)
	}
}

func TestLosses_EqualPyTorch(t *testing.T) {
	var fixtures map[string]struct {
		Input, Shape     []int64
		Losses, Losses32 []float64
	}
	read(t, "losses", &fixtures)
	if got, want := slices.Sorted(maps.Keys(losses)), slices.Sorted(maps.Keys(fixtures)); !slices.Equal(got, want) {
		t.Fatalf("the losses here are\n%v\nand in the fixture\n%v", got, want)
	}
	w, exact, single := openWeights(t), &worst{}, &worst{}
	for name, want := range fixtures {
		t.Run(name, func(t *testing.T) {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				run := func(dtype cgotorch.DType) (*cgotorch.Tensor, []float64) {
					in := leaf(t, x, dtype, 0, want.Input...)
					if got := losses[name](x, in).Shape(); !slices.Equal(got, want.Shape) {
						t.Errorf("the loss has the shape %v, want %v", got, want.Shape)
					}
					return in, train(t, x, []*cgotorch.Tensor{in}, func() *cgotorch.Tensor { return x.Sum(losses[name](x, in)) })
				}
				_, got := run(cgotorch.Float32)
				single.compare(t, name+", float32", got, want.Losses32, roughly)
				in, got := run(cgotorch.Float64)
				exact.compare(t, name, got, want.Losses, tolerance)
				exact.compare(t, name+": the input", values(x, in), values(x, w.tensor(x, name+"/final input")), tolerance)
			})
		})
	}
	t.Logf("largest differences: %.2g (%s), in float32 %.2g (%s)", exact.difference, exact.where, single.difference, single.where)
}
