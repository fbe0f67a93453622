package data

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/signature"
)

// Note [Reading lines on several cores]
//
// A reader goroutine cuts the file into chunks of whole rows, about chunkBytes each. A row longer
// than its limit is an error, so a chunk is bounded. Workers parse the chunks. The consumer takes
// the results in the order of the file, and only then knows the numbers of the rows. So a parser
// counts the rows of an error from the beginning of its chunk.

const (
	chunkBytes    = 1 << 20
	defaultMaxRow = 16 << 20
	maxColumns    = 1 << 16
)

// lines is a text file of rows.
type lines struct {
	name   string
	open   func() (io.ReadCloser, error)
	quotes bool // a newline inside double quotes does not end a row
	maxRow int
	// count returns the number of rows in a chunk.
	count func(chunk []byte) int64
	// parse makes rows of a chunk, without its first `skip` rows. The error is about a row of the
	// chunk. The rows before that row are returned too.
	parse func(chunk []byte, skip int64) (*Rows, *Error)
}

func (l *lines) source() string { return l.name }

// chunk is a piece of the file on its way to the consumer.
type chunk struct {
	data []byte
	skip int64 // rows that are left out
	done chan struct{}
	rows *Rows
	bad  *Error
	err  error // why the file ends before this chunk
}

// byteOrderMark begins some files of UTF-8.
var byteOrderMark = []byte("\xef\xbb\xbf")

// end returns the length of the whole rows at the beginning of data.
func (l *lines) end(data []byte) int {
	if !l.quotes || bytes.IndexByte(data, '"') < 0 {
		return bytes.LastIndexByte(data, '\n') + 1
	}
	last, inside := 0, false
	for at := 0; at < len(data); {
		quote := bytes.IndexByte(data[at:], '"')
		piece := data[at:]
		if quote >= 0 {
			piece = piece[:quote]
		}
		if newline := bytes.LastIndexByte(piece, '\n'); !inside && newline >= 0 {
			last = at + newline + 1
		}
		if quote < 0 {
			break
		}
		inside = !inside
		at += quote + 1
	}
	return last
}

// chunks yields pieces of whole rows. The memory of a piece is valid until `free` gets it.
func (l *lines) chunks(r io.Reader, take func() []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var rest []byte
		first := true // at the beginning of the file, or behind its header
		for {
			data := append(take()[:0], rest...)
			for {
				if len(data) == cap(data) {
					data = append(data, make([]byte, max(chunkBytes/2, len(data)))...)[:len(data)]
				}
				n, err := io.ReadFull(r, data[len(data):min(cap(data), max(chunkBytes, 2*len(data)))])
				data = data[:len(data)+n]
				if first {
					if fault := l.foreign(data); fault != "" {
						yield(nil, &Error{Source: l.name, Reason: fault, Kind: ErrBadRow})
						return
					}
					first = false
				}
				if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
					yield(nil, &Error{Source: l.name, Reason: err.Error(), Kind: ErrBadRow, Cause: err})
					return
				}
				if err != nil { // the last row may have no newline
					if len(data) > 0 {
						yield(data, nil)
					}
					return
				}
				if end := l.end(data); end > 0 {
					rest = append(rest[:0], data[end:]...)
					if len(rest) > l.maxRow {
						yield(nil, l.tooLong())
						return
					}
					if !yield(data[:end], nil) {
						return
					}
					break
				}
				if len(data) > l.maxRow {
					yield(nil, l.tooLong())
					return
				}
			}
		}
	}
}

// foreign says what bytes are that are no lines of UTF-8, or "".
func (l *lines) foreign(data []byte) string {
	if kind, _ := signature.Of(data[:min(len(data), 512)]); kind.Packed() {
		return "it is " + kind.Name + ": decompress it, or give NewCSV or NewJSONLines a function that does"
	}
	wide := bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff"))
	if wide || len(data) > 1 && (data[0] == 0) != (data[1] == 0) {
		return "it is text in UTF-16 or UTF-32: write it in UTF-8"
	}
	if at := bytes.IndexByte(data, '\r'); at >= 0 && at+1 < len(data) && bytes.IndexByte(data, '\n') < 0 && (!l.quotes || bytes.IndexByte(data, '"') < 0) {
		return "its lines end with a carriage return alone: end them with a newline"
	}
	return ""
}

