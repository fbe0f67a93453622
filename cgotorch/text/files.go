package text

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// weightFiles is [safetensors.Files]. A damaged index is an [cgotorch.ErrInvalidArgument] too.
func weightFiles(folder string) ([]string, error) {
	files, err := safetensors.Files(folder)
	if errors.Is(err, safetensors.ErrFormat) {
		err = fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	return files, nil
}
