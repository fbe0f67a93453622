package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// MarginOptions are the options of [MarginRanking] and [CosineEmbedding].
type MarginOptions struct {
	Margin    float64
	Reduction cgotorch.Reduction
}

// MarginRanking is max(0, -target*(first - second) + Margin). A target of 1 wants `first` above
// `second`, and a target of -1 wants it below. All three have equal shapes.
func MarginRanking(x *cgotorch.Exec, first, second, targets *cgotorch.Tensor, o MarginOptions) *cgotorch.Tensor {
	checkThree(x, "nn.MarginRanking", "first", first, "second", second, "targets", targets)
	checkShapes(x, "nn.MarginRanking", first, second)
	checkShapes(x, "nn.MarginRanking", first, targets)
	return x.Call1("aten::margin_ranking_loss", first, second, targets, o.Margin, o.Reduction)
}

// CosineEmbedding is 1 - cosine(first, second) for a target of 1. For a target of -1 it is max(0,
// cosine(first, second) - Margin). `first` and `second` are [N, D], and `targets` are [N].
func CosineEmbedding(x *cgotorch.Exec, first, second, targets *cgotorch.Tensor, o MarginOptions) *cgotorch.Tensor {
	checkThree(x, "nn.CosineEmbedding", "first", first, "second", second, "targets", targets)
	checkShapes(x, "nn.CosineEmbedding", first, second)
	return x.Call1("aten::cosine_embedding_loss", first, second, targets, o.Margin, o.Reduction)
}

// HingeEmbeddingOptions are the options of [HingeEmbedding].
type HingeEmbeddingOptions struct {
	Margin    cgotorch.Opt[float64] // unset means 1
	Reduction cgotorch.Reduction
}

// HingeEmbedding is the distance itself for a target of 1. For a target of -1 it is max(0, Margin -
// distance). Both arguments have equal shapes.
func HingeEmbedding(x *cgotorch.Exec, distances, targets *cgotorch.Tensor, o HingeEmbeddingOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.HingeEmbedding", "distances", distances, "targets", targets)
	checkShapes(x, "nn.HingeEmbedding", distances, targets)
	return x.Call1("aten::hinge_embedding_loss", distances, targets, o.Margin.Or(1), o.Reduction)
}

// SoftMargin is log(1 + exp(-target*prediction)), for targets of 1 and -1. Both arguments have
// equal shapes.
func SoftMargin(x *cgotorch.Exec, predictions, targets *cgotorch.Tensor, o cgotorch.LossOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.SoftMargin", "predictions", predictions, "targets", targets)
	checkShapes(x, "nn.SoftMargin", predictions, targets)
	return x.Call1("aten::soft_margin_loss", predictions, targets, o.Reduction)
}

// MultiLabelMargin wants the predictions of a sample's classes 1 above those of all other classes.
// `predictions` are [N, C]. `targets` are int64 [N, C]: class numbers first, and then -1.
func MultiLabelMargin(x *cgotorch.Exec, predictions, targets *cgotorch.Tensor, o cgotorch.LossOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.MultiLabelMargin", "predictions", predictions, "targets", targets)
	checkShapes(x, "nn.MultiLabelMargin", predictions, targets)
	checkLabels(x, "nn.MultiLabelMargin", targets)
	return x.Call1("aten::multilabel_margin_loss", predictions, targets, o.Reduction)
}

// MultiLabelSoftMarginOptions are the options of [MultiLabelSoftMargin].
type MultiLabelSoftMarginOptions struct {
	Weight    *cgotorch.Tensor // factor of each class, [C]; nil means 1
	Reduction cgotorch.Reduction
}

