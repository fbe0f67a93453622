package inflate

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// File gives the content of a gzip file, from any offset. It is safe for concurrent use.
type File struct {
	file   io.ReaderAt
	index  *Index
	memory *arena.Arena
	busy   atomic.Int64 // nanoseconds of inflating
}

// NewFile returns a File for the gzip file that `file` reads. `index` must be an index of that
// gzip file. `file` must be safe for concurrent use. The arena `memory` gives buffers for
// inflating. If `memory` is nil, the buffers lie in Go's heap.
func NewFile(file io.ReaderAt, index *Index, memory *arena.Arena) *File {
	return &File{file: file, index: index, memory: memory}
}

// Size returns the number of bytes of the content.
func (f *File) Size() int64 { return f.index.size }

// ReadAt implements io.ReaderAt. It inflates from the beginning of the segment that holds off. It
// copies only the wanted bytes to p.
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
		buffer = f.memory.Take(bytes)
		return buffer
	})
	copied := copy(p, content)
	f.memory.Give(buffer)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return copied, err
}

// Inflate returns the content from the offset `from` up to the offset `to`. It calls `take` once,
// for memory of the result and about 33 KiB more. The result lies in that memory. Inflate begins
// at the start of the segment that holds `from`, and drops the bytes before `from`. It fails when
// an offset is outside the content. It fails with [ErrIndex] when the index was made from another
// file than this one. When the file's ReadAt fails, Inflate returns that error.
func (f *File) Inflate(from, to int64, take func(bytes int) []byte) ([]byte, error) {
	x := f.index
	if from < 0 || from > to || to > x.size {
		return nil, fmt.Errorf("inflate: bytes %d to %d of a content of %d", from, to, x.size)
	}
	memory := take(window + int(to-from) + 2*room)
	o := output{narrow: memory, at: window}
	first := x.SegmentAt(from)
	for i := first; from < to && i < len(x.points) && x.points[i].offset < to; i++ {
		if err := f.segment(i, from, to, i == first, &o); err != nil {
			return nil, err
		}
	}
	return memory[window:][:to-from], nil
}

const (
	skipBytes  = 256 << 10 // bytes before the wanted bytes are inflated in pieces of this size, which a CPU cache holds
	inputBytes = 4 << 20   // compressed bytes that are read at once
)

// FileMemory returns the most bytes that Inflate and ReadAt take when `goroutines` goroutines
// call them at a time. The memory of the results is not counted.
func FileMemory(goroutines int) int {
	each := inputBytes + more + window + skipBytes + 2*room
	return goroutines * (each + each/8)
}

// segment inflates segment number i. It appends to o the bytes of that segment that lie between the
// offsets `from` and `to` of the content.
func (f *File) segment(i int, from, to int64, first bool, o *output) error {
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
	n := min(end-in.begin, inputBytes)
	in.bytes = f.memory.Take(int(n) + more)[:0] // room for the first read and for one more call of in.grow
	buffer := in.bytes
	defer func() { f.memory.Give(buffer) }()
	if err := in.grow(n, in.begin); err != nil {
		return err
	}
	began := time.Now()
	defer func() { f.busy.Add(int64(time.Since(began))) }()
	s, err := newStream(in, p.place)
	if err != nil {
		return stale(err)
	}
	defer s.close()
	run := func(part *output, wanted int) error {
		for part.at < wanted {
			why, err := s.run(part, stop, len(part.narrow))
			if errors.Is(err, ErrTruncated) && part.at >= wanted { // the file was cut already when the index was made
				return nil
			}
			if err != nil && (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) || errors.Is(err, ErrNotGzip) || errors.Is(err, ErrTrailing)) {
				return stale(err)
			}
			if err != nil {
				return err
			}
			if why != isFull && part.at < wanted {
				return stale(fmt.Errorf("it ends %d bytes early, %d", wanted-part.at, why))
			}
		}
		return nil
	}
	if first { // in a later segment, the window is the end of the segment before it
		fill(o.narrow[:window], p.runs)
	}
	at, sum := o.at, checksum{}
	if p.offset < from {
		if sum, err = f.skip(from-p.offset, o, run); err != nil {
			return err
		}
	}
	wanted := at + int(min(x.end(i), to)-max(p.offset, from))
	part := output{narrow: o.narrow[:min(len(o.narrow), wanted+2*room)], at: o.at}
	if err := run(&part, wanted); err != nil {
		return err
	}
	o.at = wanted
	if x.end(i) <= to {
		if sum = sum.then(checksumOf(o.narrow[at:wanted])); sum != p.sum {
			return stale(ErrChecksum)
		}
	}
	return nil
}

// skip inflates `bytes` bytes in little memory and returns their checksum. Afterwards o begins
// with the window before the next byte. Bytes that were inflated too far follow the window in o.
func (f *File) skip(bytes int64, o *output, run func(*output, int) error) (sum checksum, err error) {
	memory := f.memory.Take(window + skipBytes + 2*room)
	defer f.memory.Give(memory)
	copy(memory, o.narrow[:window])
	for {
		n := int(min(bytes, skipBytes))
		part := output{narrow: memory[:window+n+room], at: window}
		if err := run(&part, window+n); err != nil {
			return checksum{}, err
		}
		n = int(min(bytes, int64(part.at-window)))
		sum = sum.then(checksumOf(memory[window:][:n]))
		if bytes -= int64(n); bytes == 0 {
			o.at = copy(o.narrow, memory[n:part.at])
			return sum, nil
		}
		copy(memory, memory[n:part.at])
	}
}

// Busy returns the time that all goroutines together have spent on inflating so far. It does not
// count the first read of each segment from the file. Few segments need a second read, which Busy
// counts.
func (f *File) Busy() time.Duration { return time.Duration(f.busy.Load()) }

// Index returns the index of the file.
func (f *File) Index() *Index { return f.index }
