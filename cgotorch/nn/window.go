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
}

// The method `weights` makes the weight and the bias of a convolution from `in` to `out` channels.
// It draws the numbers that torch.nn draws. A transposed convolution has a weight [in,
// out/groups, kernel...], and any other convolution [out, in/groups, kernel...].
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
	switch w.mode {
	case "", "reflect", "replicate", "circular":
	default:
		refuse(x, where, "PaddingMode is %q, want reflect, replicate, circular or nothing for zeros", w.mode)
	}
}

// The method `pad` adds the border to `in`, if the border is not zeros. It returns the padded
// input. The result `zeros` is the window that the convolution of the padded input has.
func (w window) pad(x *cgotorch.Exec, in *cgotorch.Tensor) (padded *cgotorch.Tensor, zeros window) {
	if w.mode == "" || slices.Max(w.padding) == 0 {
		return in, w
	}
	var border []int64 // before and after the last dimension, then the dimension before it
	for _, n := range slices.Backward(w.padding) {
		border = append(border, n, n)
	}
	padded = x.Pad(in, border, cgotorch.PadOptions{Mode: w.mode})
	w.padding = make([]int64, len(w.padding))
	return padded, w
}

// The method `convolve` returns the convolution of `in`, whose border it adds.
func (w window) convolve(x *cgotorch.Exec, in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
	padded, zeros := w.pad(x, in)
	out := zeros.convolvePadded(x, padded, weight, bias)
	closeUnless(in, padded)
	return out
}

// The method `convolvePadded` returns the convolution of `in` with a border of zeros.
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

// The method `transpose` returns the transposed convolution of `in`.
func (w window) transpose(x *cgotorch.Exec, in, weight, bias *cgotorch.Tensor) *cgotorch.Tensor {
	op := "aten::conv_transpose1d"
	switch len(w.stride) {
	case 2:
		op = "aten::conv_transpose2d.input"
	case 3:
		op = "aten::conv_transpose3d.input"
	}
	return x.Call(op, in, castOf(x, weight), castOf(x, bias), w.stride, w.padding, w.outputPadding, max(w.groups, 1), w.dilation)[0].(*cgotorch.Tensor)
}
