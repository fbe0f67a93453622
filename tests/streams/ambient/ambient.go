//go:build cgo && linux

// Package ambient reads and sets state that LibTorch and CUDA keep per thread or per process: the
// current stream and the sync-debug mode. The library must not depend on this state, and tests
// check that. Some tests have a control, which does what the library must not do. The controls
// use this package for that.
package ambient

// #define _GNU_SOURCE
// #include <dlfcn.h>
// #include <stddef.h>
// #include <stdint.h>
//
// // LibTorch's functions are looked up by their mangled names, so that these lines compile without its headers. c10::Stream and
// // c10::cuda::CUDAStream, which is one, are of this layout and go in registers.
// typedef struct { int8_t device_type, device_index; int64_t id; } c10_stream;
//
// static void* find(const char* name) { return dlsym(RTLD_DEFAULT, name); }
//
// typedef c10_stream (*get_stream)(int8_t);
// typedef void* (*native_stream)(const c10_stream*);
//
// // The current stream of the thread as a cudaStream_t; -1 where LibTorch's CUDA half is not there.
// static intptr_t current_stream(int8_t device) {
//   static _Atomic(get_stream) found;  // asked after each operator: the loader's lock would be in everybody's way
//   static _Atomic(native_stream) found_native;
//   if (found == NULL) found = (get_stream)find("_ZN3c104cuda20getCurrentCUDAStreamEa");
//   if (found_native == NULL) found_native = (native_stream)find("_ZNK3c104cuda10CUDAStream6streamEv");
//   const get_stream current = found;
//   const native_stream native = found_native;
//   if (current == NULL || native == NULL) return -1;
//   const c10_stream stream = current(device);
//   return (intptr_t)native(&stream);
// }
//
// static int set_current_stream(uintptr_t native, int8_t device) {
//   c10_stream (*wrap)(void*, int8_t) =
//       (c10_stream (*)(void*, int8_t))find("_ZN3c104cuda21getStreamFromExternalEP11CUstream_sta");
//   void (*set)(c10_stream) = (void (*)(c10_stream))find("_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE");
//   if (wrap == NULL || set == NULL) return -1;
//   set(wrap((void*)native, device));
//   return 0;
// }
//
// static int fill(uintptr_t data, size_t bytes, int8_t device) {
//   int (*enqueue)(void*, int, size_t, void*) = (int (*)(void*, int, size_t, void*))find("cudaMemsetAsync");
//   const intptr_t stream = current_stream(device);
//   if (enqueue == NULL || stream == -1) return -1;
//   return enqueue((void*)data, 0, bytes, (void*)stream);
// }
//
// static int alloc(uintptr_t* data, size_t bytes) {
//   int (*allocate)(void**, size_t) = (int (*)(void**, size_t))find("cudaMalloc");
//   return allocate == NULL ? -1 : allocate((void**)data, bytes);
// }
//
// static int release(uintptr_t data) {
//   int (*free_memory)(void*) = (int (*)(void*))find("cudaFree");
//   return free_memory == NULL ? -1 : free_memory((void*)data);
// }
//
// // c10::cuda::WarningState, which holds one int: 0 off, 1 warn, 2 error.
// static int set_sync_debug_mode(int mode) {
//   int* state = (int*)find("_ZZN3c104cuda13warning_stateEvE14warning_state_");
//   if (state == NULL) return -1;
//   const int before = *state;
//   *state = mode;
//   return before;
// }
//
// // In CUDA's global mode.
// static int begin_capture(uintptr_t stream) {
//   int (*begin)(void*, int) = (int (*)(void*, int))find("cudaStreamBeginCapture");
//   return begin == NULL ? -1 : begin((void*)stream, 0);
// }
//
// static int end_capture(uintptr_t stream) {
//   int (*end)(void*, void**) = (int (*)(void*, void**))find("cudaStreamEndCapture");
//   int (*destroy)(void*) = (int (*)(void*))find("cudaGraphDestroy");
//   int (*last_error)(void) = (int (*)(void))find("cudaGetLastError");
//   if (end == NULL || destroy == NULL) return -1;
//   void* graph = NULL;
//   const int code = end((void*)stream, &graph);
//   if (graph != NULL) destroy(graph);
//   (void)last_error();
//   return code;
// }
//
// static int new_stream(uintptr_t* stream) {
//   int (*create)(void**, unsigned) = (int (*)(void**, unsigned))find("cudaStreamCreateWithFlags");
//   return create == NULL ? -1 : create((void**)stream, 1);  // cudaStreamNonBlocking
// }
//
// static int query_stream(uintptr_t stream) {
//   int (*query)(void*) = (int (*)(void*))find("cudaStreamQuery");
//   return query == NULL ? -1 : query((void*)stream);
// }
import "C"

