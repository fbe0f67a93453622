//go:build cgo && linux && (amd64 || arm64)

package ct

// #cgo noescape call_op
// #include <stdlib.h>
// #include "ct_gen.h"
//
// // Operands in Go: a slice is a pointer, a length and a capacity.
// typedef struct {
//   uint64_t* words; int64_t word_count, word_room;
//   ct_tensor** tensors; int64_t tensor_count, tensor_room;
//   ct_results results;
//   uint64_t* result_words; int64_t result_word_count, result_word_room;
//   ct_tensor** result_tensors; int64_t result_tensor_count, result_tensor_room;
//   ct_overflow* overflow;
// } operands;
//
// // Pointers come as numbers: cgo would look behind them for Go pointers, of which there can be
// // none. That took a twentieth of a small operator's time. The exec is copied, since Go's stacks move.
// static inline ct_status* call_op(uintptr_t exec, uintptr_t op, uintptr_t call) {
//   operands* o = (operands*)call;
//   return ct_call(*(const ct_exec*)exec, (const ct_op*)op, o->words, (int32_t)o->word_count, o->tensors,
//                  (int32_t)o->tensor_count, &o->results, o->result_words, o->result_tensors, &o->overflow);
// }
// static inline void free_tensor(uintptr_t t) { ct_tensor_free((ct_tensor*)t); }
// static inline ct_status* external_stream(ct_device d, uintptr_t stream, ct_stream** out) {
//   return ct_stream_external(d, (void*)stream, out);
// }
import "C"

import "unsafe"

// This compiles only if Operands has the layout of the struct operands in the C code above.
var (
	_ [unsafe.Sizeof(Operands{})]byte                 = [unsafe.Sizeof(C.operands{})]byte{}
	_ [unsafe.Offsetof(Operands{}.Results)]byte       = [unsafe.Offsetof(C.operands{}.results)]byte{}
	_ [unsafe.Offsetof(Operands{}.ResultTensors)]byte = [unsafe.Offsetof(C.operands{}.result_tensors)]byte{}
	_ [unsafe.Offsetof(Operands{}.Overflow)]byte      = [unsafe.Offsetof(C.operands{}.overflow)]byte{}
)

// Call is ct_call.
func Call(x *Exec, op *Op, o *Operands) *Status {
	return C.call_op(C.uintptr_t(uintptr(unsafe.Pointer(x))), C.uintptr_t(uintptr(unsafe.Pointer(op))), C.uintptr_t(uintptr(unsafe.Pointer(o))))
}

// OverflowTake is ct_overflow_take.
func OverflowTake(overflow *Overflow, resultWords []uint64, resultTensors []*Tensor) {
	C.ct_overflow_take(overflow, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(resultWords))), unsafe.SliceData(resultTensors))
}

// TensorFree is ct_tensor_free.
func TensorFree(tensor *Tensor) { C.free_tensor(C.uintptr_t(uintptr(unsafe.Pointer(tensor)))) }

// StreamExternal is ct_stream_external.
func StreamExternal(device Device, stream uintptr, out **Stream) *Status {
	if Ready() != nil {
		return unready
	}
	h := *out
	status := C.external_stream(*(*C.ct_device)(unsafe.Pointer(&device)), C.uintptr_t(stream), &h)
	*out = h
	return status
}

// OpSchema is ct_op_schema.
func OpSchema(op *Op, out *string) *Status {
	var text *C.char
	if status := C.ct_op_schema(op, &text); status != nil {
		return status
	}
	defer C.ct_text_free(text)
	*out = C.GoString(text)
	return nil
}

// OpSchemas is ct_op_schemas.
func OpSchemas(out *string) *Status {
	if Ready() != nil {
		return unready
	}
	var text *C.char
	if status := C.ct_op_schemas(&text); status != nil {
		return status
	}
	defer C.ct_text_free(text)
	*out = C.GoString(text)
	return nil
}

// StoreGet is ct_store_get. `found` is false if the store has no such key.
func StoreGet(store *Store, key string) (value string, found bool, status *Status) {
	name := C.CString(key)
	defer C.free(unsafe.Pointer(name))
	var text *C.char
	if status = C.ct_store_get(store, name, &text); status != nil || text == nil {
		return "", false, status
	}
	defer C.ct_text_free(text)
	return C.GoString(text), true, nil
}

// CUDACount is ct_cuda_count.
func CUDACount() (count int32, why string) {
	if err := Ready(); err != nil {
		return 0, err.Error()
	}
	var text *C.char
	count = int32(C.ct_cuda_count(&text))
	defer C.ct_text_free(text)
	return count, C.GoString(text)
}
