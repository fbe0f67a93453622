package cgotorch

import (
	"strconv"
	"strings"
)

const (
	toOneDType = "give both one dtype with x.To; vision.Normalize makes images of bytes"
	setTensor  = `a nil *Tensor was given: check the name in a map, as in["image"] of a batch, or set the variable or field`
	toFloat    = "give labels of probabilities the dtype of the predictions with x.To; for class numbers use x.CrossEntropy"
	ownExec    = "use the Exec of the running Do; another goroutine calls Do itself, on a stream of its own"
	notCast    = "can't be cast to the desired output type"
	allocated  = "can't allocate memory: you tried to allocate"
	toInt64    = "labels and indices are integers: convert them with x.To(t, cgotorch.Int64)"
)

// cures are messages of LibTorch that name no cure, or a cure in Python's words. `part` is a part
// of the message; three dots in it stand for any text. `cause` stands for the message where it is
// long. `cure` says what to do. The first that fits counts.
var cures = []struct{ part, cause, cure string }{
	{"(Tensor ... cannot be None", "", setTensor},
	{"(Tensor[] ... is nil", "", setTensor},
	{"expected scalar type Long", "", toInt64},
	{"scalar types: Long, Int;", "", toInt64},
	{"expected target dtype to be Long", "", toInt64},
	{"Expected dtype int32 or int64 for index", "", toInt64},
	{"expected scalar type", "", toOneDType},
	{"to have the same dtype", "", toOneDType},
	{"must have the same dtype", "", toOneDType},
	{"Input type (... should be the same", "", toOneDType},
	{"multi-target not supported", "the labels have more dimensions than [N]", "take the dimension of size 1 away with x.Squeeze, or give probabilities of the logits' shape and dtype"},
	{"to match target batch_size", "", "give one label for each row of the logits"},
	{"to be divisible by num_groups", "", "make the layer for the number of channels of its input"},
	{"einsum(): ", "", "each dimension has a letter, and each letter behind -> stands before it, as in \"ij,jk->ik\""},
	{"Expected size for first two dimensions of batch2", "", "the tensors are [B, N, M] and [B, M, P]; x.MatMul also expands batches"},
	{"don't multiply up to the size of dim", "", "the sizes multiply to that of the dimension; one of them may be -1"},
	{"divisible by the square of upscale_factor", "", "give so many channels times the square of the factor"},
	{"Padding length should be less than or equal to", "", "give two numbers for each of the last dimensions"},
	{"probability tensor contains either", "", "weights are finite and from 0 up: use x.Softmax on logits"},
	{"samples without replacement", "", "draw fewer, or with replacement"},
	{"dropout probability has to be", "", "give a share, such as 0.5"},
	{"q values must be in the range", "", "give shares: 0.9 stands for 90 percent"},
	{"bincount only supports", "", "give numbers from 0 up, [N], of a dtype of integers"},
	{"expects 'from' to be less than 'to'", "", "give a high above low; high itself is never drawn"},
	{"the input matrix is singular", "", "use linalg.Pinv, or add a small multiple of the identity"},
	{"the input is not positive-definite", "", "add a small multiple of the identity; the matrix must be symmetric"},
	{"batches of square matrices", "", "give [..., N, N]; linalg.LstSq and linalg.Pinv take other matrices"},
	{"Invalid number of data points", "", "give at least one point"},
	{"Expected reduction dim to be specified for input.numel() == 0", "the tensor has no elements", "test Numel first"},
	{"LibTorch has no operator", "", "cgotorch.Schemas lists all"},
	{"is missing and has no default", "", "give the arguments in the order of the operator's schema, which cgotorch.Schemas lists"},
	{") cannot be a", "", "give the arguments in the order of the operator's schema, which cgotorch.Schemas lists"},
	{"Trying to backward through the graph a second time", "a backward through the same graph a second time, which the first backward has freed", "set BackwardOptions.RetainGraph in the first, or run the forward again"},
	{"does not require grad and does not have a grad_fn", "", "call SetRequiresGrad before the forward, and run the forward without NoGrad"},
	{"grad can be implicitly created only for scalar outputs", "", "reduce it with x.Mean or x.Sum, or set BackwardOptions.Grads"},
	{"a leaf Variable that requires grad is being used in an in-place operation", "", "change a parameter with an Exec of x.NoGrad"},
	{"has been modified by an inplace operation", "a tensor that the backward needs has been modified by an inplace operation since the forward", "use the operator without InPlace, or Clone the tensor before"},
	{"Only Tensors of floating point and complex dtype can require gradients", "", "convert the tensor with x.To(t, cgotorch.Float32)"},
	{"view size is not compatible with input tensor's size and stride", "view size is not compatible with the tensor's size and stride", "use x.Reshape, which copies where it must"},
	{"could not infer output dtype", "", "convert the tensor with x.To"},
	{notCast, "", "use the operator without InPlace, or convert with x.To"},
	{"Found dtype Long but expected Float", "", toFloat},
	{"could not create a primitive descriptor for the LSTM", "oneDNN has no LSTM for these dtypes on this processor", "give input and weights one dtype with x.To or nn.To, or float32 to both"},
	{"an Exec was used outside its own Do", "", ownExec},
	{"derivative for aten::_scaled_dot_product", "", "a second derivative of attention needs nn.MultiheadAttention.AttendWeights, or x.Softmax of x.MatMul"},
	{"\" not implemented for '", "", "the operator has no kernel for this dtype: convert the tensor with x.To"},
	{"Target ... is out of bounds", "", "class numbers are from 0 to the number of classes - 1"},
	{"Class values must be smaller than num_classes", "", "class numbers are from 0 to the number of classes - 1"},
	{"index out of range in self", "", "indices are from 0 to the size of the dimension - 1"},
	{"The size of tensor a (", "", "the shapes are compared from the right, and two sizes must be equal or one of them 1: use x.Reshape or x.Unsqueeze"},
	{"mat1 and mat2 shapes cannot be multiplied", "", "the last size of the first must be the first size of the second (of a layer: its inputs): use x.Transpose or x.Reshape"},
	{"expected input[... channels, but got", "", "make the layer for these channels; x.Permute(images, 0, 3, 1, 2) makes [N, C, H, W] of [N, H, W, C]"},
	{"Kernel size can't be greater than actual input size", "", "give larger images, or a larger padding"},
	{"Output size is too small", "", "give larger images, a smaller window, or a larger padding"},
	{"Expected 3D (unbatched) or 4D (batched) input", "", "images are [N, C, H, W]: add a dimension with x.Unsqueeze"},
	{"running_mean should contain", "", "make the layer for the number of channels of its input"},
	{"Given normalized_shape=", "", "make the layer for the last sizes of its input"},
	{"Dimension out of range", "", "dimensions count from 0, or from the end with -1"},
	{"Sizes of tensors must match except in dimension", "", "cut them with x.Narrow or fill them with x.Pad"},
	{"expected a non-empty list of Tensors", "the list of tensors is empty", "give at least one tensor"},
	{"stack expects each tensor to be equal size", "", "cut them with x.Narrow or fill them with x.Pad"},
	{"' is invalid for input of size", "", "the sizes of the new shape multiply to the number of elements; one of them may be -1"},
	{"Trying to create tensor with negative dimension", "", "sizes are from 0 up"},
	{"elements cannot be converted to Scalar", "", "reduce it with x.Mean or x.Sum, or read all with ToSlice"},
	{"The expanded size of the tensor", "", "only a dimension of size 1 expands: use x.Unsqueeze or x.Repeat"},
	{"number of dimensions in the tensor input does not match the length of the desired ordering", "the dimensions do not name each of the tensor's once", "name each dimension, as in x.Permute(t, 0, 2, 3, 1)"},
	{"exceeds dimension size", "", "start + length is at most the size of the dimension"},
	{"selected index k out of range", "", "k is from 0 to the size of the dimension"},
	{"all elements of input should be between 0 and 1", "", "use x.Sigmoid before, or the loss with logits"},
	{"Subtraction, the `-` operator, with two bool tensors", "two bool tensors cannot be subtracted", "use x.LogicalXor, or convert them with x.To"},
	{allocated, "the CPU has no memory for ", "take smaller batches, or free tensors with x.Tidy"},
	{"CUDA out of memory", "", "take smaller batches, or free tensors with x.Tidy; see Device.Memory"},
	{"Could not find schema for", "", "open the library that registers it with OpenOperators before"},
	{"where the exec is on", "", "copy it to a GPU with x.FromDevice, read it on its own device with ToSlice, or move the model with nn.To"},
}

