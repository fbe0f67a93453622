package cgotorch

import "strings"

// cures are messages of LibTorch that name no cure, or a cure in Python's words. `part` is a part
// of the message. `cause` stands for the message where it is long. `cure` says what to do.
var cures = []struct{ part, cause, cure string }{
	{"expected scalar type", "", "give both one dtype with x.To; vision.Normalize makes images of bytes"},
	{"to have the same dtype", "", "give both one dtype with x.To; vision.Normalize makes images of bytes"},
	{"Trying to backward through the graph a second time", "a backward through the same graph a second time, which the first backward has freed", "set BackwardOptions.RetainGraph in the first, or run the forward again"},
	{"does not require grad and does not have a grad_fn", "", "call SetRequiresGrad before the forward, and run the forward without NoGrad"},
	{"grad can be implicitly created only for scalar outputs", "", "reduce it with x.Mean or x.Sum, or set BackwardOptions.Grads"},
	{"a leaf Variable that requires grad is being used in an in-place operation", "", "change a parameter with an Exec of x.NoGrad"},
	{"has been modified by an inplace operation", "a tensor that the backward needs has been modified by an inplace operation since the forward", "use the operator without InPlace, or Clone the tensor before"},
	{"view size is not compatible with input tensor's size and stride", "view size is not compatible with the tensor's size and stride", "use x.Reshape, which copies where it must"},
	{"could not infer output dtype", "", "convert the tensor with x.To"},
	{"is out of bounds", "", "class numbers are from 0 to the number of classes - 1"},
}

// The function `cured` returns a message of LibTorch with a cure, if there is one.
func cured(message string) string {
	for _, c := range cures {
		if !strings.Contains(message, c.part) || c.part == "is out of bounds" && !strings.HasPrefix(message, "Target ") {
			continue
		}
		if c.cause != "" {
			message = c.cause
		}
		return strings.TrimRight(message, ". ") + "; " + c.cure
	}
	return message
}
