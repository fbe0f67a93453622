package cgotorch

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// HostSlab is page-aligned host memory outside the Go heap. It is the host side of copies to and
// from a device.
//
// The stream checker sees these copies by itself. A program tells the checker of its own
// accesses, with Touch and Await.
type HostSlab struct {
	mu      sync.Mutex
	h       *ct.Slab
	bytes   []byte
	cleanup runtime.Cleanup
}

// NewHostSlab allocates `size` bytes for copies to and from a device, all zero. For a CUDA device
// they are page-locked, as by [HostSlab.Pin]. The caller must close the slab. NewHostSlab fails
// with [ErrOutOfMemory] if there is not enough memory, and with [ErrInvalidArgument] for a size
// below 1. It also fails as Pin does.
func NewHostSlab(d Device, size int) (*HostSlab, error) {
	s, err := newHostSlab("NewHostSlab", size, func(h **ct.Slab) *ct.Status { return ct.SlabNew(int64(size), h) })
	if err != nil || !d.IsCUDA() {
		return s, err
	}
	if err := s.Pin(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// MapHostSlab returns the first `size` bytes of a file as a slab. The file may be closed after
// the call. The caller must close the slab.
//
// The memory of the slab is the content of the file. A write to this memory ends the process. A
// read ends the process if the file has become too short.
//
// MapHostSlab fails with [ErrInvalidArgument] if the file has fewer than `size` bytes, and with
// [ErrClosed] if the file is closed. It fails with [ErrOutOfMemory] if the system cannot map the
// file. [HostSlab.Pin] fails with [ErrOutOfMemory] if the device or the file system cannot
// page-lock the pages of a file.
func MapHostSlab(file *os.File, size int) (*HostSlab, error) {
	const op = "MapHostSlab"
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Err: err}
	}
	var s *HostSlab
	closed := raw.Control(func(fd uintptr) {
		s, err = newHostSlab(op, size, func(h **ct.Slab) *ct.Status { return ct.SlabMap(int32(fd), int64(size), h) })
	})
	if closed != nil {
		return nil, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Err: closed}
	}
	return s, err
}

// HostSlabOver returns a slab of memory that the caller owns. The caller must keep the memory
// until Close. The content of the memory stays as it is. The memory must begin at a page boundary
// and lie outside the Go heap, like memory of [syscall.Mmap]. HostSlabOver fails with
// [ErrInvalidArgument] for memory that does not begin at a page boundary, and for memory that
// overlaps another slab.
func HostSlabOver(memory []byte) (*HostSlab, error) {
	data := unsafe.Pointer(unsafe.SliceData(memory))
	return newHostSlab("HostSlabOver", len(memory), func(h **ct.Slab) *ct.Status { return ct.SlabOver(data, int64(len(memory)), h) })
}

func newHostSlab(op string, size int, make func(h **ct.Slab) *ct.Status) (*HostSlab, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	s := &HostSlab{}
	if err := check(op, make(&s.h)); err != nil {
		return nil, err
	}
	s.bytes = unsafe.Slice((*byte)(ct.SlabData(s.h)), size)
	s.cleanup = runtime.AddCleanup(s, freeSlab, s.h)
	return s, nil
}

func freeSlab(h *ct.Slab) { ct.SlabFree(h) }

// Bytes returns the memory. The memory is valid until Close, and only while the slab is
// reachable. So keep the slab as long as the bytes. A read of the bytes after Close may end the
// process.
func (s *HostSlab) Bytes() []byte { return s.bytes }

