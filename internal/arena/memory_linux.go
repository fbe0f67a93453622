package arena

import "syscall"

// mapMemory maps new memory, which is zero.
func mapMemory(bytes int) ([]byte, error) {
	return syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

// unmapMemory gives memory of mapMemory back to the system.
func unmapMemory(memory []byte) error { return syscall.Munmap(memory) }

// discard frees the memory of a mapping that stays. It fails only for memory that is not mapped.
func discard(memory []byte) { _ = syscall.Madvise(memory, syscall.MADV_DONTNEED) }
