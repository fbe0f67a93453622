// Package bodies reads the bodies of HTTP requests, and bounds the memory of all of them.
package bodies

import (
	"bufio"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

var (
	// ErrTooLarge means that a body is too large for the server, also alone.
	ErrTooLarge = errors.New("the body is too large")
	// ErrBusy means that a body would fit later, when others have been given back.
	ErrBusy = errors.New("the bodies of other requests take the memory")
)

// Bound bounds the memory of bodies that are being answered, and uses small buffers again. Any
// number of goroutines may use it.
type Bound struct {
	Most, All int64 // bytes of one body, and of all

	mu   sync.Mutex
	used int64
	free sync.Pool // of *[]byte
}

// mostKept is the size of the largest buffer that is used again. A larger one in the hands of a
// small body would keep memory from others.
const mostKept = 1 << 20

// Body is a request's body.
type Body struct {
	Bytes []byte
	taken int64 // the capacity of Bytes, and what [Bound.More] has added
}

// Read returns the body of a request, inflated. It waits for the client. It fails with
// [ErrTooLarge], [ErrBusy], the cause of the request's context, [context.DeadlineExceeded] for a
// slow client, and [cgotorch.ErrInvalidArgument]. The caller gives the body back by [Bound.Give].
func (b *Bound) Read(w http.ResponseWriter, r *http.Request) (*Body, error) {
	from, size := io.Reader(http.MaxBytesReader(w, r.Body, b.Most)), r.ContentLength
	var packed *bufio.Reader
	if size > b.Most {
		return nil, fmt.Errorf("%d bytes, at most %d are taken: %w", size, b.Most, ErrTooLarge)
	}
	switch encoding := strings.ToLower(r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip", "deflate":
		open := func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
		if encoding == "deflate" {
			open = zlib.NewReader
		}
		packed = bufio.NewReader(from)
		inflated, err := open(packed)
		if err != nil {
			return nil, refuseBody(r.Context(), err, "the body is not %s", encoding)
		}
		defer inflated.Close()
		from, size = io.LimitReader(inflated, b.Most+1), -1
	default:
		return nil, refuse("Content-Encoding is %q; want gzip, deflate or none", encoding)
	}
	got := &Body{}
	// A buffer that is a large part of all memory would leave a smaller body no memory for its tensors.
	if kept, _ := b.free.Get().(*[]byte); kept != nil && (int64(cap(*kept)) <= size || int64(cap(*kept)) <= b.All/8) && b.take(int64(cap(*kept))) {
		got.Bytes, got.taken = (*kept)[:0], int64(cap(*kept))
	}
	err := b.fill(r.Context(), got, from, size)
	if err == nil && packed != nil {
		err = ended(packed)
	}
	if err == nil {
		return got, nil
	}
	b.Give(got)
	if errors.Is(err, ErrBusy) {
		return nil, err
	}
	if large := new(http.MaxBytesError); errors.As(err, &large) {
		return nil, fmt.Errorf("more than %d bytes: %w", b.Most, ErrTooLarge)
	}
	return nil, refuseBody(r.Context(), err, "the body does not end where it should")
}

// ended reads the end of a compressed body. A server sees no client leave before.
func ended(packed *bufio.Reader) error {
	switch _, err := packed.ReadByte(); err {
	case io.EOF:
		return nil
	case nil:
		return errors.New("something stands behind what is compressed")
	default:
		return err
	}
}

// refuseBody returns why a body cannot be read: the server's time for it is over, ctx has ended, or
// the body is wrong. net/http ends ctx whenever a read fails, also when the time is over.
func refuseBody(ctx context.Context, err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the body comes too slowly: %w", context.DeadlineExceeded)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	return refuse("%s: %v", what, err)
}

// fill reads a body, until ctx ends. It takes memory as the bytes come: at most twice what was
// sent, or mostKept. The size is below 0 if it is not known.
func (b *Bound) fill(ctx context.Context, to *Body, from io.Reader, size int64) error {
	const least = int64(256 << 10)
	end := size
	if size < 0 {
		end = b.Most + 1
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := int64(len(to.Bytes))
		if n == size {
			return nil
		}
		if n == int64(cap(to.Bytes)) {
			larger := min(max(2*n, least), end)
			if !b.take(larger - n) {
				return ErrBusy
			}
			to.taken += larger - n
			to.Bytes = append(make([]byte, 0, larger), to.Bytes...)
		}
		got, err := from.Read(to.Bytes[n:min(int64(cap(to.Bytes)), end)])
		to.Bytes = to.Bytes[:n+int64(got)]
		switch {
		case n+int64(got) > b.Most:
			return new(http.MaxBytesError)
		case err == io.EOF && size < 0:
			return nil
		case err == io.EOF && n+int64(got) < size:
			return io.ErrUnexpectedEOF
		case err != nil && err != io.EOF:
			return err
		}
	}
}

// Used returns the bytes that all bodies take now.
func (b *Bound) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// take counts n bytes, and reports whether they fit.
func (b *Bound) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.All {
		return false
	}
	b.used += n
	return true
}

// More counts n bytes of memory that a body needs beside its own, until it is given back. It fails
// with [ErrBusy], and with [ErrTooLarge] if the body does not fit alone.
func (b *Bound) More(to *Body, n int64) error {
	if to.taken+n > b.All {
		return fmt.Errorf("its elements take %d bytes beside %d, and the server has no more for all bodies: divide the request: %w", n, to.taken, ErrTooLarge)
	}
	if !b.take(n) {
		return ErrBusy
	}
	to.taken += n
	return nil
}

// Give takes a body back, which nothing may read any more.
func (b *Bound) Give(used *Body) {
	if cap(used.Bytes) <= mostKept {
		b.free.Put(&used.Bytes)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= used.taken
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
}

// Commas returns the number of commas between the elements of a JSON array, without reading them.
func Commas(text []byte) (n int) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // the next character is quoted too
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 1:
			n++
		}
	}
	return n
}
