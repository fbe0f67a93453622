package archive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/internal/panics"
)

// Files is the source of an archive's files: the operating system, an fs.FS, or a single file.
type Files interface {
	stat(path string) (fs.FileInfo, error)
	open(path string) (file, error)
	folder(path string) (folder, error)
	glob(pattern string) ([]string, error)
	beside() bool // index files can be written beside archives
}

// file is an open file, safe for concurrent use.
type file interface {
	io.ReaderAt
	Stat() (fs.FileInfo, error)
	Close() error
}

// folder is an open directory. No name and no link leads outside the directory.
type folder interface {
	tree() fs.FS
	open(name string) (fs.File, error)
	Close() error
}

// OS are the files of the operating system.
var OS Files = osFiles{}

type osFiles struct{}

func (osFiles) stat(path string) (fs.FileInfo, error) { return os.Stat(path) }
func (osFiles) open(path string) (file, error)        { return os.Open(path) }
func (osFiles) glob(pattern string) ([]string, error) { return filepath.Glob(pattern) }
func (osFiles) beside() bool                          { return true }
func (osFiles) folder(path string) (folder, error) {
	root, err := os.OpenRoot(path)
	return osFolder{root}, err
}

type osFolder struct{ *os.Root }

func (f osFolder) tree() fs.FS { return f.FS() }

// open does not block if a pipe has replaced the file.
func (f osFolder) open(name string) (fs.File, error) {
	return f.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// OfFS returns the files of a file system.
func OfFS(fsys fs.FS) Files { return fsFiles{fsys} }

type fsFiles struct{ fs.FS }

func (f fsFiles) stat(path string) (fs.FileInfo, error) { return fs.Stat(f.FS, path) }
func (f fsFiles) glob(pattern string) ([]string, error) { return fs.Glob(f.FS, pattern) }
func (fsFiles) beside() bool                            { return false }

func (f fsFiles) open(path string) (file, error) {
	opened, err := f.FS.Open(path)
	if err != nil {
		return nil, err
	}
	if file, ok := opened.(file); ok {
		return file, nil
	}
	opened.Close()
	return nil, errors.New("files of this fs.FS have no ReadAt, which is needed for reading several places at once")
}

func (f fsFiles) folder(path string) (folder, error) {
	sub, err := fs.Sub(f.FS, path)
	return fsFolder{sub}, err
}

type fsFolder struct{ fs.FS }

func (f fsFolder) tree() fs.FS                       { return f.FS }
func (f fsFolder) open(name string) (fs.File, error) { return f.FS.Open(name) }
func (fsFolder) Close() error                        { return nil }

// OfReaderAt returns the one file of `size` bytes that r reads. Every path gives this file.
func OfReaderAt(r io.ReaderAt, size int64, name string) Files { return oneFile{r, size, name} }

type oneFile struct {
	io.ReaderAt
	size int64
	name string
}

func (f oneFile) stat(string) (fs.FileInfo, error)   { return f, nil }
func (f oneFile) open(string) (file, error)          { return f, nil }
func (f oneFile) folder(path string) (folder, error) { return nil, fs.ErrInvalid }
func (f oneFile) glob(string) ([]string, error)      { return nil, nil }
func (oneFile) beside() bool                         { return false }

func (f oneFile) Close() error               { return nil }
func (f oneFile) Stat() (fs.FileInfo, error) { return f, nil }
func (f oneFile) Name() string               { return path.Base(f.name) }
func (f oneFile) Size() int64                { return f.size }
func (oneFile) Mode() fs.FileMode            { return 0 }
func (oneFile) ModTime() time.Time           { return time.Time{} }
func (oneFile) IsDir() bool                  { return false }
func (oneFile) Sys() any                     { return nil }

// steadyFile is a file whose reads are timed. A read that fails or takes too long is tried again.
type steadyFile struct {
	file
	patience
}

// patience says how often and for how long a read is tried.
type patience struct {
	retries int
	timeout time.Duration // 0 means no limit
	counts  *Counts
}

// ReadAt implements io.ReaderAt.
func (f steadyFile) ReadAt(p []byte, off int64) (int, error) {
	if f.timeout == 0 {
		return attempt(f.patience, func() (int, error) { return readAt(f.file, p, off) })
	}
	read, err := attempt(f.patience, func() ([]byte, error) {
		q := make([]byte, len(p)) // memory of its own, because a read that timed out may still write to it
		n, err := readAt(f.file, q, off)
		return q[:n], err
	})
	return copy(p, read), err
}

// readAt is f.ReadAt. It fails if the file breaks the contract of io.ReaderAt.
func readAt(f io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if n < 0 || n > len(p) {
		return 0, fmt.Errorf("ReadAt of %d bytes returned %d: mend the reader, a %T", len(p), n, f)
	}
	return n, err
}

const shortestPause, longestPause = 20 * time.Millisecond, time.Second // pauses between two tries

// attempt calls the function `read` until `read` succeeds, or until the last retry has failed.
// The pauses between two calls grow from shortestPause to longestPause. After some errors attempt
// does not call `read` again: io.EOF, a fault of a member, an invalid path, a closed or missing
// file, a missing permission, or a panic.
func attempt[T any](p patience, read func() (T, error)) (T, error) {
	began := time.Now()
	defer func() { p.counts.Read.Add(int64(time.Since(began))) }()
	pause := shortestPause
	for tries := 1; ; tries++ {
		value, err := inTime(p.timeout, read)
		var final *Error
		var panicked *panics.Panic
		if errors.As(err, &panicked) {
			p.counts.Panicked.CompareAndSwap(nil, panicked)
			return value, err
		}
		if err == nil || err == io.EOF || errors.As(err, &final) ||
			errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrClosed) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return value, err
		}
		if tries > p.retries {
			if tries > 1 {
				err = fmt.Errorf("%w (tried %d times)", bare(err), tries)
			}
			return value, err
		}
		p.counts.note(func(n *Notes) { n.Retries++ })
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// inTime calls the function `read`. If `read` takes longer than `timeout`, inTime returns an
// error and does not wait for `read`.
func inTime[T any](timeout time.Duration, read func() (T, error)) (T, error) {
	if timeout == 0 {
		return caught(read)
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := caught(read)
		done <- result{value, err}
	}()
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-late.C:
		var none T
		return none, fmt.Errorf("a read took longer than Options.Reading.Timeout, %v", timeout)
	}
}

// caught calls `read`. If a file of the program panics in `read`, the result is the panic as an
// error, because the goroutine may be one of the loader's. Open and Loader.Epoch raise it again.
func caught[T any](read func() (T, error)) (value T, err error) {
	panics.Run("the reading of an archive", func() (failed error) {
		value, failed = read()
		return failed
	}, func(failed error) { err = failed })
	return value, err
}
