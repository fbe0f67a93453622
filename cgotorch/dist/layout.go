package dist

import (
	"cmp"
	"fmt"
	"slices"

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

// dense fails if the elements of t do not fill their memory.
func dense(t *cgotorch.Tensor) error {
	shape, strides := t.Shape(), t.Strides()
	order := make([]int, len(shape))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(strides[a], strides[b]) })
	next := int64(1)
	for _, i := range order {
		if shape[i] == 1 || t.Numel() == 0 {
			continue
		}
		if strides[i] != next {
			return fmt.Errorf("%s has strides %v and is not dense: %w", t, strides, cgotorch.ErrInvalidArgument)
		}
		next *= shape[i]
	}
	return nil
}
