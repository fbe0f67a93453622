package inflate

// #include "cgotorch_inflate.h"
import "C"

import (
	"errors"
	"fmt"
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
func take(status *C.ctd_status) error {
	if status == nil {
		return nil
	}
	defer C.ctd_status_free(status)
	kind := ErrCorrupt
	switch C.ctd_status_code(status) {
	case C.CTD_TRUNCATED:
		return ErrTruncated
	case C.CTD_OUT_OF_MEMORY:
		kind = errors.New("inflate: out of memory")
	case C.CTD_INVALID_ARGUMENT, C.CTD_INTERNAL:
		kind = errors.New("inflate: internal error")
	}
	return fmt.Errorf("%w: %s", kind, C.GoString(C.ctd_status_message(status)))
}
