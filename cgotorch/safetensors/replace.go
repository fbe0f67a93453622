package safetensors

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/streamtorch/streamtorch/internal/replace"
)

// WriteFile is [Write] to a new file in the folder of `path`. The new file then replaces the file
// at `path`. At any time the file at `path` is either the old file or the complete new file, even
// after a power cut. The disk needs space for both files. The new file gets the permissions of
// the old file. If WriteFile fails, for instance because the disk is full, it removes the new
// file. If the process is killed, the new file stays under the name path.new-…. The next WriteFile
// to `path` removes it. WriteFile fails if `path` is a folder, a device or a pipe.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) (err error) {
	ordered, header, err := layout(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	file, err := replace.Create(path)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	defer file.Discard() // also runs if a Read panics
	if err = write(file, ordered, header); err == nil {
		err = file.Commit()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, replace.ErrNotSynced):
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	advice := ""
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		advice = ": make room or choose another path"
	}
	return fmt.Errorf("safetensors: %s: not saved, what was there before is unchanged: %w%s", path, err, advice)
}