// View returns the memory of a slab as elements of another type, in the machine's byte order.
// Bytes at its end that make no whole element are left out. Memory that is read as bool must hold
// 0 or 1 in each byte. The memory is valid as that of [HostSlab.Bytes] is.
func View[T Element](s *HostSlab) []T {
	b := s.Bytes()
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// Mapped returns a tensor on x's device whose elements lie in the slab, from the byte `offset` on.
// It enqueues nothing. A CUDA device reads and writes the elements over the bus, some 50 GB/s on
// PCI Express 5, and no copy is made. The slab must then be page-locked: see [HostSlab.Pin].
//
// The Do owns the tensor, and [Exec.Keep] keeps it. The memory is freed when the slab and all
// tensors over it are closed. Close the last of them when the work that uses it is done. Memory
// that was given to [HostSlabOver] must live as long. The program reads or writes the memory itself
// only while no work of a stream does the opposite: see [HostSlab.Touch].
//
// Mapped fails with [ErrInvalidArgument] for a quantized dtype, for a slab of a file, for one that
// is not page-locked, for an offset inside an element, and for a tensor that does not lie in the
// slab. It fails with [ErrClosed] after Close.
func (s *HostSlab) Mapped(x *Exec, offset int, dtype DType, shape ...int64) *Tensor {
	const op = "HostSlab.Mapped"
	x.check(op)
	if s == nil {
		x.s.fail(&Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the slab is nil"})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		x.s.fail(&Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the slab is closed"})
	}
	var h *ct.Tensor
	x.must(op, ct.SlabTensor(x.c, s.h, int64(offset), int32(dtype), unsafe.SliceData(shape), int32(len(shape)), &h))
	return x.s.own(h)
}

// Pin page-locks the memory for every CUDA device. Copies from page-locked memory do not wait. A
// second Pin does nothing. Pin fails with [ErrNoDevice] on a machine without CUDA. It fails with
// [ErrOutOfMemory] if the system refuses to lock the memory. This error has the size, the amount
// that is already locked, and the limit.
func (s *HostSlab) Pin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return &Error{Op: "HostSlab.Pin", Kind: ErrClosed, Message: "the slab is closed"}
	}
	return check("HostSlab.Pin", ct.SlabPin(s.h))
}

// Touch tells the stream checker that the program is about to read the memory, or to write it. It
// does nothing while the checker is off.
func (s *HostSlab) Touch(write bool) {
	if data, size := s.checked(); size > 0 {
		ct.CheckHost(data, size, cbool(write), uint64(callSite()))
	}
}

// checked returns the memory if the stream checker is on. Otherwise it returns the size 0.
func (s *HostSlab) checked() (data unsafe.Pointer, size int64) {
	if !checking() {
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return unsafe.Pointer(unsafe.SliceData(s.bytes)), int64(len(s.bytes))
}

// Await waits until e is done. It is for a goroutine that uses the memory again after copies.
// While it waits, it uses no CPU time and no OS thread: see [Event.Done]. Await fails in the same
// cases as [Event.Synchronize].
//
// From Await the stream checker learns only that uses of this memory before e are done. From
// [Event.Synchronize] the checker learns that all work before e is done. In a goroutine that
// waits again and again, Synchronize would therefore hide missing waits elsewhere.
func (s *HostSlab) Await(e *Event) error {
	const op = "HostSlab.Await"
	done, err := e.ask(op, ct.EventDone)
	if err != nil {
		return err
	}
	if !checking() {
		if done {
			return nil
		}
		return e.synchronize(op)
	}
	if !done {
		awaited, err := e.doneUnchecked(op)
		if err != nil {
			return err
		}
		<-awaited
		if _, err := e.ask(op, ct.EventDone); err != nil && !errors.Is(err, ErrClosed) {
			return err // the channel closes too when the device is lost
		}
	}
	h, err := e.lock(op)
	if err != nil {
		return nil // the event is done, and was closed meanwhile
	}
	defer e.mu.RUnlock()
	if data, size := s.checked(); size > 0 {
		ct.CheckOver(data, size, h)
	}
	return nil
}

// Close frees the memory, or if tensors of [HostSlab.Mapped] are left, the last of them does.
// Memory that was given to [HostSlabOver] is not freed: it is unlocked and stays with its owner.
// Copies from and to the slab must be done before Close. A second Close does nothing.
func (s *HostSlab) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h != nil {
		s.cleanup.Stop()
		ct.SlabFree(s.h) //edge:slab-freed TestHostSlab
		s.h, s.bytes = nil, nil
	}
	return nil
}
