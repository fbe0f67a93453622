//go:build cgo && linux && (amd64 || arm64)

package ct

// #include "ct_gen.h"
//
// uint64_t recomputeRun(uint64_t token, ct_tensor* in, ct_tensor** out);
// void recomputeRelease(uint64_t number);
import "C"

import "runtime/cgo"

//export recomputeRun
func recomputeRun(token C.uint64_t, in *C.ct_tensor, out **C.ct_tensor) C.uint64_t {
	return C.uint64_t(cgo.Handle(token).Value().(Function).Run(in, out))
}

// recomputeRelease releases a Function, or the number of a failure.
//
//export recomputeRelease
func recomputeRelease(number C.uint64_t) { cgo.Handle(number).Delete() }

// Recompute is ct_recompute with a [Function].
func Recompute(x Exec, of Function, in, result *Tensor, out **Tensor) *Status {
	f := C.ct_function{token: C.uint64_t(cgo.NewHandle(of)), run: (*[0]byte)(C.recomputeRun), release: (*[0]byte)(C.recomputeRelease)}
	h := *out
	status := C.ct_recompute(x.c(), f, in, result, &h)
	*out = h
	return status
}
