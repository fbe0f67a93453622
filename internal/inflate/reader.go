package inflate

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Options configures a [Reader].
type Options struct {
	Workers int // chunks that are inflated at a time. 0 means one per core. ReaderMemory returns their memory
}

// ReaderMemory returns the most bytes that a Reader takes outside Go's heap. For photographs, and
// other data that deflate does not make smaller, it takes a quarter of that.
func ReaderMemory(workers int) int {
	// Bytes for an inflated byte, in a segment that is moved while it grows.
	const widest = 2 + 2 + 1 + 1
	segment := widest * (window + usual.most + room)
	chunk := int(usual.chunk) + 2*more + maxAhead + segment
	return (workers + 2) * (chunk + chunk/8)
}

// Reader inflates a gzip file from its beginning to its end, on several cores, and makes an index
// of it. Its bytes are those of compress/gzip: members one after another, zeros behind the last. It
// must be closed. Read and Close are for one goroutine.
//
// Read fails after the last byte that is right. It fails with ErrNotGzip, ErrTruncated, ErrCorrupt,
// ErrChecksum or ErrTrailing, with the cause of the context's end, or with an error of the file's
// ReadAt.
type Reader struct {
	file    io.ReaderAt
	size    int64
	workers int
	buffers buffers
	busy    atomic.Int64 // nanoseconds, reading included
	reading timedFile

	ctx     context.Context
	cancel  context.CancelCauseFunc
	looking context.Context // for the next chunks. Ends before ctx where nothing more is to be found
	enough  context.CancelFunc
	running sync.WaitGroup
	out     chan *segment

	// The fields of Read.
	current    *segment
	head, rest []byte // of current, not read yet
	member     checksum
	members    int // that have ended
	index      Index
	err        error
}

// NewReader starts inflating size bytes of file, which must be safe for concurrent use.
func NewReader(ctx context.Context, file io.ReaderAt, size int64, o Options) *Reader {
	return newReader(ctx, file, size, o, usual)
}

func newReader(ctx context.Context, file io.ReaderAt, size int64, o Options, l limits) *Reader {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	r := &Reader{reading: timedFile{ReaderAt: file}, size: size, workers: o.Workers, out: make(chan *segment), index: Index{fileSize: size}}
	r.file = &r.reading
	r.buffers = buffers{limits: l, memory: arena.New((o.Workers + 2) * usualMemory)}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.looking, r.enough = context.WithCancel(r.ctx)
	chunks := make(chan chan chunk, o.Workers+1)
	r.running.Add(2)
	go r.dispatch(chunks)
	go r.join(chunks)
	return r
}

// Close ends the reading, waits for its goroutines and frees the memory that was inflated ahead.
func (r *Reader) Close() {
	r.cancel(context.Canceled)
	r.enough()
	r.running.Wait()
	if r.err == nil {
		r.err = context.Canceled
	}
	r.current, r.head, r.rest = nil, nil, nil
	r.buffers.memory.Close()
}

// Index returns the index of the file once Read has returned io.EOF. After ErrTruncated it returns
// the index of the part before the cut. Before either it returns nil.
func (r *Reader) Index() *Index {
	if r.err != io.EOF && !errors.Is(r.err, ErrTruncated) {
		return nil
	}
	return &r.index
}

// Members returns the number of gzip members whose bytes have been read to their end.
func (r *Reader) Members() int { return r.members }

// Busy returns the time that inflating has taken so far, of all goroutines together, without the
// time in the file's ReadAt.
func (r *Reader) Busy() time.Duration {
	reading := r.reading.took.Load() // first: it is a part of the other
	return time.Duration(max(r.busy.Load()-reading, 0))
}

// timedFile is a file that counts the time in ReadAt.
type timedFile struct {
	io.ReaderAt
	took atomic.Int64 // nanoseconds
}

// ReadAt implements io.ReaderAt.
func (f *timedFile) ReadAt(p []byte, off int64) (int, error) {
	began := time.Now()
	n, err := f.ReaderAt.ReadAt(p, off)
	f.took.Add(int64(time.Since(began)))
	return n, err
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.head) == 0 {
		r.head, r.rest = r.rest, nil
		if len(r.head) > 0 {
			break
		}
		if r.err != nil {
			return 0, r.err
		}
		if r.err = r.advance(); r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.head)
	r.head = r.head[n:]
	return n, nil
}

