//go:build bench

// Package handwritten is the peer of the rows op/…: one operator wrapped by hand with cgo, as fast
// as a wrapper can be. It has no streams, modes, scopes or error texts. bench/build.sh sets its
// flags.
package handwritten

// #cgo noescape hw_add
// #cgo nocallback hw_add
// #cgo noescape hw_free
// #cgo nocallback hw_free
// #include "add.h"
import "C"

import "errors"

// Tensor is a handle. The caller frees it.
type Tensor struct{ h *C.hw_tensor }

var errFailed = errors.New("handwritten: LibTorch threw an exception")

// Full returns a float32 tensor of count equal numbers on the CPU or on CUDA device 0.
func Full(count int, value float64, cuda bool) (*Tensor, error) {
	var where C.int32_t
	if cuda {
		where = 1
	}
	h := C.hw_full(C.int64_t(count), C.double(value), where)
	if h == nil {
		return nil, errFailed
	}
	return &Tensor{h}, nil
}

// Add returns a + b.
func Add(a, b *Tensor) (*Tensor, error) {
	h := C.hw_add(a.h, b.h)
	if h == nil {
		return nil, errFailed
	}
	return &Tensor{h}, nil
}

// Free frees the tensor.
func (t *Tensor) Free() {
	C.hw_free(t.h)
	t.h = nil
}

// AddTimes calls at::add count times in C++.
func AddTimes(a, b *Tensor, count int) error {
	if C.hw_add_times(a.h, b.h, C.int64_t(count)) == 0 {
		return errFailed
	}
	return nil
}

// GuardTimes calls the core count times in C++, with a call that sets and restores LibTorch's state
// and does nothing between. The stream is a stream of its own, which has to be set, or the default
// stream.
func GuardTimes(cuda, ownStream bool, count int) error {
	number := func(b bool) C.int32_t {
		if b {
			return 1
		}
		return 0
	}
	if C.hw_guard_times(number(cuda), number(ownStream), C.int64_t(count)) == 0 {
		return errFailed
	}
	return nil
}
