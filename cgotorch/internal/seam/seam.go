// Package seam is the part of cgotorch that only the packages above it see. Package cgotorch
// sets each of these functions when the program starts, and never again.
package seam

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

var (
	// Ready fails where the core cannot be used at all.
	Ready func() error
	// Check frees a status and returns it as a *cgotorch.Error of the operation, or nil.
	Check func(op string, status *ct.Status) error
	// Caller is the file and line of the innermost frame that belongs to the program.
	Caller func() string
	// StreamName is the name of the last stream that had this number; false for a stream that is
	// not cgotorch's.
	StreamName func(id uint64) (string, bool)
	// Waits says that the calling goroutine waits for the device on purpose, which a Do under
	// NoWaits must not.
	Waits func(op string)
)
