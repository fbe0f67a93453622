package imageloader

import (
	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/inflate"
)

// Memory is the most bytes that a loader takes at a time, by purpose. It does not count the
// tables of the archive, which take some 200 bytes and the name for each member. It does not
// count the memory that every Go program takes.
type Memory struct {
	Batches int // the buffers of the batches, which Pin page-locks
	// Compressed is for images that are read and not decoded yet. The sizes of a directory's files
	// are not known before they are read. So for a directory, add the size of 16 files for each
	// thread.
	Compressed int
	Inflate    int // for inflating a .tgz. A .tgz of photographs takes about a quarter of it
	Decode     int // see decode.Pool.MaxMemory. Photographs take some 2 MiB a thread
}

// Memory returns an upper bound of the loader's memory from now on. The bound falls after the
// first epoch of a .tgz that Open did not read. It does not change at any other time. While Open
// reads a .tgz, it takes up to 35 MiB more for each worker, and as much for six more. With
// Options.Ranks, one rank reads for all, and has the workers of all, as far as there are cores.
func (l *Loader) Memory() Memory {
	m := Memory{Batches: l.options.Buffers * l.ring.layout.stride, Decode: l.pool.MaxMemory()}
	x := l.index.Load()
	if x.Held != nil {
		for _, data := range x.Held {
			m.Compressed += archive.Footprint(len(data))
		}
		return m
	}
	compressed := max(l.options.Reading.ShuffleBuffer, l.archive.Largest(x))
	if !x.IsWhole() || l.streamsFirst {
		compressed += l.options.aside()
	}
	m.Compressed = compressed + compressed/8 // an arena may make a piece up to an eighth larger
	if l.archive.Packed() {
		m.Inflate = inflate.FileMemory(l.pool.Workers() + 1)
	}
	if !x.IsWhole() || l.streamsFirst {
		m.Inflate += inflate.ReaderMemory(l.pool.Workers())
	}
	return m
}
