package imageloader

// Pinner page-locks memory for a device that copies from it. Package prefetcher has a Pinner for
// LibTorch's devices. A program that does not use LibTorch writes its own Pinner, for example
// with cudaHostRegister. The program gives it to [Loader.Pin].
type Pinner interface {
	// Pin page-locks memory. The memory begins at a page and is not of Go's heap. It does not move
	// until Unpin. If Pin fails, the memory is as before.
	Pin(memory []byte) error
	// Unpin ends the Pin of the same memory. When Unpin is called, no copy reads the memory. After
	// Unpin has returned, the owner of the memory may free it.
	Unpin(memory []byte)
	// HostWrites is called before the host writes again to memory that is pinned. A Pinner with a
	// race checker notes the write. A Pinner without a race checker does nothing.
	HostWrites(memory []byte)
}
