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
		absent := x.LogicalOr(x.LtScalar(predictions, 0), x.GeScalar(x.Maximum(predictions, labels), classes))
		refuseAny(x, where, absent, "a number is of none of the %d classes", classes)
		// Each sample adds 1 to its place in the matrix. The place behind the matrix is for the samples
		// that do not count. BinCount would wait for a CUDA device.
		place := x.Add(x.MulScalar(labels, classes), predictions)
		place = x.MaskedFill(place, x.LtScalar(labels, 0), classes*classes)
		place = x.MaskedFill(place, absent, -1)
		ones := x.Expand(x.Ones(cgotorch.Int64, 1), labels.Shape()[0])
		counts := x.ScatterAdd(x.Zeros(cgotorch.Int64, int64(classes*classes+1)), 0, place, ones)
		return x.Reshape(x.Narrow(counts, 0, 0, classes*classes), int64(classes), int64(classes))
	})
}
