package text

import (
	"errors"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// refuse makes the Do fail with ErrInvalidArgument. `format` and `args` give the text of the error.
func refuse(x *cgotorch.Exec, where, format string, args ...any) {
	x.Fail(where, fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...))
}

// plain returns x without the modes that could change the arithmetic.
func plain(x *cgotorch.Exec) *cgotorch.Exec { return x.NoGrad().NoAutocast() }

// seeding is held while a model draws its weights, because a seed is for the whole process.
var seeding sync.Mutex

// withSeed calls draw with the random numbers of a seed. It leaves those of the process as they
// are, on all devices. What other goroutines draw meanwhile comes from the seed too.
func withSeed(seed uint64, draw func()) (err error) {
	seeding.Lock()
	defer seeding.Unlock()
	devices := []cgotorch.Device{cgotorch.CPU}
	count, _ := cgotorch.CUDACount()
	for i := range count {
		devices = append(devices, cgotorch.CUDA(i))
	}
	for _, device := range devices {
		state, failed := cgotorch.GeneratorState(device)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, cgotorch.SetGeneratorState(device, state)) }()
	}
	if err := cgotorch.Seed(seed); err != nil {
		return err
	}
	draw()
	return nil
}

func call(x *cgotorch.Exec, op string, args ...any) *cgotorch.Tensor {
	return x.Call1(op, args...)
}

// stackedView returns `count` tensors of one shape as one tensor [count, …], without a copy.
// These tensors must be adjacent in memory and fill their whole storage. Otherwise stackedView
// returns nil. `some` has the first of these tensors, and perhaps a few more. Of these few,
// stackedView checks only that they share memory with the first.
func stackedView(x *cgotorch.Exec, count int, some ...*cgotorch.Tensor) *cgotorch.Tensor {
	first := some[0]
	if inside.Core.StorageBytes(first) != int64(count)*first.Numel()*int64(first.DType().Size()) {
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

// searchSorted counts, for each element of `values`, the elements of `sorted` that are not
// larger. The counts are Int32 if int32s is set, else Int64.
func searchSorted(x *cgotorch.Exec, sorted, values *cgotorch.Tensor, int32s bool) *cgotorch.Tensor {
	return call(x, "aten::searchsorted.Tensor", sorted, values, int32s, true)
}

// unsortRows undoes a selection of rows by the indices `order`. Row i of `sorted` becomes row
// order[i] of the result.
func unsortRows(x *cgotorch.Exec, sorted, order *cgotorch.Tensor) *cgotorch.Tensor {
	return call(x, "aten::index_copy_", x.EmptyLike(sorted), 0, order, sorted)
}

// indexCopy writes `source` into t. Entry i of `source` along the dimension `dim` becomes entry
// index[i] of t along `dim`.
func indexCopy(x *cgotorch.Exec, t *cgotorch.Tensor, dim int, index, source *cgotorch.Tensor) {
	call(x, "aten::index_copy_", t, dim, index, source).Close()
}

// lowest returns the lowest finite number of dtype, which is float32 or bfloat16.
func lowest(dtype cgotorch.DType) float64 {
	if dtype == cgotorch.BFloat16 {
		return -3.3895313892515355e38
	}
	return -3.4028234663852886e38
}
