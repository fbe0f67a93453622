//go:build !linux && !windows

package arena

import "syscall"

// mapMemory maps new memory, which is zero.
func mapMemory(bytes int) ([]byte, error) {
	return syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

// unmapMemory gives memory of mapMemory back to the system.
func unmapMemory(memory []byte) error { return syscall.Munmap(memory) }

// discard does nothing: the number of mappings has no limit that unmapMemory could meet.
func discard([]byte) {}
