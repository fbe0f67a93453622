package text

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// weightFiles calls [safetensors.Files]. If the index file is damaged, the error is
// [cgotorch.ErrInvalidArgument] too.
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
