package distributed

import (
	"github.com/streamtorch/streamtorch/cgotorch"
)

// inMemory returns a view of a dense tensor, of one dimension, in the order of its memory.
func inMemory(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::as_strided", t, []int64{t.Numel()}, []int64{1})
}

// emptyLike returns a tensor with the shape and strides of a dense tensor. Its values are
// undefined.
func emptyLike(x *cgotorch.Exec, t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	return x.Call1("aten::empty_like", t, dtype)
}

// alike reports whether two tensors of one shape, with these strides, have their elements in the
// same order.
func alike(strides, other, shape []int64) bool {
	for i, n := range shape {
		if n != 1 && strides[i] != other[i] {
			return false
		}
	}
	return true
}
