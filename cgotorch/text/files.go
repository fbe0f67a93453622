package text

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// weightFiles returns the safetensors files in a folder, as [safetensors.Files] lists them. If
// the folder's model.safetensors.index.json is damaged, the error also wraps
// [cgotorch.ErrInvalidArgument].
func weightFiles(folder string) ([]string, error) {
	files, _, err := safetensors.Files(folder)
	if errors.Is(err, safetensors.ErrFormat) {
		err = fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	return files, nil
}
