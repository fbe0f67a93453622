package imageloader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// Loader reads epochs of batches from an archive. Its methods are safe for concurrent use. Only
// one epoch can be read at a time.
type Loader struct {
	options Options
	archive *archive.Archive
	index   atomic.Pointer[archive.Index]
	pool    *decode.Pool
	ring    *buffers
	memory  *arena.Arena // for compressed images, and for inflating
	reading archive.Counts
	stats   statistics
	sound   numbers      // decode.Result.Sound, by sample
	length  atomic.Int64 // number of samples per epoch, of all ranks, 0 when not known yet

	// If streamsFirst is true, a shuffled epoch 0 that one rank begins streams through the
	// archive, even if there is an index. So the index does not change the order of epoch 0. See
	// Note [Orders].
	streamsFirst bool

	mu      sync.Mutex
	next    State           // the start of the next epoch
	place   State           // after the last batch that a loop got
	pinned  bool            // a Pinner has the batches' memory
	beyond  bool            // place is perhaps beyond the last batch of a prefetcher's loop
	current *epoch          // the epoch being read
	ahead   *epoch          // the next epoch, which is read ahead of its use, or nil
	running map[*epoch]bool // all epochs that were started and not stopped
	closed  bool

	tellLinks sync.Once
	closing   sync.Once
	closeErr  error
}

// Open reads the archive's table of members and allocates the memory of the batches. `path` is a
// .tgz, .tar.gz or .tar file, or a directory. The content of a file decides its format, not its
// name. A pattern stands for several files that are read as one archive: "train-{000..127}.tar",
// "train-*.tgz".
//
// Open reads a .tgz completely if it fits into Options.Reading.ShuffleBuffer. For a larger .tgz,
// Open may need the names of the classes. If no index file has these names, Open reads through the
// .tgz. This takes about one second per GB on one core. If the Open of another loader of this host
// reads through the same .tgz, Open waits for its index file. With Options.Train the loader then
// begins to read the first epoch. The loader must be closed.
func Open(path string, options Options) (*Loader, error) { return openFrom(archive.OS, path, options) }

// OpenFS is [Open] of a path, or a pattern, in a file system such as an object store. The files
// must have ReadAt, be safe for concurrent use, and not change. Their index files lie in
// Options.Index.Dir or in the user's cache folder.
func OpenFS(fsys fs.FS, path string, options Options) (*Loader, error) {
	if fsys == nil {
		return nil, fmt.Errorf("imageloader: OpenFS: fsys is nil; give a file system, such as os.DirFS(folder): %w", ErrInvalidOptions)
	}
	return openFrom(archive.OfFS(fsys), path, options)
}

// OpenReaderAt is [Open] of one .tgz or .tar, which r reads. The archive has `size` bytes. r must
// be safe for concurrent use. Messages and the index file use `name`.
func OpenReaderAt(r io.ReaderAt, size int64, name string, options Options) (*Loader, error) {
	if r == nil {
		return nil, fmt.Errorf("imageloader: OpenReaderAt: the reader of %s is nil; look at the error of the function that opened it: %w", name, ErrInvalidOptions)
	}
	if size < 0 {
		return nil, fmt.Errorf("imageloader: OpenReaderAt: the size of %s is %d; give its number of bytes, which an HTTP answer of unknown length does not have: %w", name, size, ErrInvalidOptions)
	}
	return openFrom(archive.OfReaderAt(r, size, name), name, options)
}

