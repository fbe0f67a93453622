package imageloader

// Pinner page-locks memory for a device that copies from it. Package prefetcher has a Pinner for
// LibTorch's devices. A program with another engine writes its own, with cudaHostRegister for
// example, and hands it to [Loader.Pin].
type Pinner interface {
	// Pin page-locks memory that begins at a page and is not of Go's heap. The memory stays in its
	// place until Unpin. If Pin fails, the memory is as before.
	Pin(memory []byte) error
	// Unpin ends a Pin of the same memory. No copy reads the memory any more. Its owner may free it
	// when Unpin returns.
	Unpin(memory []byte)
	// HostWrites is called before the host writes the memory of a Pin again. A Pinner with a race
	// checker notes the write. Other Pinners do nothing.
	HostWrites(memory []byte)
}
