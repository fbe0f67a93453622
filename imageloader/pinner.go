package imageloader

// Pinner page-locks memory for a device that copies from it. Package prefetcher has a Pinner for
// LibTorch's devices. A program with another engine writes its own, with cudaHostRegister for
// example, and hands it to [Loader.Pin].
type Pinner interface {
	// Pin page-locks memory, which is not Go's, begins at a page and stays in its place until Unpin. If
	// it fails, the memory is as before.
	Pin(memory []byte) error
	// Unpin ends a Pin of the same memory. No copy reads the memory any more, and its owner may free it
	// next.
	Unpin(memory []byte)
	// HostWrites is called before the memory of a Pin is written again. A Pinner that looks for copies
	// under way has an error then. Others do nothing.
	HostWrites(memory []byte)
}