// MultiLabelSoftMargin is the binary cross entropy of logits [N, C] against targets of the same
// shape, as the mean over the classes of a sample. Targets are in [0, 1].
func MultiLabelSoftMargin(x *cgotorch.Exec, logits, targets *cgotorch.Tensor, o MultiLabelSoftMarginOptions) *cgotorch.Tensor {
	const where = "nn.MultiLabelSoftMargin"
	checkOpen(x, where, "logits", logits, "targets", targets)
	checkShapes(x, where, logits, targets)
	return x.Tidy(func() *cgotorch.Tensor {
		right := x.Mul(targets, x.LogSigmoid(logits))
		wrong := x.Mul(x.ScalarSub(targets, 1), x.LogSigmoid(x.Neg(logits)))
		loss := x.Neg(x.Add(right, wrong))
		if o.Weight != nil {
			loss = x.Mul(loss, o.Weight)
		}
		shape := logits.Shape()
		loss = x.DivScalar(x.SumDim(loss, []int64{-1}, cgotorch.SumOptions{}), shape[len(shape)-1])
		return reduce(x, where, loss, o.Reduction)
	})
}

// MultiMarginOptions are the options of [MultiMargin].
type MultiMarginOptions struct {
	P         int                   // 1 or 2, the power of each difference; 0 means 1
	Margin    cgotorch.Opt[float64] // unset means 1
	Weight    *cgotorch.Tensor      // factor of each class, [C]; nil means 1
	Reduction cgotorch.Reduction
}

// MultiMargin is the mean over the wrong classes of max(0, Margin - right + wrong)^P. `predictions`
// are [N, C], and `labels` are int64 class numbers [N].
func MultiMargin(x *cgotorch.Exec, predictions, labels *cgotorch.Tensor, o MultiMarginOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.MultiMargin", "predictions", predictions, "labels", labels)
	checkLabels(x, "nn.MultiMargin", labels)
	return x.Call1("aten::multi_margin_loss", predictions, labels, max(o.P, 1), o.Margin.Or(1), o.Weight, o.Reduction)
}

// TripletMarginOptions are the options of [TripletMargin].
type TripletMarginOptions struct {
	Margin    float64 // above 0; 0 means 1
	P         float64 // order of the norm, without Distance; 0 means 2
	Eps       float64 // added to each difference, without Distance; 0 means 1e-6
	Swap      bool    // use the distance of positive and negative, if it is below that of anchor and negative
	Reduction cgotorch.Reduction
	// Distance returns the distances of two tensors, in place of the norm. This is PyTorch's
	// TripletMarginWithDistanceLoss.
	Distance func(x *cgotorch.Exec, a, b *cgotorch.Tensor) *cgotorch.Tensor
}

// TripletMargin wants an anchor nearer to the positive sample than to the negative one, by Margin.
// The three tensors are [N, D].
func TripletMargin(x *cgotorch.Exec, anchor, positive, negative *cgotorch.Tensor, o TripletMarginOptions) *cgotorch.Tensor {
	const where = "nn.TripletMargin"
	checkThree(x, where, "anchor", anchor, "positive", positive, "negative", negative)
	checkShapes(x, where, anchor, positive)
	checkShapes(x, where, anchor, negative)
	for value, standard := range map[*float64]float64{&o.Margin: 1, &o.P: 2, &o.Eps: 1e-6} {
		if *value == 0 {
			*value = standard
		}
	}
	if o.Distance == nil {
		return x.Call1("aten::triplet_margin_loss", anchor, positive, negative, o.Margin, o.P, o.Eps, o.Swap, o.Reduction)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		near, far := o.Distance(x, anchor, positive), o.Distance(x, anchor, negative)
		if o.Swap {
			far = x.Minimum(far, o.Distance(x, positive, negative))
		}
		return reduce(x, where, x.Clamp(x.Sub(x.AddScalar(near, o.Margin), far), 0, nil), o.Reduction)
	})
}

// checkThree makes the Do fail if a, b or c is nil or closed.
func checkThree(x *cgotorch.Exec, where, nameA string, a *cgotorch.Tensor, nameB string, b *cgotorch.Tensor, nameC string, c *cgotorch.Tensor) {
	checkOpen(x, where, nameA, a, nameB, b)
	checkOpen(x, where, nameB, b, nameC, c)
}
