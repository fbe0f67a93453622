package imageloader

import (
	"fmt"
	"log/slog"
	"runtime"
	"time"
)

// The assembler looks for dropped batches when it has waited this long for a buffer. After each
// look it waits twice as long.
const shortestPatience, longestPatience = time.Second / 2, 16 * time.Second

// lookForDropped is called when the consumer has long waited for a buffer. It fails if all buffers
// belong to batches that nobody can release any more. Only the garbage collector knows this.
func (e *epoch) lookForDropped() error {
	e.patience = min(2*e.patience, longestPatience)
	if len(e.full) > 0 {
		return nil // the consumer has batches to take, so it is only slow
	}
	runtime.GC()
	if e.loader.ring.AllLost() {
		return fmt.Errorf("imageloader: %s: all %d buffers belong to batches that were dropped without Release: call Release on each batch", e.loader.archive.Path, e.loader.options.Buffers)
	}
	if e.patience == longestPatience && !e.told {
		e.told = true
		slog.Warn("imageloader: the loader waits for a free buffer, because the program holds all its batches: call Release on each batch", "buffers", e.loader.options.Buffers)
	}
	return nil
}
