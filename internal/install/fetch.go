package install

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A download gives up a connection that sends nothing for this long, and tries again.
const patience = 30 * time.Second

const tries = 4

// The errors of a server after which another server is asked, and this one is not asked again.
var (
	errSilent  = errors.New("it sent nothing for too long")
	errStatus  = errors.New("the server does not have it")
	errRefused = errors.New("refuses it")
	errPage    = errors.New("it sent a page, not the file")
)

// mostBytes limits a file whose size is not known.
const mostBytes = 256 << 20

func (in *Installer) silence() time.Duration {
	if in.Patience > 0 {
		return in.Patience
	}
	return patience
}

// A file is something to download.
type file struct {
	title  string
	bytes  int64 // 0 if it is not known
	sha256 string
}

// fetch downloads a file to a path. It goes on where an earlier one was cut off, also one of
// another process. It tries again if the connection breaks. The file at the path is whole and has
// its SHA-256.
func (in *Installer) fetch(ctx context.Context, client *http.Client, from string, f file, path string) error {
	part := path + ".part"
	defer func() {
		if sizeOf(part) == 0 {
			os.Remove(part)
		}
	}()
	if hasSum(path, f.sha256) { // a killed process left it
		in.Out.finished("%s: is here, checked", f.title)
		return nil
	}
	err := in.again(ctx, f.title, func() error {
		err := in.fetchOnce(ctx, client, from, f, part)
		if wrong := (*wrongSum)(nil); errors.As(err, &wrong) {
			os.Remove(part)
		}
		return err
	})
	if err != nil {
		return err
	}
	in.Out.finished("%s: %d MB, checked", f.title, megabytes(sizeOf(part)))
	return os.Rename(part, path)
}

func hasSum(path, want string) bool {
	have, err := Hash(path)
	return err == nil && have == want
}

// again calls f until it succeeds. It stops after `tries`, and after an error that a new try does
// not mend.
func (in *Installer) again(ctx context.Context, title string, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isFinal(err) || try >= tries:
			return err
		}
		in.Out.Line("%s: %v; trying again", title, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(try) * time.Second):
		}
	}
}

func isFinal(err error) bool {
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return true
	}
	if wrong := (*wrongSum)(nil); errors.As(err, &wrong) {
		return !wrong.resumed // what was there before may be of another file
	}
	for _, final := range []error{errStatus, errRefused, errPage, errIndex, ErrRoot, syscall.ENOSPC, os.ErrPermission} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// A wrongSum is the error for a file that is not the one that is wanted.
type wrongSum struct {
	title, have, want string
	resumed           bool // a part of it was there before
}

func (w *wrongSum) Error() string {
	return fmt.Sprintf("what the server sent has the SHA-256 %.12s…, and %.12s… is wanted", w.have, w.want)
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// fetchOnce downloads what is missing of a file.
func (in *Installer) fetchOnce(ctx context.Context, client *http.Client, from string, f file, part string) error {
	out, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return unwritable(filepath.Dir(part), err)
	}
	defer out.Close()
	sum := sha256.New()
	have, err := io.Copy(sum, out)
	if err != nil {
		return err
	}
	if f.bytes > 0 && have > f.bytes {
		have = 0
	}
	if fmt.Sprintf("%x", sum.Sum(nil)) == f.sha256 {
		return out.Close()
	}
	if f.bytes == 0 || have < f.bytes {
		if err := in.receive(ctx, client, from, f, out, have, sum); err != nil {
			return err
		}
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != f.sha256 {
		return &wrongSum{f.title, got, f.sha256, have > 0}
	}
	return out.Close()
}

// receive asks for a file from byte `have` on, and writes it behind what is there. An answer that
// is not the file leaves what is there.
func (in *Installer) receive(ctx context.Context, client *http.Client, from string, f file, out *os.File, have int64, sum hash.Hash) error {
	header := http.Header{"Accept-Encoding": {"identity"}} // the hash is that of the file as it lies there
	if have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	return in.get(ctx, client, from, header, func(response *http.Response, body io.Reader) error {
		if err := f.isIn(response, have); err != nil {
			return err
		}
		if response.StatusCode != http.StatusPartialContent {
			have = 0
			sum.Reset()
			if err := out.Truncate(0); err != nil {
				return err
			}
		}
		if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return errors.New("what was here is longer than the server's file")
		}
		if _, err := out.Seek(have, io.SeekStart); err != nil {
			return err
		}
		return in.write(f, out, have, sum, response.ContentLength, body)
	})
}

// isIn fails if an answer is not the file from byte `have` on, or else the file from its beginning.
func (f file) isIn(response *http.Response, have int64) error {
	kind := response.Header.Get("Content-Type")
	switch response.StatusCode {
	case http.StatusPartialContent:
		if at := response.Header.Get("Content-Range"); !strings.HasPrefix(at, fmt.Sprintf("bytes %d-", have)) {
			return fmt.Errorf("%w: it was asked for the bytes from %d on, and sent %.40q", errPage, have, at)
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if f.bytes > 0 {
			return fmt.Errorf("%w: its file is shorter than %d bytes", errPage, f.bytes)
		}
		return nil
	case http.StatusOK:
		if n := response.ContentLength; n >= 0 && f.bytes > 0 && n != f.bytes {
			return fmt.Errorf("%w: %d bytes of %.40q, and the file has %d", errPage, n, kind, f.bytes)
		}
	default:
		return refusal(response)
	}
	if strings.HasPrefix(kind, "text/html") {
		return fmt.Errorf("%w: it is %.40q; a proxy may want that you log in", errPage, kind)
	}
	return nil
}

// write writes the body of an answer behind the byte `have` of a file.
func (in *Installer) write(f file, out *os.File, have int64, sum hash.Hash, length int64, body io.Reader) error {
	whole, most := f.bytes, f.bytes
	if whole == 0 {
		whole, most = have+max(0, length), mostBytes
	}
	shown := readerFunc(func(p []byte) (int, error) {
		n, err := body.Read(p)
		have += int64(n)
		in.Out.progress(f.title, megabytes(have), megabytes(whole), "MB")
		return n, err
	})
	_, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(out, sum)}, io.LimitReader(shown, most-have+1), make([]byte, 1<<20))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return full(filepath.Dir(out.Name()))
	case err != nil:
		return err
	case have > most:
		return errors.Join(fmt.Errorf("%w: it is longer than %d bytes", errPage, most), out.Truncate(0))
	case have < f.bytes:
		return io.ErrUnexpectedEOF
	}
	return nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