func openFrom(from archive.Files, path string, options Options) (*Loader, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	start := State{Seed: o.Seed}
	l := &Loader{options: o, next: start, place: start, memory: arena.New(o.Reading.ShuffleBuffer + o.aside()), running: map[*epoch]bool{}}
	err = l.open(from, path)
	if p := l.reading.Panicked.Load(); p != nil { // also where the loader does without the read
		l.Close()
		panic(p)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	if o.Train {
		l.ahead = l.start(l.startOf(l.next))
	}
	return l, nil
}

func (l *Loader) open(from archive.Files, path string) error {
	o := l.options
	var err error
	if l.pool, err = decode.NewPool(o.poolOptions()); err != nil {
		if errors.Is(err, decode.ErrInvalidArgument) {
			return fmt.Errorf("imageloader: Options: %w: %w", err, ErrInvalidOptions)
		}
		return fmt.Errorf("imageloader: %w", err)
	}
	if l.archive, err = archive.Open(from, path, l.archiveOptions()); err != nil {
		return err
	}
	now := o.Ranks.World > 1 || o.Limit > 0
	l.streamsFirst = l.archive.ClassesGiven() && !l.archive.Small && o.Limit == 0
	index, err := l.archive.Index(context.Background(), now)
	if err != nil {
		return err
	}
	l.adopt(index)
	batch := o.BatchSize
	if len(index.Samples) > 0 {
		if err := l.tooManyKnown(index); err != nil {
			return err
		}
		if l.Len() == 0 && !o.Ranks.EachOnce {
			return l.fail(fmt.Sprintf("%d images for %d ranks; take fewer ranks, or DropRest away", len(index.Samples), o.Ranks.World), ErrNoImages)
		}
		if o.DropLast && batch > l.Len() {
			return fmt.Errorf("imageloader: Options.DropLast leaves nothing of %s: BatchSize is %d, and an epoch has %d images: %w", l.archive.Path, batch, l.Len(), ErrInvalidOptions)
		}
		batch = max(min(batch, l.Len()), 1)
	}
	height, width, channels := l.pool.Size()
	l.ring, err = newBuffers(o.Buffers, batch, height*width*channels)
	return err
}

// tooManyKnown fails if too many images are unusable because of their names and sizes alone.
func (l *Loader) tooManyKnown(x *archive.Index) error {
	var bad []*Error
	for i := 0; i < len(x.Samples) && len(bad) < maxExamples; i++ {
		if known := x.Bad[i]; known != nil {
			bad = append(bad, known)
		}
	}
	return l.tooMany(bad, 0, len(x.Bad), len(x.Samples), false)
}

// adopt makes x the loader's index. Epochs that begin later use x.
func (l *Loader) adopt(x *archive.Index) {
	l.index.Store(x)
	l.length.Store(int64(len(x.Samples)))
	l.stats.update(func(s *Stats) { s.Ignored = x.Ignored })
	if n := x.Links(); n > 0 {
		l.tellLinks.Do(func() {
			slog.Warn("imageloader: links are passed over, also those to images: put the files in their place, as cp -rL does", "archive", l.archive.Path, "links", n)
		})
	}
}

// Epoch returns the batches of one epoch. Each call is for the next epoch. The first epoch is 0,
// or the epoch of Restore. While Options.Buffers batches are unreleased, the loop waits for a
// release, for ctx, or for Close. The last user of a batch must release it.
//
// A loop that is left early stops the reading. The rest of its epoch is lost, unless Restore goes
// back to it. With Options.Train, the loader reads the next epoch after the last batch, while
// there are free buffers.
//
// The sequence can be used once. It ends with its first error:
//   - the cause of ctx
//   - ErrClosed after Close
//   - ErrBusy while another epoch is being read
//   - ErrArchive or ErrBadMember
//   - ErrUnknownClass or ErrNoImages in the first epoch of an archive that Open did not read
//   - ErrInvalidState in the first epoch after a Restore that did not know the number of images
//   - decode.ErrOutOfMemory or decode.ErrInternal for an image that may be good
//   - an error of no kind if all buffers belong to batches that were dropped without Release
//
// If a function of the program, such as ReadAt of a file of OpenFS, panics on a goroutine of the
// loader, the loop raises the panic again. The text of the new panic has the stack of the first.
func (l *Loader) Epoch(ctx context.Context) iter.Seq2[*HostBatch, error] {
	var used atomic.Bool
	return func(yield func(*HostBatch, error) bool) {
		if used.Swap(true) {
			yield(nil, l.fail("this sequence of batches was used already; call Epoch for each epoch", ErrBusy))
			return
		}
		e, err := l.begin(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer l.end(e)
		l.stats.start()
		defer l.stats.stop()
		for {
			batch, err := e.next(ctx)
			if p := l.reading.Panicked.Load(); p != nil && err != nil {
				panic(p)
			}
			if err == io.EOF {
				e.whole = true
				return
			}
			if err != nil {
				panics.Raise(err)
				yield(nil, err)
				return
			}
			l.reach(batch.State)
			if !yield(batch, nil) {
				return
			}
		}
	}
}

// Classes returns the names of the classes. Labels are indices into these names. If a second
// loader reads test images from a second archive, it should get these names as its
// Options.Labels.Classes. With Options.Labels.Only, these are the selected classes. The second
// loader then gets them as its Options.Labels.Only too. In a WebDataset with numbers in its .cls,
// a number is an index into Options.Labels.Classes, so the second loader gets the Classes and
// Only of the first.
func (l *Loader) Classes() []string { return l.archive.Classes() }

// Len returns the number of images in an epoch of this rank. Without Options.Ranks.EachOnce all
// ranks have equally many, so a sum over all ranks is divided by Len() times Ranks.World. Images
// that turn out to be unusable are counted too. Len returns 0 while the number is not known. This
// can be so for a .tgz that is larger than Options.Reading.ShuffleBuffer, has given classes and
// has no index file. The first epoch then finds the number. With EachOnce, 0 can also mean that
// this rank has no images.
func (l *Loader) Len() int {
	return l.options.division().images(int(l.length.Load()), l.options.Ranks.Rank)
}

// Batches returns the number of batches in an epoch if all images are usable. It returns 0 while
// the number is not known. With Options.Ranks.EachOnce it is different for different ranks.
func (l *Loader) Batches() int {
	whole, rest := l.Len()/l.options.BatchSize, l.Len()%l.options.BatchSize
	if rest > 0 && !l.options.DropLast {
		return whole + 1
	}
	return whole
}

// Shape returns the shape of the largest batch: uint8 [n, height, width, channels].
func (l *Loader) Shape() (n, height, width, channels int) {
	height, width, channels = l.pool.Size()
	return l.ring.layout.batch, height, width, channels
}

// Pin makes p page-lock the memory of all batches, each buffer separately. A device can then copy
// from the memory while the host goes on. Package prefetcher calls Pin by itself. No batch may be
// in use when Pin is called.
//
// p keeps the memory until another Pinner takes over. Without another Pinner, p keeps the memory
// until the loader is closed and the last batch is released. Pin fails with ErrBusy while an
// epoch is being read, and with ErrClosed after Close. When p fails, Pin returns p's error, and
// no Pinner has the memory.
func (l *Loader) Pin(p Pinner) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.errClosed()
	}
	if l.current != nil {
		return l.fail("an epoch is being read; call Pin before Epoch", ErrBusy)
	}
	if err := l.ring.Pin(p); err != nil {
		return fmt.Errorf("imageloader: %w", err)
	}
	l.pinned = p != nil
	return nil
}

