package arena

import (
	"sync/atomic"
	"syscall"
)

var pages atomic.Int64 // bytes

// MapPages returns fresh memory of whole pages, zero at first. It begins at a page. The caller
// gives it back with UnmapPages. It fails where the system has no such memory.
func MapPages(bytes int) ([]byte, error) {
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		pages.Add(int64(len(memory)))
	}
	return memory, err
}

// UnmapPages gives the memory of MapPages back to the system. Nothing may use it any more.
func UnmapPages(memory []byte) error {
	pages.Add(-int64(len(memory)))
	return syscall.Munmap(memory)
}

// Pages returns the bytes that MapPages has given out and nobody has given back.
func Pages() int { return int(pages.Load()) }
