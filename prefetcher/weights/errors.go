package weights

import "errors"

// Errors to test for with [errors.Is].
var (
	ErrInvalidOptions = errors.New("invalid options")
	ErrClosed         = errors.New("closed")
	ErrBusy           = errors.New("in use")
)
