package arena

import "sync/atomic"

var pages atomic.Int64 // bytes that MapPages has given out

// MapPages maps `bytes` bytes of new memory, which are zero. The memory begins at a page
// boundary. The caller gives it back with UnmapPages. MapPages fails where the system has no such
// memory.
func MapPages(bytes int) ([]byte, error) {
	memory, err := mapMemory(bytes)
	if err == nil {
		pages.Add(int64(len(memory)))
	}
	return memory, err
}

// UnmapPages gives memory of MapPages back to the system. Nothing may use the memory afterwards.
func UnmapPages(memory []byte) error {
	pages.Add(-int64(len(memory)))
	return unmapMemory(memory)
}

// Pages returns the number of bytes that MapPages has given out and UnmapPages has not taken
// back.
func Pages() int { return int(pages.Load()) }
