package data

// Pinner page-locks the memory of batches for a device that copies from it. Package prefetcher has
// the Pinner for LibTorch's devices.
type Pinner interface {
	// Pin page-locks memory. The memory begins at a page and is not of Go's heap.
	Pin(memory []byte) error
	// Unpin ends the Pin of the same memory. No copy reads the memory then.
	Unpin(memory []byte)
	// HostWrites is called before the host writes again to memory that is pinned.
	HostWrites(memory []byte)
}
