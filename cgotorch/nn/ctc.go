package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// CTCOptions are the options of [CTC].
type CTCOptions struct {
	Blank        int  // number of the blank class
	ZeroInfinity bool // a loss that is infinite, because the labels do not fit, becomes 0
	Reduction    cgotorch.Reduction
}

// CTC is the loss of connectionist temporal classification, for sequences of labels whose places
// are unknown. `logProbabilities` are [L, N, C]. `labels` are int64 class numbers, [N, S] or all
// sequences one after another. The lengths are those of each sample, in host memory. The mean
// divides the loss of a sample by its number of labels first.
//
// CTC waits for the device if the labels are on a CUDA device. It fails with
// [cgotorch.ErrInvalidArgument] if a shape does not fit, and for a label that is no class. It does
// not look at labels on a CUDA device: such a label there may end the process.
func CTC(x *cgotorch.Exec, logProbabilities, labels *cgotorch.Tensor, inputLengths, labelLengths []int64, o CTCOptions) *cgotorch.Tensor {
	const where = "nn.CTC"
	checkOpen(x, where, "log probabilities", logProbabilities, "labels", labels)
	if len(inputLengths) != len(labelLengths) {
		refuse(x, where, "there are lengths of %d inputs and of %d labels", len(inputLengths), len(labelLengths))
	}
	return x.Call1("aten::ctc_loss.IntList", logProbabilities, labels, inputLengths, labelLengths, o.Blank, o.Reduction, o.ZeroInfinity)
}
