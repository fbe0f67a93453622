package imageloader

import "github.com/streamtorch/streamtorch/internal/inflate"

// Memory is the most bytes that a loader takes at a time, by purpose. The tables of the archive
// come on top: some 200 bytes and the name for each member. So does the memory of every Go program.
type Memory struct {
	Batches int // the buffers of the batches, which Pin page-locks
	// Compressed is for images that are read and not decoded yet. A directory does not tell sizes
	// before: there 16 files a thread come on top.
	Compressed int
	Inflate    int // while a .tgz is inflated. For photographs it is about a quarter of that
	Decode     int // see decode.Pool.MaxMemory. For photographs it is some 2 MiB a thread
}

// Total returns the sum.
func (m Memory) Total() int { return m.Batches + m.Compressed + m.Inflate + m.Decode }

// Memory returns a bound of the loader's memory from now on. It falls after the first epoch of a
// .tgz that Open did not read, and does not change otherwise. Open itself takes
// inflate.ReaderMemory more while it reads a .tgz.
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
	m.Compressed = compressed + compressed/8 // an arena may add so much
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

// largest returns the most bytes that are read at once, whatever the shuffle buffer is.
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
