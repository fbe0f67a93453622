package inflate

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/internal/ctd"
)

// The faults of a file, for errors.Is. An error of the file's own ReadAt is returned as it is.
var (
	ErrNotGzip   = errors.New("inflate: not a gzip file")
	ErrTruncated = errors.New("inflate: the gzip data end early")
	ErrCorrupt   = errors.New("inflate: the gzip data are invalid")
	ErrChecksum  = errors.New("inflate: the content does not match its checksum")
	ErrTrailing  = errors.New("inflate: other data follow the gzip data")
	ErrIndex     = errors.New("inflate: not an index, or not of this file")
)

// take returns an error for a status and frees the status. It returns nil for NULL.
func take(status *ctd.Status) error {
	if status == nil {
		return nil
	}
	if err := ctd.Ready(); err != nil { // the status of a call that found no library
		return fmt.Errorf("inflate: %w", err)
	}
	defer ctd.StatusFree(status)
	kind := ErrCorrupt
	switch ctd.StatusCode(status) {
	case ctd.Truncated:
		return ErrTruncated
	case ctd.OutOfMemory:
		kind = errors.New("inflate: out of memory")
	case ctd.InvalidArgument, ctd.Internal:
		kind = errors.New("inflate: internal error")
	}
	return fmt.Errorf("%w: %s", kind, ctd.StatusMessage(status))
}
