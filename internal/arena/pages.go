package arena

import (
	"sync/atomic"
	"syscall"
)

var pages atomic.Int64 // bytes that MapPages has given out

// MapPages maps `bytes` bytes of new memory, which are zero. The memory begins at a page
// boundary. The caller gives it back with UnmapPages. MapPages fails where the system has no such
// memory.
func MapPages(bytes int) ([]byte, error) {
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		pages.Add(int64(len(memory)))
	}
	return memory, err
}

// UnmapPages gives memory of MapPages back to the system. Nothing may use the memory afterwards.
func UnmapPages(memory []byte) error {
	pages.Add(-int64(len(memory)))
	return syscall.Munmap(memory)
}

// Pages returns the number of bytes that MapPages has given out and UnmapPages has not taken
// back.
func Pages() int { return int(pages.Load()) }