import (
	"errors"
	"fmt"
)

var errAbsent = errors.New("ambient: LibTorch's CUDA half has not been opened, or is of another version")

// Current returns the current stream of the calling thread, as a cudaStream_t. 0 is the default
// stream.
func Current(device int) (uintptr, error) {
	s := C.current_stream(C.int8_t(device))
	if s == -1 {
		return 0, errAbsent
	}
	return uintptr(s), nil
}

// SetCurrent makes `stream` the current stream of the calling thread. At the goroutine's next call,
// Go may run the goroutine on another thread.
func SetCurrent(device int, stream uintptr) error {
	if C.set_current_stream(C.uintptr_t(stream), C.int8_t(device)) != 0 {
		return errAbsent
	}
	return nil
}

// Memory is device memory that LibTorch does not know of.
type Memory struct {
	data  C.uintptr_t
	bytes int
}

// Allocate allocates memory on device 0. It waits for the device. The caller frees the memory
// with Free.
func Allocate(bytes int) (*Memory, error) {
	m := &Memory{bytes: bytes}
	if code := C.alloc(&m.data, C.size_t(bytes)); code != 0 {
		return nil, fmt.Errorf("ambient: cudaMalloc: %d", code)
	}
	return m, nil
}

// Fill enqueues a fill of the memory with zeros, on the current stream of the calling thread.
func (m *Memory) Fill() error {
	if code := C.fill(m.data, C.size_t(m.bytes), 0); code != 0 {
		return fmt.Errorf("ambient: cudaMemsetAsync: %d", code)
	}
	return nil
}

// Free frees the memory. It waits for the device.
func (m *Memory) Free() { C.release(m.data) }

// SyncDebug sets LibTorch's sync-debug mode for the process. Mode 0 is off. With mode 1 each wait
// gives a warning, and with mode 2 an error. SyncDebug returns a function that restores the old
// mode.
func SyncDebug(mode int) (restore func(), err error) {
	before := C.set_sync_debug_mode(C.int(mode))
	if before == -1 {
		return nil, errAbsent
	}
	return func() { C.set_sync_debug_mode(before) }, nil
}

// NewStream makes a cudaStream_t on the device of the calling thread, as another library does. It
// is never destroyed.
func NewStream() (uintptr, error) {
	var s C.uintptr_t
	if code := C.new_stream(&s); code != 0 {
		return 0, fmt.Errorf("ambient: cudaStreamCreateWithFlags: %d", code)
	}
	return uintptr(s), nil
}

// Capture begins a capture of the stream in CUDA's global mode. It calls the function `during`,
// ends the capture and drops the graph. The goroutine must be locked to its thread.
func Capture(stream uintptr, during func()) error {
	if code := C.begin_capture(C.uintptr_t(stream)); code != 0 {
		return fmt.Errorf("ambient: cudaStreamBeginCapture: %d", code)
	}
	during()
	if code := C.end_capture(C.uintptr_t(stream)); code != 0 {
		return fmt.Errorf("ambient: cudaStreamEndCapture: %d", code)
	}
	return nil
}

// Query asks CUDA whether the stream's work is done. This call breaks captures of other threads.
func Query(stream uintptr) { C.query_stream(C.uintptr_t(stream)) }
