package safetensors

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// WriteFile is [Write] to a new file in the folder of `path`. The new file then replaces the file
// at `path`. At any time the file at `path` is either the old file or the complete new file, even
// after a power cut. The disk needs space for both files. The new file gets the permissions of
// the old file. If WriteFile fails, for instance because the disk is full, it removes the new
// file. If the process is killed, the new file stays under the name path.new-….
func WriteFile(path string, tensors []Tensor, metadata map[string]string) (err error) {
	ordered, header, err := layout(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
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

// The function `create` makes a new file in the folder of `path`. The new file gets the
// permissions of the file at `path`.
func create(path string) (*os.File, error) {
	name := path + ".new-" + strconv.FormatUint(rand.Uint64(), 36)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
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
