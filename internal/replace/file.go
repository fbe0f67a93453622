// Package replace writes a file beside a path, and puts it there when it is whole.
package replace

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/streamtorch/streamtorch/internal/filelock"
)

// ErrTarget is wrapped by the error for a path that leads to a folder, a device or a pipe.
var ErrTarget = errors.New("it cannot be replaced by a file: choose another path")

// File is a new file that will stand at a path. Until then it lies beside the path, under the name
// path.new-…, and is locked. Readers of the path see the old file or the whole new file. Several
// writers of one path do not disturb each other: the last Commit stays.
type File struct {
	*os.File
	path string
	done bool
}

// mark is what stands between a path and the random part of the name of its new file.
const mark = ".new-"

// Create makes a new file for a path. It gets the permissions of the file at the path. Create
// removes what killed processes have left of earlier files for the path. The caller calls Commit or
// Discard. Create fails with [ErrTarget] if the path leads to anything but a file.
func Create(path string) (*File, error) {
	old, err := os.Stat(path)
	switch {
	case err == nil && !old.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s: %w", path, kind(old.Mode()), ErrTarget)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	removeAbandoned(path)
	for {
		name := path + mark + strconv.FormatUint(rand.Uint64(), 36)
		file, err := filelock.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no folder %s; make it first: %w", filepath.Dir(path), fs.ErrNotExist)
		}
		if err != nil {
			return nil, err
		}
		// This waits for a removeAbandoned of another process that looks at the file just now. A file
		// system without locks fails here. Then nobody can take the file for an abandoned one either.
		_ = filelock.Lock(file)
		if !isAt(file, name) { // it was removed before the lock
			file.Close()
			continue
		}
		f := &File{File: file, path: path}
		if old != nil {
			if err := file.Chmod(old.Mode().Perm()); err != nil {
				f.Discard()
				return nil, err
			}
		}
		return f, nil
	}
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

func isAt(file *os.File, name string) bool {
	a, err := file.Stat()
	b, err2 := os.Stat(name)
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// Commit puts the file at its path. It returns when the file is safe from a power cut. If it fails,
// the file is removed, and the old file stays, except if the error wraps [ErrNotSynced].
func (f *File) Commit() error {
	defer f.Discard()
	if err := f.Sync(); err != nil {
		return err
	}
	if err := rename(f.Name(), f.path); err != nil {
		return err
	}
	f.done = true
	err := f.Close() // after the rename, because the lock ends here
	if err == nil {
		err = syncFolder(filepath.Dir(f.path))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSynced, err)
	}
	return nil
}

// ErrNotSynced is wrapped by the error of a Commit whose new file is in place, and may be lost if
// the power is cut now.
var ErrNotSynced = errors.New("written, but not yet safe from a power cut")

// Discard removes the file. After a Commit it does nothing. A nil File has nothing to remove.
func (f *File) Discard() {
	if f == nil || f.done {
		return
	}
	f.done = true
	os.Remove(f.Name()) // before Close, while the file is locked
	f.Close()
}

// Write replaces the file at a path by data.
func Write(path string, data []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// removeAbandoned removes the new files of `path` that killed processes have left. A process that
// still writes holds the lock of its file.
func removeAbandoned(path string) {
	folder, base := filepath.Split(path)
	if folder == "" {
		folder = "."
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // Create fails too, and says why
	}
	for _, e := range entries {
		random, ok := strings.CutPrefix(e.Name(), base+mark)
		if _, err := strconv.ParseUint(random, 36, 64); !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(folder, e.Name())
		file, err := filelock.Open(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		// The file may have been renamed to the path since it was opened.
		if held, err := filelock.Try(file); !held && err == nil && isAt(file, name) {
			os.Remove(name)
		}
		file.Close()
	}
}
