//go:build bench

// Package handwritten is the peer in the rows whose names begin with op/. It wraps one operator
// by hand with cgo, as fast as a wrapper can be. It has no streams, modes, scopes or error texts.
// bench/build.sh sets the cgo flags.
package handwritten

// #cgo noescape hw_add
// #cgo nocallback hw_add
// #cgo noescape hw_free
// #cgo nocallback hw_free
// #include "add.h"
import "C"

import "errors"

// Tensor is a handle. The caller must call Free.
type Tensor struct{ h *C.hw_tensor }

var errFailed = errors.New("handwritten: LibTorch threw an exception")

// Full returns a float32 tensor of `count` elements that all equal `value`. The tensor is on the
// CPU, or on CUDA device 0 if `cuda` is true.
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

// AddTimes calls at::add `count` times in C++.
func AddTimes(a, b *Tensor, count int) error {
	if C.hw_add_times(a.h, b.h, C.int64_t(count)) == 0 {
		return errFailed
	}
	return nil
}
