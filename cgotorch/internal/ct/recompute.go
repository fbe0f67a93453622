package ct

// #include "cgotorch.h"
//
// uint64_t recomputeRun(uint64_t token, ct_tensor* in, ct_tensor** out);
// void recomputeRelease(uint64_t number);
import "C"

// Function holds the Go functions that stand for the two C functions of ct_function. Package
// cgotorch sets the two Go functions when the program starts, before the first Recompute.
var Function struct {
	Run     func(token uint64, in *Tensor, out **Tensor) uint64
	Release func(number uint64)
}

//export recomputeRun
func recomputeRun(token C.uint64_t, in *C.ct_tensor, out **C.ct_tensor) C.uint64_t {
	return C.uint64_t(Function.Run(uint64(token), in, out))
}

//export recomputeRelease
func recomputeRelease(number C.uint64_t) { Function.Release(uint64(number)) }

// Recompute is ct_recompute with [Function].
func Recompute(x Exec, token uint64, in, result *Tensor, out **Tensor) *Status {
	f := C.ct_function{token: C.uint64_t(token), run: (*[0]byte)(C.recomputeRun), release: (*[0]byte)(C.recomputeRelease)}
	h := *out
	status := C.ct_recompute(x.c(), f, in, result, &h)
	*out = h
	return status
}
