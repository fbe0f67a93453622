package inflate

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// File is the content of a gzip file, to be read anywhere. It is safe for concurrent use.
type File struct {
	file   io.ReaderAt
	index  *Index
	input  sync.Pool
	memory sync.Pool
	busy   atomic.Int64 // nanoseconds
}

// NewFile returns the content of a gzip file of which the index was made. file must be safe for concurrent use.
func NewFile(file io.ReaderAt, index *Index) *File { return &File{file: file, index: index} }

// Size returns the number of bytes of the content.
func (f *File) Size() int64 { return f.index.size }

// ReadAt implements io.ReaderAt. It inflates from the beginning of the segment that off lies in.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("inflate: File.ReadAt: negative offset")
	}
	if off >= f.index.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.index.size-off))
	var buffer []byte
	content, err := f.Inflate(off, off+int64(n), func(bytes int) []byte {
		buffer = takeBytes(&f.memory, bytes)
		return buffer[:bytes]
	})
	copied := copy(p, content)
	give(&f.memory, buffer)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return copied, err
}

// Inflate returns the content from one offset up to another, which must not be behind the end. The result lies in memory from
// take, which is asked once, for so many bytes: those of the segment before `from` and some for the work are among them.
// It fails with [ErrIndex] when the file is not the one that the index was made of, and with what the file's ReadAt reports.
func (f *File) Inflate(from, to int64, take func(bytes int) []byte) ([]byte, error) {
	x := f.index
	if from < 0 || from > to || to > x.size {
		return nil, fmt.Errorf("inflate: bytes %d to %d of a content of %d", from, to, x.size)
	}
	i := x.SegmentAt(from)
	begin := x.points[i].offset
	memory := take(window + int(to-begin) + 2*room)
	o := output{narrow: memory, at: window}
	for ; from < to && x.points[i].offset < to; i++ {
		if err := f.segment(i, to, &o); err != nil {
			return nil, err
		}
		if i+1 == len(x.points) {
			break
		}
	}
	return memory[window+int(from-begin):][:to-from], nil
}

// segment adds the content of one segment, as far as it lies before `to`.
func (f *File) segment(i int, to int64, o *output) error {
	x, p := f.index, &f.index.points[i]
	stale := func(err error) error {
		return fmt.Errorf("%w: the segment of %d bytes at %d does not inflate as it did (%w)", ErrIndex, x.end(i)-p.offset, p.offset, err)
	}
	end, stop := x.fileSize, uint64(noStop)
	if i+1 < len(x.points) {
		stop = x.points[i+1].bit
		end = min(int64(stop/8)+1+more/64, end)
	}
	in := input{file: f.file, size: x.fileSize, begin: int64(p.bit / 8)}
	in.bytes = takeBytes(&f.input, int(end-in.begin))[:0]
	buffer := in.bytes
	defer func() { give(&f.input, buffer) }()
	if err := in.grow(end-in.begin, in.begin); err != nil {
		return err
	}
	began := time.Now()
	defer func() { f.busy.Add(int64(time.Since(began))) }()
	s, err := newStream(in, p.place)
	if err != nil {
		return stale(err)
	}
	defer s.close()
	before := o.narrow[o.at-window : o.at]
	if i == 0 || o.at == window { // else they are what was inflated just now
		fill(before, p.runs)
	}
	at := o.at
	part := output{narrow: o.narrow[:min(len(o.narrow), at+int(x.end(i)-p.offset)+2*room)], at: at}
	wanted := at + int(min(x.end(i), to)-p.offset)
	for part.at < wanted {
		why, err := s.run(&part, stop, len(part.narrow))
		if err != nil && (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) || errors.Is(err, ErrNotGzip)) {
			return stale(err)
		}
		if err != nil {
			return err
		}
		if part.at < wanted {
			return stale(fmt.Errorf("it ends %d bytes early, %d", wanted-part.at, why))
		}
	}
	o.at = wanted
	if x.end(i) <= to {
		if sum := checksumOf(o.narrow[at:wanted]); sum != p.sum {
			return stale(ErrChecksum)
		}
	}
	return nil
}

// Busy returns the time that inflating has taken so far, of all goroutines together, without that in the file's ReadAt.
func (f *File) Busy() time.Duration { return time.Duration(f.busy.Load()) }

// Index returns the index of the file.
func (f *File) Index() *Index { return f.index }
