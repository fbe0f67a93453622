package text

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// refuse makes the Do fail with ErrInvalidArgument.
func refuse(x *cgotorch.Exec, where, format string, args ...any) {
	x.Fail(where, fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...))
}

// plain is x without what could change the arithmetic.
func plain(x *cgotorch.Exec) *cgotorch.Exec { return x.NoGrad().NoAutocast() }

func call(x *cgotorch.Exec, op string, args ...any) *cgotorch.Tensor {
	return x.Call(op, args...)[0].(*cgotorch.Tensor)
}

// sideBySide is count tensors of one shape, among them some, as one [count, …], where they lie one behind another and nothing else with them; nil
// where they do not.
func sideBySide(x *cgotorch.Exec, count int, some ...*cgotorch.Tensor) *cgotorch.Tensor {
	first := some[0]
	if first.StorageBytes() != int64(count)*first.Numel()*int64(first.DType().Size()) {
		return nil
	}
	for _, t := range some[1:] {
		if !first.SharesMemory(t) {
			return nil
		}
	}
	shape := append([]int64{int64(count)}, first.Shape()...)
	strides := make([]int64, len(shape))
	for i, stride := len(shape)-1, int64(1); i >= 0; i-- {
		strides[i] = stride
		stride *= shape[i]
	}
	return call(x, "aten::as_strided", first, shape, strides, 0)
}

// searchSorted returns, for each of values, how many of the sorted numbers are at most as large, Int64 or Int32.
func searchSorted(x *cgotorch.Exec, sorted, values *cgotorch.Tensor, int32s bool) *cgotorch.Tensor {
	return call(x, "aten::searchsorted.Tensor", sorted, values, int32s, true)
}

// indexCopy writes the entries of source to those of dim that index names.
func indexCopy(x *cgotorch.Exec, t *cgotorch.Tensor, dim int, index, source *cgotorch.Tensor) {
	call(x, "aten::index_copy_", t, dim, index, source).Close()
}

// lowest is the lowest finite number of a dtype.
func lowest(dtype cgotorch.DType) float64 {
	if dtype == cgotorch.BFloat16 {
		return -3.3895313892515355e38
	}
	return -3.4028234663852886e38
}
