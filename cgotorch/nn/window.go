package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// window says how a convolution moves over its input. Each list has a number for each dimension of
// the kernel.
type window struct {
	stride, padding, outputPadding, dilation []int64
	groups                                   int
	mode                                     string // PaddingMode; "" means zeros
	same                                     bool   // the border keeps the size of the input; padding is 0
}

// weights makes the weight and the bias of a convolution from `in` to `out` channels. It draws the
// numbers that torch.nn draws. A transposed convolution has a weight [in, out/groups, kernel...],
// and any other convolution [out, in/groups, kernel...].
func (w window) weights(x *cgotorch.Exec, where string, in, out int, kernel []int64, transposed, noBias bool) (weight, bias *cgotorch.Tensor) {
	w.check(x, where, in, out, kernel)
	rows, columns, groups := out, in, max(w.groups, 1)
	if transposed {
		rows, columns = in, out
	}
	weight = x.Empty(cgotorch.Float32, append([]int64{int64(rows), int64(columns / groups)}, kernel...)...)
	if !noBias {
		bias = x.Empty(cgotorch.Float32, int64(out))
	}
	initLayer(x, weight, bias)
	keepParameters(x, where, weight, bias)
	return weight, bias
}

func (w window) check(x *cgotorch.Exec, where string, in, out int, kernel []int64) {
	least := func(list []int64) int { return int(slices.Min(list)) }
	atLeast(x, where, 1, argument{"in", in}, argument{"out", out}, argument{"kernel", least(kernel)},
		argument{"Stride", least(w.stride)}, argument{"Dilation", least(w.dilation)})
	atLeast(x, where, 0, argument{"Padding", least(w.padding)}, argument{"Groups", w.groups})
	if w.outputPadding != nil {
		atLeast(x, where, 0, argument{"OutputPadding", least(w.outputPadding)})
	}
	if groups := max(w.groups, 1); in%groups != 0 || out%groups != 0 {
		refuse(x, where, "%d groups do not divide %d input and %d output channels", groups, in, out)
	}
	if w.same && (slices.Max(w.stride) > 1 || slices.Max(w.padding) > 0) {
		refuse(x, where, "Same with a Stride of %v and a Padding of %v, want a stride of 1 and no padding", w.stride, w.padding)
	}
	switch w.mode {
	case "", "reflect", "replicate", "circular":
	default:
		refuse(x, where, "PaddingMode is %q, want reflect, replicate, circular or nothing for zeros", w.mode)
	}
}

// pad adds the border to `in`, if the convolution itself cannot add it: if it is not zeros, or has
// two different sides. It returns the padded input. The result `zeros` is the window that the
// convolution of the padded input has.
func (w window) pad(x *cgotorch.Exec, in, weight *cgotorch.Tensor) (padded *cgotorch.Tensor, zeros window) {
	before, after := w.padding, w.padding
	if w.same {
		before, after = w.sameBorder(weight.Shape()[2:])
	}
	if w.mode == "" && slices.Equal(before, after) || slices.Max(after) == 0 {
		w.padding = before
		return in, w
	}
	var border []int64 // before and after the last dimension, then the dimension before it
	for i := range slices.Backward(before) {
		border = append(border, before[i], after[i])
	}
	padded = x.Pad(in, border, cgotorch.PadOptions{Mode: w.mode})
	w.padding = make([]int64, len(w.padding))
	return padded, w
}

// sameBorder returns the border that makes the result as large as the input. If the border is odd,
// the part after the input is one larger.
func (w window) sameBorder(kernel []int64) (before, after []int64) {
	for i, n := range kernel {
		both := w.dilation[i] * (n - 1)
		before, after = append(before, both/2), append(after, both-both/2)
	}
	return before, after
}

// convolve returns the convolution of `in`, whose border it adds.
func (w window) convolve(x *cgotorch.Exec, in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
	padded, zeros := w.pad(x, in, weight)
	out := zeros.convolvePadded(x, padded, weight, bias)
	closeUnless(in, padded)
	return out
}

// convolvePadded returns the convolution of `in` with a border of zeros.
func (w window) convolvePadded(x *cgotorch.Exec, in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
	weight, bias = castOf(x, weight), castOf(x, bias)
	switch len(w.stride) {
	case 1:
		return x.Conv1d(in, weight, bias, cgotorch.Conv1dOptions{Stride: w.stride, Padding: w.padding, Dilation: w.dilation, Groups: w.groups})
	case 2:
		return x.Conv2d(in, weight, bias, cgotorch.Conv2dOptions{Stride: w.stride, Padding: w.padding, Dilation: w.dilation, Groups: w.groups})
	}
	return x.Conv3d(in, weight, bias, cgotorch.Conv3dOptions{Stride: w.stride, Padding: w.padding, Dilation: w.dilation, Groups: w.groups})
}

// transpose returns the transposed convolution of `in`.
func (w window) transpose(x *cgotorch.Exec, in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
	op := "aten::conv_transpose1d"
	switch len(w.stride) {
	case 2:
		op = "aten::conv_transpose2d.input"
	case 3:
		op = "aten::conv_transpose3d.input"
	}
	return x.Call1(op, in, castOf(x, weight), castOf(x, bias), w.stride, w.padding, w.outputPadding, max(w.groups, 1), w.dilation)
}
