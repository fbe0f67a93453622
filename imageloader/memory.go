package imageloader

import "github.com/streamtorch/streamtorch/internal/inflate"

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

// Total returns the sum of all four fields.
func (m Memory) Total() int { return m.Batches + m.Compressed + m.Inflate + m.Decode }

// Memory returns an upper bound of the loader's memory from now on. The bound falls after the
// first epoch of a .tgz that Open did not read. It does not change at any other time. While Open
// reads a .tgz, it takes up to 35 MiB more for each worker, and as much for six more. With
// Options.Ranks, one rank reads for all, and has the workers of all, as far as there are cores.
func (l *Loader) Memory() Memory {
	m := Memory{Batches: l.options.Buffers * l.ring.layout.stride, Decode: l.pool.MaxMemory()}
	x := l.index.Load()
	if x.held != nil {
		for _, data := range x.held {
			m.Compressed += footprint(len(data))
		}
		return m
	}
	compressed := max(l.options.ShuffleBuffer, x.largest(l.options))
	if !x.isWhole() || l.streamsFirst {
		compressed += l.options.aside()
	}
	m.Compressed = compressed + compressed/8 // an arena may make a piece up to an eighth larger
	for _, s := range l.archive.shards {
		if s.format == gzipTar {
			m.Inflate = inflate.FileMemory(l.pool.Workers() + 1)
		}
	}
	if !x.isWhole() || l.streamsFirst {
		m.Inflate += inflate.ReaderMemory(l.pool.Workers())
	}
	return m
}

// largest returns the most bytes that the loader reads at once. They can be more than the shuffle
// buffer.
func (x *index) largest(o Options) (most int) {
	if !x.isWhole() {
		return max(o.MaxMemberBytes, blockMost)
	}
	for _, b := range x.blocks {
		most = max(most, b.bytes())
	}
	if x.blocks != nil {
		return most
	}
	for i := range x.samples {
		if x.bad[i] == nil {
			most = max(most, int(x.samples[i].size))
		}
	}
	return blockSamples * most
}
