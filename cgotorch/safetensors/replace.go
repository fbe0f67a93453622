package safetensors

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
)

// WriteFile is [Write] to a new file in the folder of `path`. The new file then replaces the file
// at `path`. At any time the file at `path` is either the old file or the complete new file, even
// after a power cut. The disk needs space for both files. The new file gets the permissions of
// the old file. If WriteFile fails, for instance because the disk is full, it removes the new
// file. If the process is killed, the new file stays under the name path.new-…. The next WriteFile
// to `path` removes it.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) (err error) {
	ordered, header, err := layout(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	removeAbandoned(path)
	file, err := create(path)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	whole := false
	defer func() { // also runs if a Read panics
		if !whole {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	if err = fill(file, ordered, header); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		advice := ""
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			advice = ": make room or choose another path"
		}
		return fmt.Errorf("safetensors: %s: not saved, what was there before is unchanged: %w%s", path, err, advice)
	}
	whole = true
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("safetensors: %s: written, but not yet safe from a power cut: %w", path, err)
	}
	return nil
}

// newFile is what stands between a path and the random part of the name of its new file.
const newFile = ".new-"

// The function `create` makes a new file in the folder of `path`, and locks the file. The new file
// gets the permissions of the file at `path`.
func create(path string) (*os.File, error) {
	for {
		name := path + newFile + strconv.FormatUint(rand.Uint64(), 36)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return nil, err
		}
		// A file system without locks fails here. Then the file is not protected from removeAbandoned of
		// another process, which cannot lock it either.
		_ = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) { // it was removed before the lock
			file.Close()
			continue
		}
		if old, err := os.Stat(path); err == nil {
			if err := file.Chmod(old.Mode().Perm()); err != nil {
				file.Close()
				os.Remove(name)
				return nil, err
			}
		}
		return file, nil
	}
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
		return // create fails too, and says why
	}
	for _, e := range entries {
		random, ok := strings.CutPrefix(e.Name(), base+newFile)
		if _, err := strconv.ParseUint(random, 36, 64); !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(folder, e.Name())
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.Remove(name)
		}
		file.Close()
	}
}

func fill(file *os.File, tensors []Tensor, header []byte) error {
	if err := write(file, tensors, header); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return file.Close()
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
