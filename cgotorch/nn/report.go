package nn

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// KernelReport returns a text with a line for each norm that m.Forward runs for `in`. The line
// has the name of the [BatchNorm2d] and the kernels that do its work, or why LibTorch's operators
// do it. Other layers have no lines:
//
//	layer1.0.bn1: one kernel
//	layer1.0.bn2: LibTorch, because the images are not channels last
//
// A norm that is not in m is called "norm". KernelReport runs m.Forward once, without gradients,
// and changes no running statistics. It draws the random numbers that m draws. It does not wait.
// It fails as m.Forward does.
func KernelReport(x *cgotorch.Exec, m Module, in *cgotorch.Tensor) string {
	r := &report{names: map[*BatchNorm2d]string{}}
	err := walk(m, func(v reflect.Value, own []heldTensor) {
		if norm, ok := addressOf(v).(*BatchNorm2d); ok && len(own) > 0 {
			r.names[norm] = own[0].Name[:max(0, strings.LastIndex(own[0].Name, "."))]
		}
	})
	if err != nil {
		x.Fail("nn.KernelReport", err)
	}
	y := inside.Core.With(x.NoGrad(), inside.Core.Values(x).With(r, seam.Everywhere))
	if out := m.Forward(y, in); out != in {
		out.Close()
	}
	return r.text.String()
}

// addressOf returns the pointer to v, or nil if v has no address.
func addressOf(v reflect.Value) any {
	if !v.CanAddr() || !v.Addr().CanInterface() {
		return nil
	}
	return v.Addr().Interface()
}

// A report collects what layers tell of their kernels.
type report struct {
	names map[*BatchNorm2d]string
	text  strings.Builder
}

func reportOf(x *cgotorch.Exec) *report {
	r, _ := seam.Find[*report](inside.Core.Values(x))
	return r
}

// normWays are the texts for the numbers of streamtorch::batch_norm_way, which are the Way of
// csrc/kernels/norm_work.h.
var normWays = []string{
	"one kernel",
	"two kernels",
	"LibTorch, because Unfused is set",
	"LibTorch, because the images are not on a CUDA device",
	"LibTorch, because the images are not channels last",
	"LibTorch, because the dtype is not bfloat16, float16 or float32",
	"LibTorch, because the number of channels is not a multiple of 8, or too large",
	"LibTorch, because a channel has too few or too many values",
	"LibTorch, because the sum is not of two tensors of one shape, dtype and layout",
	"LibTorch, because a parameter is not a float32 tensor on the device of the images",
	"LibTorch, because the device is older than compute capability 8.0",
	"LibTorch, because too many streams run norms",
	"LibTorch, over ranks",
}

const (
	twoKernels     = 1 // the largest number of a way that is not LibTorch's
	tooManyValues  = 7
	tooManyStreams = 11
	notFused       = 12 // over ranks, without the kernels; no number of batch_norm_way
)

// way returns the number of the way that streamtorch::batch_norm_act takes.
func (m *BatchNorm2d) way(x *cgotorch.Exec, in, addend *cgotorch.Tensor, kernels string) int64 {
	return x.Call("streamtorch::batch_norm_way", in, addend, m.Weight, m.Bias, m.RunningMean, m.RunningVar, m.trains(), kernels, m.isOverRanks())[0].(int64)
}

func (r *report) add(m *BatchNorm2d, way int64) {
	name := r.names[m]
	if name == "" { // m itself is the module, or has no tensors, or is not in the module
		name = "norm"
	}
	fmt.Fprintf(&r.text, "%s: %s\n", name, normWays[way])
}