// Stats returns the loader's counts since Open.
func (l *Loader) Stats() Stats {
	s, notes := l.stats.snapshot(), l.reading.Notes()
	s.Retries, s.Truncated, s.IndexFiles, s.IndexError = notes.Retries, notes.Truncated, notes.IndexFiles, notes.IndexError
	s.Read, s.Inflate = time.Duration(l.reading.Read.Load()), time.Duration(l.reading.Inflate.Load())+l.archive.Inflating()
	s.Decode, s.Workers, s.Buffers = max(l.pool.Busy(), s.Decode), l.pool.Workers(), l.options.Buffers
	return s
}

// Close ends an epoch that is being read, waits for the decode threads and frees everything. The
// epoch's loop gets ErrClosed. If some batches are not released yet, the memory of the batches is
// freed with the last Release. Close may be called at any time, from any goroutine, and twice.
func (l *Loader) Close() error {
	if l == nil {
		return nil
	}
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Loader) close() error {
	l.mu.Lock()
	l.closed = true
	running := slices.Collect(maps.Keys(l.running))
	l.mu.Unlock()
	for _, e := range running {
		e.stop(l.errClosed())
	}
	var errs []error
	if l.pool != nil {
		l.stats.update(func(s *Stats) { s.Decode = l.pool.Busy() }) // stored now, because a closed pool reports 0
		errs = append(errs, l.pool.Close())
	}
	if l.archive != nil {
		errs = append(errs, l.archive.Close())
	}
	if l.ring != nil {
		errs = append(errs, l.ring.Close())
	}
	l.memory.Close()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("imageloader: closing: %w", err)
		}
	}
	return nil
}

func (l *Loader) errClosed() error {
	return l.fail("the loader is closed; close it after its last epoch", ErrClosed)
}

func (l *Loader) fail(reason string, kind error) error {
	return &Error{Path: l.archive.Path, Reason: reason, Kind: kind}
}
