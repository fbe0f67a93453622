package weights

import "errors"

// Errors to test for with [errors.Is]. After Close that is [cgotorch.ErrClosed].
var (
	ErrInvalidOptions = errors.New("invalid options")
	ErrUnknownUnit    = errors.New("unknown unit")
	ErrNoSlot         = errors.New("no slot")
	ErrBusy           = errors.New("in use")
)
