package ct

// #cgo noescape call_op
// #include <stdlib.h>
// #include "cgotorch.h"
//
// // Pointers come as numbers: cgo would look behind them for Go pointers, of which there can be none. That took a
// // twentieth of a small operator's time.
// static inline ct_status* call_op(uintptr_t stream, uint64_t thread, int32_t grad, int32_t autocast, uint64_t site,
//                                  uintptr_t watch, uintptr_t op, const uint64_t* words, int32_t word_count,
//                                  uintptr_t tensors, int32_t tensor_count, uintptr_t results, uint64_t* result_words,
//                                  uintptr_t result_tensors, uintptr_t overflow) {
//   const ct_exec x = {(const ct_stream*)stream, thread, grad, autocast, site, (ct_watch*)watch};
//   return ct_call(x, (const ct_op*)op, words, word_count, (ct_tensor* const*)tensors, tensor_count,
//                  (ct_results*)results, result_words, (ct_tensor**)result_tensors, (ct_overflow**)overflow);
// }
// static inline void free_tensor(uintptr_t t) { ct_tensor_free((ct_tensor*)t); }
// static inline ct_status* external_stream(ct_device d, uintptr_t stream, ct_stream** out) {
//   return ct_stream_external(d, (void*)stream, out);
// }
import "C"

import "unsafe"

// Call runs an operator. Its slices and pointers are of memory that stays where it is: the heap's.
func Call(x *Exec, op *Op, words []uint64, tensors []*Tensor, results *Results, resultWords []uint64, resultTensors []*Tensor, overflow **Overflow) *Status {
	return C.call_op(C.uintptr_t(uintptr(unsafe.Pointer(x.Stream))), C.uint64_t(x.Thread), C.int32_t(x.Grad), C.int32_t(x.Autocast),
		C.uint64_t(x.Site), C.uintptr_t(uintptr(unsafe.Pointer(x.Watch))), C.uintptr_t(uintptr(unsafe.Pointer(op))),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(words))), C.int32_t(len(words)),
		C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(tensors)))), C.int32_t(len(tensors)), C.uintptr_t(uintptr(unsafe.Pointer(results))),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(resultWords))), C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(resultTensors)))),
		C.uintptr_t(uintptr(unsafe.Pointer(overflow))))
}

// OverflowTake is ct_overflow_take.
func OverflowTake(overflow *Overflow, resultWords []uint64, resultTensors []*Tensor) {
	C.ct_overflow_take(overflow, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(resultWords))), unsafe.SliceData(resultTensors))
}

// TensorFree is ct_tensor_free.
func TensorFree(tensor *Tensor) { C.free_tensor(C.uintptr_t(uintptr(unsafe.Pointer(tensor)))) }

// StreamExternal is ct_stream_external.
func StreamExternal(device Device, stream uintptr, out **Stream) *Status {
	h := *out
	status := C.external_stream(*(*C.ct_device)(unsafe.Pointer(&device)), C.uintptr_t(stream), &h)
	*out = h
	return status
}

// OpSchemas is ct_op_schemas.
func OpSchemas(out *string) *Status {
	var text *C.char
	if status := C.ct_op_schemas(&text); status != nil {
		return status
	}
	defer C.ct_text_free(text)
	*out = C.GoString(text)
	return nil
}

// CUDACount is ct_cuda_count.
func CUDACount() (count int32, why string) {
	var text *C.char
	count = int32(C.ct_cuda_count(&text))
	defer C.ct_text_free(text)
	return count, C.GoString(text)
}

// Text returns the text in an array of a struct, up to its first zero.
func Text(chars []byte) string {
	for i, c := range chars {
		if c == 0 {
			return string(chars[:i])
		}
	}
	return string(chars)
}
