package cgotorch

// #include "cgotorch.h"
import "C"

import (
	"os"
	"runtime"
	"sync"
	"unsafe"
)

// HostSlab is page-aligned host memory outside the Go heap, where copies to and from a device start and end.
type HostSlab struct {
	mu      sync.Mutex
	h       *C.ct_slab
	bytes   []byte
	cleanup runtime.Cleanup
}

// NewHostSlab allocates size bytes, all zero. It fails with [ErrOutOfMemory], and with [ErrInvalidArgument] for a size
// below 1. The caller must Close it.
func NewHostSlab(size int) (*HostSlab, error) {
	return newHostSlab("NewHostSlab", size, func(h **C.ct_slab) *C.ct_status { return C.ct_slab_new(C.int64_t(size), h) })
}

// MapHostSlab is the first size bytes of a file, which may be closed afterwards, as a slab. Its Bytes are the file's and must not be written:
// that ends the process; and so does a read after the file has become shorter. Where the device or the file system cannot page-lock a file's
// pages Pin fails with [ErrOutOfMemory]. It fails with [ErrInvalidArgument] for a file that has fewer bytes, and with [ErrOutOfMemory].
func MapHostSlab(file *os.File, size int) (*HostSlab, error) {
	const op = "MapHostSlab"
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, &Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Err: err}
	}
	var s *HostSlab
	closed := raw.Control(func(fd uintptr) {
		s, err = newHostSlab(op, size, func(h **C.ct_slab) *C.ct_status { return C.ct_slab_map(C.int32_t(fd), C.int64_t(size), h) })
	})
	if closed != nil {
		return nil, &Error{Op: op, Code: CodeClosed, Caller: caller(), Err: closed}
	}
	return s, err
}

func newHostSlab(op string, size int, make func(h **C.ct_slab) *C.ct_status) (*HostSlab, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	s := &HostSlab{}
	if err := check(op, make(&s.h)); err != nil {
		return nil, err
	}
	s.bytes = unsafe.Slice((*byte)(C.ct_slab_data(s.h)), size)
	s.cleanup = runtime.AddCleanup(s, freeSlab, s.h)
	return s, nil
}

func freeSlab(h *C.ct_slab) { C.ct_slab_free(h) }

// Bytes is the memory, valid until Close and while the slab is reachable: keep the slab beside what is made of its memory.
func (s *HostSlab) Bytes() []byte { return s.bytes }

// Pin page-locks the memory for every CUDA device, so that copies from it do not wait. It does nothing on a slab that is
// pinned already. It fails with [ErrNoDevice] on a machine without CUDA, and with [ErrOutOfMemory] and the numbers when the
// system refuses to lock so much.
func (s *HostSlab) Pin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return &Error{Op: "HostSlab.Pin", Code: CodeClosed, Message: "the slab is closed"}
	}
	return check("HostSlab.Pin", C.ct_slab_pin(s.h))
}

// Pinned reports whether the memory is page-locked.
func (s *HostSlab) Pinned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h != nil && C.ct_slab_pinned(s.h) != 0
}

// Close frees the memory. Copies from and to it must be done. Closing twice does nothing.
func (s *HostSlab) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h != nil {
		s.cleanup.Stop()
		C.ct_slab_free(s.h) //edge:slab-freed TestHostSlab
		s.h, s.bytes = nil, nil
	}
	return nil
}
