package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// These are the options of the losses. Each zero value is PyTorch's default, so the zero value of
// Reduction means the mean.
type (
	CrossEntropyOptions = cgotorch.CrossEntropyOptions
	NLLOptions          = cgotorch.NLLLossOptions
	BCEOptions          = cgotorch.BinaryCrossEntropyWithLogitsOptions
	MSEOptions          = cgotorch.LossOptions
)

// CrossEntropy is the cross entropy of logits [N, C, ...] against labels. Labels are int64 class
// numbers [N, ...], or probabilities of the logits' shape. Class numbers are 0 to C-1, or
// IgnoreIndex (-100). Any other class number is an error on the CPU. On a CUDA device it makes
// the device lost. Check labels on the host, as imageloader does.
func CrossEntropy(x *cgotorch.Exec, logits, labels *cgotorch.Tensor, o CrossEntropyOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.CrossEntropy", "logits", logits, "labels", labels)
	if !labels.DType().IsFloat() {
		checkLabels(x, "nn.CrossEntropy", labels)
	}
	return x.CrossEntropyWith(logits, labels, o)
}

// NLL is the negative log likelihood of labels under log probabilities [N, C, ...]. Labels are
// int64 class numbers [N, ...] with the bounds that [CrossEntropy] describes.
func NLL(x *cgotorch.Exec, logProbabilities, labels *cgotorch.Tensor, o NLLOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.NLL", "log probabilities", logProbabilities, "labels", labels)
	checkLabels(x, "nn.NLL", labels)
	return x.NLLLoss(logProbabilities, labels, o)
}

func checkLabels(x *cgotorch.Exec, where string, labels *cgotorch.Tensor) {
	if labels.DType() != cgotorch.Int64 {
		refuse(x, where, "labels are %s, want int64 class numbers", labels)
	}
}

// checkOpen makes the Do fail if a or b is nil or closed.
func checkOpen(x *cgotorch.Exec, where, nameA string, a *cgotorch.Tensor, nameB string, b *cgotorch.Tensor) {
	if a.Closed() || b.Closed() {
		refuse(x, where, "%s: %s, %s: %s; want two open tensors", nameA, a, nameB, b)
	}
}

// checkShapes makes the Do fail if a and b have different shapes. LibTorch would broadcast them,
// and broadcasting is a mistake in a loss.
func checkShapes(x *cgotorch.Exec, where string, a, b *cgotorch.Tensor) {
	if !slices.Equal(a.Shape(), b.Shape()) {
		refuse(x, where, "%s and %s are of different shapes; give both one shape, with x.Squeeze or x.Reshape", a, b)
	}
}

// BCEWithLogits is the binary cross entropy of logits against targets. The targets have the shape
// of the logits and are in [0, 1].
func BCEWithLogits(x *cgotorch.Exec, logits, targets *cgotorch.Tensor, o BCEOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.BCEWithLogits", "logits", logits, "targets", targets)
	checkShapes(x, "nn.BCEWithLogits", logits, targets)
	return x.BinaryCrossEntropyWithLogits(logits, targets, o)
}

// MSE is the mean squared difference of predictions and targets of equal shapes.
func MSE(x *cgotorch.Exec, predictions, targets *cgotorch.Tensor, o MSEOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.MSE", "predictions", predictions, "targets", targets)
	checkShapes(x, "nn.MSE", predictions, targets)
	return x.MSELoss(predictions, targets, o)
}

// BCEProbabilitiesOptions are the options of [BCE].
type BCEProbabilitiesOptions struct {
	Weight    *cgotorch.Tensor // factor of each element, broadcast; nil means 1
	Reduction cgotorch.Reduction
}

// BCE is the binary cross entropy of probabilities against targets of the same shape. Both are in
// [0, 1]. [BCEWithLogits] is exact where a probability is near 0 or 1. BCE fails under autocast.
func BCE(x *cgotorch.Exec, probabilities, targets *cgotorch.Tensor, o BCEProbabilitiesOptions) *cgotorch.Tensor {
	checkOpen(x, "nn.BCE", "probabilities", probabilities, "targets", targets)
	checkShapes(x, "nn.BCE", probabilities, targets)
	return x.Call1("aten::binary_cross_entropy", probabilities, targets, o.Weight, o.Reduction)
}
