package imageloader

import (
	"fmt"

	"github.com/streamtorch/streamtorch/internal/library"
)

// UseLibraries is process-wide: it names the folder of the compiled library of the decoder, or a
// folder that `streamtorch install -prefix` has filled. Only $STREAMTORCH_LIB comes before it. It
// fails if the path is not absolute or names no folder, and after a call that has looked for the
// libraries, also in vain. The function of that name in package cgotorch does the same. A second
// call fails if it names another folder.
func UseLibraries(folder string) error {
	if err := library.Use(folder); err != nil {
		return fmt.Errorf("imageloader: UseLibraries: %w", err)
	}
	return nil
}
