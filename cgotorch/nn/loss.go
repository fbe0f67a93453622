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