// advance goes to the next segment, after the end of the current segment.
func (r *Reader) advance() error {
	if s := r.current; s != nil {
		r.current = nil
		err := r.finish(s)
		s.free()
		if s.read != nil {
			s.read()
		}
		if err != nil {
			return err
		}
	}
	var s *segment
	select {
	case s = <-r.out:
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
	<-s.done
	r.current, r.head, r.rest = s, s.head, s.narrow
	if s.whole {
		r.index.points = append(r.index.points, point{place: s.begin, offset: r.index.size, runs: s.runs, sum: s.sum})
	} else {
		sum := &r.index.points[len(r.index.points)-1].sum
		*sum = sum.then(s.sum)
	}
	r.index.size += int64(s.bytes())
	return nil
}

// finish checks the members that end in a segment whose bytes have been read. It returns the error
// that comes behind the segment.
func (r *Reader) finish(s *segment) error {
	for i, part := range s.parts {
		r.member = r.member.then(part)
		if i == len(s.ends) {
			break
		}
		if want := s.ends[i].trailer; r.member.crc != want.crc || uint32(r.member.bytes) != want.size {
			return ErrChecksum
		}
		r.member = checksum{}
		r.members++
	}
	if s.err != nil {
		return s.err
	}
	if s.end == atEnd {
		return io.EOF
	}
	return nil
}

// chunk is the segments that were inflated from the first block that was found in a chunk of the
// file. They reach up to the first block behind the chunk, or not as far. There are none when no
// block was found.
type chunk struct {
	segments []*segment
	release  func() // called when the segments have been read, or are not wanted
}

// dispatch starts the chunks in order, a limited number at a time.
func (r *Reader) dispatch(out chan<- chan chunk) {
	defer r.running.Done()
	defer close(out)
	tokens := make(chan struct{}, r.workers+1)
	for begin := int64(0); begin < max(r.size, 1); begin += r.buffers.chunk {
		select {
		case tokens <- struct{}{}:
		case <-r.looking.Done():
			return
		}
		one := make(chan chunk, 1)
		r.running.Add(1)
		go func() {
			defer r.running.Done()
			began := time.Now()
			segments := r.search(begin)
			r.busy.Add(int64(time.Since(began)))
			one <- chunk{segments, func() { <-tokens }}
		}()
		select {
		case out <- one:
		case <-r.looking.Done():
			return
		}
	}
}

const (
	usualMemory  = 8 << 20 // bytes for a chunk of photographs, in all
	maxAttempts  = 32
	maxWasted    = 8 << 20  // inflated bytes
	maxAhead     = 16 << 20 // bytes of memory for a chunk, inflated. The rest is left to join
	storedHeader = 3        // bits
)

// search inflates from the first block that begins in a chunk.
func (r *Reader) search(begin int64) (segments []*segment) {
	stop := uint64(begin+r.buffers.chunk) * 8
	lead := max(begin-1, 0) // a stored block's header may lie before its length
	in := input{file: r.file, size: r.size, begin: lead, bytes: r.buffers.take(int(r.buffers.chunk) + 2*more)[:0]}
	memory := in.bytes
	defer func() {
		free := func() { r.buffers.memory.Give(memory) }
		if n := len(segments); n > 0 && segments[n-1].open != nil {
			segments[n-1].open.closed = free // it will read on
		} else {
			free()
		}
	}()
	if in.grow(r.buffers.chunk+more, lead) != nil {
		return nil // join will see the cause
	}
	if begin == 0 {
		return r.ahead(in, place{member: true}, stop)
	}
	wasted := 0
	from := uint64(begin) * 8
	for range maxAttempts {
		at, stored, ok := in.find(from, stop)
		if !ok || r.looking.Err() != nil || wasted > maxWasted {
			return nil
		}
		from = at.bit + 1
		var header byte
		if stored {
			header = in.at(int64(at.bit/8) - 1)[0]
			at.bit -= storedHeader
		}
		segments = r.ahead(in, at, stop)
		if segments[len(segments)-1].err == nil {
			segments[0].stored, segments[0].lead = stored, header
			return segments
		}
		for _, s := range segments {
			wasted += s.bytes()
			s.free()
		}
		segments = nil
	}
	return nil
}

// ahead returns the segments from a place on.
func (r *Reader) ahead(in input, from place, stop uint64) (segments []*segment) {
	in.bytes = in.bytes[:len(in.bytes):len(in.bytes)] // it grows in memory of its own
	bytes := 0
	r.inflate(in, from, stop, func(s *segment) bool {
		segments = append(segments, s)
		bytes += s.footprint()
		return bytes < maxAhead && r.looking.Err() == nil
	})
	return segments
}

// inflate hands over the segments from a place to the first block at stop or behind it. It ends
// early after a segment that has an error or is open, or when take says so.
func (r *Reader) inflate(in input, from place, stop uint64, take func(*segment) bool) {
	s, err := newStream(in, from)
	if err != nil {
		take(&segment{begin: from, whole: true, buffers: &r.buffers, end: atBoundary, next: from, err: err})
		return
	}
	for {
		seg := s.segment(&r.buffers, from, stop)
		if seg.open != nil {
			take(seg)
			return
		}
		if !take(seg) || seg.err != nil || seg.end == atEnd || seg.next.bit >= stop {
			s.close()
			return
		}
		from = seg.next
	}
}