func (l *lines) tooLong() *Error {
	e := &Error{Source: l.name, Kind: ErrTooLarge, Reason: fmt.Sprintf("a row is longer than MaxRow, %d bytes", l.maxRow)}
	if l.quotes {
		e.Reason += ", or a quote is not closed; " + quotesOff
	}
	return e
}

// read yields the rows of the file after the first `from` rows. `header` is the length of the part
// before the first row.
func (l *lines) read(ctx context.Context, header, from int64) iter.Seq2[*Rows, error] {
	return func(yield func(*Rows, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		workers := runtime.GOMAXPROCS(0)
		free := make(chan []byte, 2*workers+2)
		jobs, ordered := make(chan *chunk, 2*workers), make(chan *chunk, 2*workers)
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Add(1 + workers)
		go func() {
			defer running.Done()
			defer close(ordered)
			defer close(jobs)
			panics.Run("the source of bytes of "+l.name, func() error { return l.cut(ctx, header, from, free, jobs, ordered) }, func(err error) {
				if err != nil {
					send(ctx, ordered, &chunk{err: err})
				}
			})
		}()
		for range workers {
			go func() {
				defer running.Done()
				for c := range jobs {
					if ctx.Err() == nil {
						c.rows, c.bad = l.parse(c.data, c.skip)
					}
					select {
					case free <- c.data:
					default:
					}
					close(c.done)
				}
			}()
		}
		for row := from; ; {
			var c *chunk
			var ok bool
			select {
			case c, ok = <-ordered:
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
			if !ok {
				if ctx.Err() != nil {
					yield(nil, context.Cause(ctx))
				}
				return
			}
			if c.err != nil {
				panics.Raise(c.err)
				yield(nil, c.err)
				return
			}
			<-c.done
			if c.rows != nil && c.rows.n > 0 && !yield(c.rows, nil) {
				return
			}
			if c.bad != nil {
				bad := *c.bad
				bad.Source, bad.Row = l.name, row+bad.Row-c.skip
				yield(nil, &bad)
				return
			}
			if c.rows != nil {
				row += int64(c.rows.n)
			}
		}
	}
}

// send sends a chunk, unless ctx ends before.
func send(ctx context.Context, to chan<- *chunk, c *chunk) bool {
	select {
	case to <- c:
		return true
	case <-ctx.Done():
		return false
	}
}

// cut reads the file and sends its chunks to both channels. It leaves out the first `from` rows.
func (l *lines) cut(ctx context.Context, header, from int64, free chan []byte, jobs, ordered chan<- *chunk) error {
	f, err := l.open()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	defer f.Close()
	if _, err := io.CopyN(io.Discard, f, header); err != nil {
		return &Error{Source: l.name, Reason: "the file is shorter than it was: " + err.Error(), Kind: ErrBadRow, Cause: err}
	}
	take := func() []byte {
		select {
		case data := <-free:
			return data
		default:
			return make([]byte, 0, chunkBytes)
		}
	}
	for data, err := range l.chunks(f, take) {
		if err != nil {
			return err
		}
		if header == 0 { // the chunk begins the file
			data, header = bytes.TrimPrefix(data, byteOrderMark), -1
		}
		c := &chunk{data: data, done: make(chan struct{})}
		if from > 0 {
			n := l.count(data)
			c.skip = min(from, n)
			if from -= c.skip; c.skip == n {
				free <- data // has room: only one chunk is taken while rows are left out
				continue
			}
		}
		if !send(ctx, ordered, c) || !send(ctx, jobs, c) {
			close(c.done)
			return nil
		}
	}
	return nil
}
