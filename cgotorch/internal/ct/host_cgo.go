//go:build cgo && linux && (amd64 || arm64)

package ct

// #include "ct_gen.h"
//
// // Host memory as uint8_t*: cgo would look for Go pointers in the whole object behind a void*, and refuse elements
// // that lie in a struct beside a string.
// static inline ct_status* from_host(ct_exec x, const uint8_t* data, int64_t bytes, int32_t dtype, const int64_t* shape,
//                                    int32_t dims, ct_tensor** out) {
//   return ct_tensor_from_host(x, data, bytes, dtype, shape, dims, out);
// }
// static inline ct_status* to_host(ct_exec x, const ct_tensor* t, uint8_t* data, int64_t bytes) {
//   return ct_tensor_to_host(x, t, data, bytes);
// }
// static inline ct_status* copy_to(ct_exec x, const ct_tensor* t, uint8_t* data, int64_t bytes) {
//   return ct_tensor_copy_to(x, t, data, bytes);
// }
// static inline ct_status* copy_from(ct_exec x, const ct_tensor* t, const uint8_t* data, int64_t bytes) {
//   return ct_tensor_copy_from(x, t, data, bytes);
// }
// // Pointers come as numbers, so that cgo does not look for Go pointers behind them.
// static inline ct_status* copies_from(ct_exec x, const uintptr_t* behind, int32_t events, const uintptr_t* copies,
//                                      int32_t count, ct_event** began, ct_event** done) {
//   return ct_copies_from(x, (const ct_event* const*)behind, events, (const ct_host_copy*)copies, count, began, done);
// }
import "C"

import "unsafe"

func (x *Exec) c() C.ct_exec { return *(*C.ct_exec)(unsafe.Pointer(x)) }

// TensorFromHost is ct_tensor_from_host.
func TensorFromHost(x Exec, data unsafe.Pointer, bytes int64, dtype int32, shape []int64, out **Tensor) *Status {
	h := *out
	status := C.from_host(x.c(), (*C.uint8_t)(data), C.int64_t(bytes), C.int32_t(dtype),
		(*C.int64_t)(unsafe.Pointer(unsafe.SliceData(shape))), C.int32_t(len(shape)), &h)
	*out = h
	return status
}

// TensorToHost is ct_tensor_to_host.
func TensorToHost(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status {
	return C.to_host(x.c(), tensor, (*C.uint8_t)(data), C.int64_t(bytes))
}

// TensorCopyFrom is ct_tensor_copy_from.
func TensorCopyFrom(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status {
	return C.copy_from(x.c(), tensor, (*C.uint8_t)(data), C.int64_t(bytes))
}

// TensorCopyTo is ct_tensor_copy_to.
func TensorCopyTo(x Exec, tensor *Tensor, data unsafe.Pointer, bytes int64) *Status {
	return C.copy_to(x.c(), tensor, (*C.uint8_t)(data), C.int64_t(bytes))
}

var _ [unsafe.Sizeof(HostCopy{})]byte = [unsafe.Sizeof(C.ct_host_copy{})]byte{}

// CopiesFrom is ct_copies_from. `behind` holds the pointers of the events, as numbers.
func CopiesFrom(x Exec, behind []uintptr, copies []HostCopy, began, done **Event) *Status {
	first, last := *began, *done
	status := C.copies_from(x.c(), (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(behind))), C.int32_t(len(behind)),
		(*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(copies))), C.int32_t(len(copies)), &first, &last)
	*began, *done = first, last
	return status
}
