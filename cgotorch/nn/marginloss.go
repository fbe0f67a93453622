package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// MarginOptions are the options of [MarginRanking] and [CosineEmbedding].
type MarginOptions struct {
	Margin    float64
	Reduction cgotorch.Reduction
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
