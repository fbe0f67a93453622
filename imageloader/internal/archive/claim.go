package archive

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/internal/filelock"
)

// Note [One index a host]
//
// The ranks of a host open the same .tgz at the same time. One of them goes through it and stores
// the index. It uses as many goroutines as all ranks. The others wait, and load the index. So the
// index is made once a host. After that each rank inflates only the blocks of its part. If the
// archive is several shards, each rank makes the indices of some of them.
//
// The ranks do not stream through the .tgz in their first epoch, as one rank does. Before somebody
// has gone through the .tgz, no rank knows where its part begins and how many images it has.
//
// A rank that makes an index holds a lock of the operating system on a file beside the
// index. The lock ends with its process. A rank makes its own index if there is no lock, if it has
// waited and the index is not there, or if the other rank takes too long because it is stopped. The
// holder removes the file. A rank that comes later makes a new one. In the worst case two ranks
// then make the same index.

const lockExtension = ".lock"

// claim is a loader's attempt to be the one of its host that makes the index of a shard.
type claim struct {
	lock   *os.File // nil if another loader has the lock, or if there is none
	waited bool     // another loader had the lock
}

// free gives the lock back, if the claim has it.
func (c *claim) free() {
	if c.lock != nil {
		os.Remove(c.lock.Name())
		c.lock.Close()
		c.lock = nil
	}
}

// claim takes the lock of a shard whose index is to be made. While another loader has the lock,
// claim waits, but no longer than `most` and no longer than ctx. The caller frees the claim.
func (s *Shard) claim(ctx context.Context, most time.Duration) (c claim) {
	const pause = 10 * time.Millisecond
	lock := s.openLock()
	if lock == nil {
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		held, err := filelock.Try(lock)
		if err == nil && !held {
			c.lock = lock
			return c
		}
		c.waited = c.waited || held
		if err != nil || ctx.Err() != nil {
			lock.Close()
			return c
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// makeTables makes the tables of those shards that have none, and stores them as index files. It
// leaves out a shard of which another rank of this host makes the index. Each rank begins with
// another shard. makeTables ends at a shard that cannot be read. The caller reads that shard again
// and gets the error.
func (a *Archive) makeTables(ctx context.Context, tables []*table) {
	missing := 0
	for i, s := range a.Shards {
		if tables[i] == nil && s.format == gzipTar {
			missing++
		}
	}
	for i := range a.Shards {
		i = (i + a.options.Rank*len(a.Shards)/a.options.Ranks) % len(a.Shards)
		if tables[i] == nil && a.Shards[i].format == gzipTar {
			t, ok := a.Shards[i].tryTable(ctx, missing)
			if !ok {
				return
			}
			tables[i] = t
		}
	}
}

// tryTable makes the table of a .tgz and stores it. If another rank of this host does that, it
// returns nil. `missing` is the number of shards without a table. `ok` is false if the .tgz cannot
// be read.
func (s *Shard) tryTable(ctx context.Context, missing int) (t *table, ok bool) {
	c := s.claim(ctx, 0)
	defer c.free()
	if c.lock == nil {
		return nil, true
	}
	if t := s.loadTable(); t != nil { // another rank has just made it
		return t, true
	}
	p, err := s.pass(ctx, reading{workers: s.sharedWorkers(missing)})
	if err != nil {
		return nil, false
	}
	defer p.Close()
	for err == nil {
		_, err = p.Next()
	}
	if err != io.EOF || p.keep(false) != nil {
		return nil, false
	}
	return &p.table, true
}

// sharedWorkers returns the number of goroutines that inflate a .tgz. The ranks of a host make the
// indices of n shards together.
func (o *Options) sharedWorkers(n int) int {
	return max(o.Workers, min(runtime.GOMAXPROCS(0), o.Workers*o.Ranks)/n)
}

// openLock opens the file that is locked while the shard's index is made. The result is nil if no
// index file can be written.
func (s *Shard) openLock() *os.File {
	for i, path := range s.indexPaths() {
		if s.makesFolder(i) && os.MkdirAll(filepath.Dir(path), 0o755) != nil {
			continue
		}
		if f, err := filelock.Open(path+lockExtension, os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK, 0o666); err == nil {
			return f
		}
	}
	return nil
}

// makesFolder reports whether the folder of a path of indexPaths may be missing.
func (s *Shard) makesFolder(i int) bool { return i > 0 || s.IndexDir != "" || !s.beside }

// longestClaim returns how long another loader may take to make the index.
func (s *Shard) longestClaim() time.Duration {
	const least, slowest = 30 * time.Second, 50 << 20 // bytes a second of a slow disk
	return least + time.Duration(float64(s.info.Size())/slowest*float64(time.Second))
}
