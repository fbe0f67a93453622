package weights

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Errors to test for with [errors.Is].
var (
	ErrInvalidOptions = errors.New("invalid options")
	ErrUnknownUnit    = errors.New("unknown unit")
	ErrNoSlot         = errors.New("no slot")
	ErrBusy           = errors.New("in use")
	ErrClosed         = cgotorch.ErrClosed
)
