package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

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
