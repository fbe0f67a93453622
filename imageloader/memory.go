package imageloader

import (
	"math/bits"
	"sync"
)

// memoryPool keeps the memory of compressed images for the next ones: without it a fast loader makes half a gigabyte of
// garbage a second. Sizes are rounded up to one of four steps between powers of two.
type memoryPool struct {
	sizes [4 * 64]sync.Pool
}

// take returns memory of that many bytes, with any content.
func (m *memoryPool) take(bytes int) []byte {
	class, size := sizeClass(bytes)
	if kept, ok := m.sizes[class].Get().(*[]byte); ok {
		return (*kept)[:bytes]
	}
	return make([]byte, bytes, size)
}

// give takes memory back.
func (m *memoryPool) give(data []byte) {
	if cap(data) > 0 {
		class, _ := sizeClass(cap(data))
		m.sizes[class].Put(&data)
	}
}

// sizeClass returns the number and the size of the smallest class that holds bytes.
func sizeClass(bytes int) (class, size int) {
	n := uint(max(bytes, 1024) - 1)
	shift := bits.Len(n) - 3 // n is 1xx in units of 1 << shift
	quarter := int(n>>shift) - 3
	return 4*shift + quarter - 1, (quarter + 4) << shift
}
