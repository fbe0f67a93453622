package nn

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ForwardIndices is [MaxPool1d.Forward] that also returns where the largest values are, for
// [MaxUnpool]: Int64 positions in the last dimension.
func (m *MaxPool1d) ForwardIndices(x *cgotorch.Exec, in *cgotorch.Tensor) (out, indices *cgotorch.Tensor) {
	return indexed(x.Call("aten::max_pool1d_with_indices", in, ints(m.Kernel), ints(cmp.Or(m.Stride, m.Kernel)), ints(m.Padding), ints(cmp.Or(m.Dilation, 1)), m.CeilMode))
}

// ForwardIndices is [MaxPool1d.ForwardIndices] for images. The positions are those in the flattened
// image. LibTorch's kernel does the work.
func (m *MaxPool2d) ForwardIndices(x *cgotorch.Exec, in *cgotorch.Tensor) (out, indices *cgotorch.Tensor) {
	return indexed(x.Call("aten::max_pool2d_with_indices", in, ints(m.Kernel), ints(cmp.Or(m.Stride, m.Kernel)), ints(m.Padding), ints(cmp.Or(m.Dilation, Square(1))), m.CeilMode))
}

// ForwardIndices is [MaxPool1d.ForwardIndices] for volumes. The positions are those in the
// flattened volume.
func (m *MaxPool3d) ForwardIndices(x *cgotorch.Exec, in *cgotorch.Tensor) (out, indices *cgotorch.Tensor) {
	return indexed(x.Call("aten::max_pool3d_with_indices", in, ints(m.Kernel), ints(cmp.Or(m.Stride, m.Kernel)), ints(m.Padding), ints(cmp.Or(m.Dilation, Cube(1))), m.CeilMode))
}

func indexed(results []any) (out, indices *cgotorch.Tensor) {
	return results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor)
}

// MaxUnpool undoes a pooling of largest values. It writes each value of `in` to its position in
// `indices`, which ForwardIndices has returned. All other values are 0. `output` has the sizes of
// the pooling's input: length, or height and width, or depth, height and width. Where two windows
// had the same largest value, one of the two is written. MaxUnpool does not wait. It fails with
// [cgotorch.ErrInvalidArgument] if the shapes do not fit.
func MaxUnpool(x *cgotorch.Exec, in, indices *cgotorch.Tensor, output ...int64) *cgotorch.Tensor {
	const where = "nn.MaxUnpool"
	dims := len(output)
	if dims < 1 || dims > 3 || in.Dim() != 2+dims || !slices.Equal(in.Shape(), indices.Shape()) {
		refuse(x, where, "the input is %s, the indices are %s and the sizes %v; want [N, C, ...] of both, and 1 to 3 sizes", in, indices, output)
	}
	shape := in.Shape()
	points := int64(1)
	for _, n := range output {
		points *= n
	}
	return x.Tidy(func() *cgotorch.Tensor {
		zeros := x.Zeros(in.DType(), shape[0], shape[1], points)
		spread := x.Scatter(zeros, 2, x.Flatten(indices, 2, -1), x.Flatten(in, 2, -1))
		return x.Reshape(spread, append([]int64{shape[0], shape[1]}, output...)...)
	})
}
