package inflate

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Options configures a [Reader].
type Options struct {
	Workers int // number of chunks that are inflated at a time. 0 means one per core. See ReaderMemory
}

// ReaderMemory returns the most bytes that a Reader with `workers` workers takes outside Go's
// heap. For photographs, and other data that deflate does not make smaller, a Reader takes a
// quarter of these bytes.
func ReaderMemory(workers int) int {
	// While a segment is copied to larger memory, each inflated byte takes this many bytes of memory.
	const widest = 2 + 2 + 1 + 1
	segment := widest * (window + usual.most + room)
	chunk := int(usual.chunk) + 2*more + maxAhead + segment
	most := (workers+2)*chunk + settling*segment
	return most + most/8
}

// settling is the number of segments that may wait for Read. They are settled meanwhile, each on a
// goroutine of its own. Without them Read would wait for each segment to be settled.
const settling = 8

// Reader inflates a gzip file from its beginning to its end, on several cores, and makes an index
// of the file. It gives the same bytes as compress/gzip. The file may have several members one
// after another, and zeros after the last member. A Reader must be closed. Only one goroutine may
// call Read, Skip and Close.
//
// Read returns all bytes before a fault and then fails. A fault of the file is ErrNotGzip,
// ErrTruncated, ErrCorrupt, ErrChecksum or ErrTrailing. When the context ends, Read fails with
// the context's cause. When the file's ReadAt fails, Read fails with that error.
type Reader struct {
	file    io.ReaderAt
	size    int64
	workers int
	buffers buffers
	busy    atomic.Int64 // nanoseconds of all goroutines, with their time in ReadAt
	reading timedFile

	ctx     context.Context
	cancel  context.CancelCauseFunc
	looking context.Context // for starting and inflating chunks. It ends before ctx when no more chunks are wanted
	enough  context.CancelFunc
	running sync.WaitGroup
	out     chan *segment

	// The goroutine of Read uses the fields below.
	current    *segment
	head, rest []byte // the bytes of current that are not read yet
	member     checksum
	members    int // number of members that have ended
	index      Index
	err        error
}

// NewReader starts to inflate `file`, which has `size` bytes. It does not wait. `file` must be
// safe for concurrent use.
func NewReader(ctx context.Context, file io.ReaderAt, size int64, o Options) *Reader {
	return newReader(ctx, file, size, o, usual)
}

func newReader(ctx context.Context, file io.ReaderAt, size int64, o Options, l limits) *Reader {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	r := &Reader{reading: timedFile{ReaderAt: file}, size: size, workers: o.Workers, out: make(chan *segment, settling), index: Index{fileSize: size}}
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

// Close ends the reading and waits for the Reader's goroutines. It frees the inflated bytes that
// were not read.
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

// Index returns the index of the file after Read has returned io.EOF. After ErrTruncated it
// returns the index of the part before the cut. In all other cases it returns nil.
func (r *Reader) Index() *Index {
	if r.err != io.EOF && !errors.Is(r.err, ErrTruncated) {
		return nil
	}
	return &r.index
}

// Members returns the number of gzip members that have been read to their end.
func (r *Reader) Members() int { return r.members }

// Busy returns the time that all goroutines together have spent on inflating so far, without the
// time in the file's ReadAt.
func (r *Reader) Busy() time.Duration {
	reading := r.reading.took.Load() // loaded first, because r.busy includes this time
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
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(p, r.head)
	r.head = r.head[n:]
	return n, nil
}

// Skip passes over the next n bytes, as reading them would, but copies nothing. It returns how many
// bytes it passed over. If these are fewer than n, it also returns the error of the next Read.
func (r *Reader) Skip(n int64) (skipped int64, err error) {
	for skipped < n {
		if err := r.fill(); err != nil {
			return skipped, err
		}
		some := min(n-skipped, int64(len(r.head)))
		r.head = r.head[some:]
		skipped += some
	}
	return skipped, nil
}

// fill waits until there are bytes to read.
func (r *Reader) fill() error {
	for len(r.head) == 0 {
		r.head, r.rest = r.rest, nil
		if len(r.head) > 0 {
			break
		}
		if r.err != nil {
			return r.err
		}
		if r.err = r.advance(); r.err != nil {
			return r.err
		}
	}
	return nil
}

// advance checks and frees the current segment, and waits for the next segment.
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

// finish checks the members that end in s, after all bytes of s have been read. It returns the
// error that follows s, or nil.
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

// chunk holds the segments of one chunk of the file. The first segment begins at the first block
// that was found in the chunk. The last segment ends at the first block after the chunk, or
// earlier. If no block was found, there are no segments.
type chunk struct {
	segments []*segment
	release  func() // called when the segments have been read, or will not be read
}

// dispatch starts one goroutine for each chunk, in order and a limited number at a time.
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
		out <- one // has room for all tokens
	}
}

const (
	usualMemory  = 8 << 20 // bytes of memory that a chunk of photographs takes
	maxAttempts  = 32
	maxWasted    = 8 << 20  // the function `search` gives up after it inflated this many bytes from wrong places
	maxAhead     = 16 << 20 // most bytes of memory for a chunk's segments. The function `join` inflates the rest
	storedHeader = 3        // bits of a stored block's header
)

// search inflates from the first block that begins in a chunk. `begin` is the offset of the chunk
// in the file. search returns the segments, or nil when it finds no block.
func (r *Reader) search(begin int64) (segments []*segment) {
	stop := uint64(begin+r.buffers.chunk) * 8
	lead := max(begin-2, 0) // segment.lead may have these bytes
	in := input{file: r.file, size: r.size, begin: lead, bytes: r.buffers.take(int(r.buffers.chunk) + 2*more)[:0]}
	memory := in.bytes
	defer func() {
		free := func() { r.buffers.memory.Give(memory) }
		if n := len(segments); n > 0 && segments[n-1].open != nil {
			segments[n-1].open.closed = free // the open stream still reads this memory
		} else {
			free()
		}
	}()
	if in.grow(r.buffers.chunk+more, lead) != nil {
		return nil // the function `join` reads here again and gets the error
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
		var header uint16
		if stored {
			if int64(at.bit/8) < lead+2 { // no header fits before it
				continue
			}
			header = binary.LittleEndian.Uint16(in.at(int64(at.bit/8) - 2))
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

// ahead inflates from the place `from` and returns the segments. It ends at bit number `stop`, or
// when the segments take maxAhead bytes.
func (r *Reader) ahead(in input, from place, stop uint64) (segments []*segment) {
	in.bytes, in.borrowed = slices.Clip(in.bytes), true
	bytes := 0
	r.inflate(in, from, stop, func(s *segment) bool {
		segments = append(segments, s)
		bytes += s.footprint()
		return bytes < maxAhead && r.looking.Err() == nil
	})
	return segments
}

// inflate begins at the place `from`. It ends at the first block that begins at bit number `stop`
// or later. It calls the function `take` with each segment. It ends early when `take` returns
// false, or after a segment that has an error or is open.
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
