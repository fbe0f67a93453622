package metric

import "github.com/streamtorch/streamtorch/cgotorch"

// Confusion returns the confusion matrix, Int64 [classes, classes]. Row i and column j hold the
// number of samples of class i for which class j was predicted. Predictions and labels are int64
// class numbers [N]. Samples with a label below 0 do not count. The sum of the matrices of all
// batches is the matrix of all samples. The Do owns the result.
//
// Confusion fails with [cgotorch.ErrInvalidArgument] if a shape or dtype does not fit, or if
// `classes` is below 1. A number of a class that does not exist is an error on the CPU. On a CUDA
// device it makes the device lost.
func Confusion(x *cgotorch.Exec, predictions, labels *cgotorch.Tensor, classes int) *cgotorch.Tensor {
	const where = "metric.Confusion"
	if predictions.Dim() != 1 || labels.Dim() != 1 || predictions.Shape()[0] != labels.Shape()[0] || predictions.DType() != cgotorch.Int64 ||
		labels.DType() != cgotorch.Int64 || classes < 1 {
		refuse(x, where, "the predictions are %s, the labels %s, and there are %d classes; want int64 [N] of both", predictions, labels, classes)
	}
	x = x.NoGrad().NoAutocast()
	return x.Tidy(func() *cgotorch.Tensor {
		counts := x.GeScalar(labels, 0)
		rows := x.OneHot(x.Clamp(labels, 0, nil), classes)
		columns := x.OneHot(predictions, classes)
		rows = x.Mul(rows, x.Unsqueeze(x.To(counts, cgotorch.Int64), 1))
		product := x.MatMul(x.To(x.Transpose(rows, 0, 1), cgotorch.Float64), x.To(columns, cgotorch.Float64)) // CUDA multiplies no integers
		return x.To(product, cgotorch.Int64)
	})
}
