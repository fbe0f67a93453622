package cgotorch

import (
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// HostSlab is page-aligned host memory outside the Go heap. Copies to and from a device start
// and end there.
//
// The stream checker knows of copies by itself. HostReads, HostWrites and Await tell it of the
// program's own accesses.
type HostSlab struct {
	mu      sync.Mutex
	h       *ct.Slab
	bytes   []byte
	cleanup runtime.Cleanup
}

// NewHostSlab allocates size bytes, all zero. The caller must Close the slab. NewHostSlab fails
// with [ErrOutOfMemory], and with [ErrInvalidArgument] for a size below 1.
func NewHostSlab(size int) (*HostSlab, error) {
	return newHostSlab("NewHostSlab", size, func(h **ct.Slab) *ct.Status { return ct.SlabNew(int64(size), h) })
}

// MapHostSlab returns the first size bytes of a file as a slab. The file may be closed
// afterwards. The caller must Close the slab.
//
// Bytes of the slab are the file's. A write to them ends the process, and so does a read after
// the file has become shorter.
//
// MapHostSlab fails with [ErrInvalidArgument] for a file with fewer bytes, and with
// [ErrOutOfMemory]. Pin fails with [ErrOutOfMemory] where the device or the file system cannot
// page-lock a file's pages.
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

// HostSlabOver returns a slab of memory that the caller owns and keeps until Close. The content
// stays as it is. The memory must begin at a page and lie outside the Go heap, as that of
// [syscall.Mmap] does. HostSlabOver fails with [ErrInvalidArgument] for other memory, and for
// memory that reaches into another slab.
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

// Bytes returns the memory. It is valid until Close and while the slab is reachable: keep the
// slab as long as the bytes.
func (s *HostSlab) Bytes() []byte { return s.bytes }

// Pin page-locks the memory for every CUDA device. Copies from page-locked memory do not wait.
// Pin does nothing on page-locked memory. It fails with [ErrNoDevice] on a machine without
// CUDA. It fails with [ErrOutOfMemory] and the numbers when the system refuses to lock so much.
func (s *HostSlab) Pin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return &Error{Op: "HostSlab.Pin", Kind: ErrClosed, Message: "the slab is closed"}
	}
	return check("HostSlab.Pin", ct.SlabPin(s.h))
}

// Pinned reports whether the memory is page-locked.
func (s *HostSlab) Pinned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h != nil && ct.SlabPinned(s.h) != 0
}

// HostReads tells the stream checker that the program is about to read the memory. It does
// nothing while the checker is off.
func (s *HostSlab) HostReads() { s.checkHost(0) }

// HostWrites tells the stream checker that the program is about to write the memory. It does
// nothing while the checker is off.
func (s *HostSlab) HostWrites() { s.checkHost(1) }

func (s *HostSlab) checkHost(write int32) {
	if data, size := s.checked(); size > 0 {
		ct.CheckHost(data, size, write, uint64(callSite()))
	}
}

// checked returns the memory if the stream checker is on.
func (s *HostSlab) checked() (data unsafe.Pointer, size int64) {
	if !theChecker.on.Load() {
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return unsafe.Pointer(unsafe.SliceData(s.bytes)), int64(len(s.bytes))
}

// Await waits until e is done. It is for a goroutine that takes the memory back from copies. It
// holds neither a core nor an OS thread; see [Event.Done]. It fails as [Event.Synchronize]
// does.
//
// The stream checker learns that uses of this memory before e are over, and nothing else.
// [Event.Synchronize] says that the program knows all work before e to be done. In a goroutine
// that waits all the time, this would hide missing waits elsewhere.
func (s *HostSlab) Await(e *Event) error {
	const op = "HostSlab.Await"
	done, err := e.poll(op)
	if err != nil {
		return err
	}
	if !theChecker.on.Load() {
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
	}
	h, err := e.lock(op)
	if err != nil {
		return nil // closed meanwhile, and done
	}
	defer e.mu.RUnlock()
	if data, size := s.checked(); size > 0 {
		ct.CheckOver(data, size, h)
	}
	return nil
}

// Close frees the memory. Memory of [HostSlabOver] goes back to its owner, no longer
// page-locked. Copies from and to the slab must be done. Closing twice does nothing.
func (s *HostSlab) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h != nil {
		s.cleanup.Stop()
		ct.SlabFree(s.h) //edge:slab-freed TestHostSlab
		s.h, s.bytes = nil, nil
	}
	return nil
}
