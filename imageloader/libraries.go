package imageloader

import (
	"fmt"

	"github.com/streamtorch/streamtorch/internal/library"
)

// UseLibraries is process-wide: it names the folder of the compiled library of the decoder, or a
// folder that `streamtorch install -prefix` has filled. Only $STREAMTORCH_LIB comes before it. It
// fails if the path is not absolute, and after the first call that needs the library. A program
// that uses package cgotorch calls the function of that name there or this one.
func UseLibraries(folder string) error {
	if err := library.Use(folder); err != nil {
		return fmt.Errorf("imageloader: UseLibraries: %w", err)
	}
	return nil
}
