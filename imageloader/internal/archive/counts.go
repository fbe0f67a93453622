package archive

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/internal/panics"
)

// Counts counts the reading of an archive. It is safe for concurrent use.
type Counts struct {
	Read     atomic.Int64                 // nanoseconds in ReadAt and Read of files
	Inflate  atomic.Int64                 // nanoseconds of inflating .tgz files from their beginning, without an index
	Panicked atomic.Pointer[panics.Panic] // the first panic of a file of the program

	mu    sync.Mutex
	notes Notes
}

// Notes are the fields of imageloader.Stats that tell of the reading.
type Notes struct {
	Retries               int
	Truncated, IndexFiles []string
	IndexError            string
}

// Notes returns a copy of the notes so far.
func (c *Counts) Notes() Notes {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.notes
	n.Truncated, n.IndexFiles = slices.Clone(n.Truncated), slices.Clone(n.IndexFiles)
	return n
}

func (c *Counts) note(change func(*Notes)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.notes)
}

// indexFile notes that an index file was read or written.
func (c *Counts) indexFile(path string) {
	c.note(func(n *Notes) {
		if !slices.Contains(n.IndexFiles, path) {
			n.IndexFiles = append(n.IndexFiles, path)
		}
	})
}
