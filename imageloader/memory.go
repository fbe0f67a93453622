package imageloader

import "github.com/streamtorch/streamtorch/internal/inflate"

// Memory is the most bytes that a loader takes at a time, by what for. The tables of the archive come on top, some 200 bytes and the name
// for each member, and what is in every Go program.
type Memory struct {
	Batches    int // the buffers of the batches, which Pin page-locks
	Compressed int // images that are read and not decoded yet; in a directory, which does not tell sizes before, 16 files a thread more
	Inflate    int // while a .tgz is inflated; for photographs it is about a quarter of that
	Decode     int // see decode.Pool.MaxMemory; for photographs it is some 2 MiB a thread
}

// Total returns the sum.
func (m Memory) Total() int { return m.Batches + m.Compressed + m.Inflate + m.Decode }

// Memory returns what the loader may take from now on. Open itself takes inflate.ReaderMemory more while it reads a .tgz. It does not
// change but after the first epoch of a .tgz that Open did not
// read, behind which less is needed.
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
	m.Compressed = compressed + compressed/8 // which an arena may add
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