// mostMessage is the number of bytes of a message of LibTorch with its cure, besides the sign of
// omission.
const mostMessage = 390

// cured returns a message of LibTorch with a cure, if there is one. It takes the middle out of a
// long message. `op` is the operator that failed.
func cured(op, message string) string {
	cure := ""
	if name, _, _ := strings.Cut(op, "."); strings.Contains(message, notCast) && !strings.HasSuffix(name, "_") && !strings.HasSuffix(op, "out") {
		return strings.TrimRight(message, ". ") + "; an argument has another dtype than the result: " + toFloat
	}
	for _, c := range cures {
		if before, after, _ := strings.Cut(c.part, "..."); strings.Contains(message, before) && strings.Contains(message, after) {
			if c.cause != "" {
				_, bytes, _ := strings.Cut(message, allocated+" ")
				bytes, _, _ = strings.Cut(bytes, " ")
				message = c.cause
				if n, err := strconv.ParseFloat(bytes, 64); err == nil {
					message += strconv.FormatFloat(n/1e9, 'f', map[bool]int{true: 0, false: 3}[n >= 1e11], 64) + " GB"
				}
			}
			message, cure = strings.TrimRight(message, ". "), "; "+c.cure
			break
		}
	}
	if most := mostMessage - len(cure); len(message) > most {
		const end = 100 // bytes of the end that stay
		message = strings.ToValidUTF8(message[:most-end], "") + " … " + strings.ToValidUTF8(message[len(message)-end:], "")
	}
	return message + cure
}
