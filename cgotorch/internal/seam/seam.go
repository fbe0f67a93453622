// Package seam gives the packages inside folder cgotorch some functions of package cgotorch that
// programs must not use. Package cgotorch sets these functions once, when the program starts.
package seam

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

var (
	// Ready fails if the core cannot be used.
	Ready func() error
	// Check turns a status of the core into a *cgotorch.Error of op, and frees the status. For a nil
	// status it returns nil.
	Check func(op string, status *ct.Status) error
	// Caller returns the file and line of the innermost frame that belongs to the program.
	Caller func() string
	// StreamName returns the name of the last stream with this number. It returns false if cgotorch
	// has no name for the number.
	StreamName func(id uint64) (string, bool)
	// Waits must be called before op waits for the device on purpose. It fails the Do of the calling
	// goroutine if this Do uses NoWaits.
	Waits func(op string)
	// Device returns a cgotorch.Device as the core knows it.
	Device func(device any) ct.Device
	// Operator returns an operator of LibTorch for Call, such as that with the name "aten::fft_fft".
	// LibTorch is asked for the operator at the first call.
	Operator func(name string) any
	// Schema returns the schema of an operator that Operator has returned.
	Schema func(op any) (string, error)
	// Explain adds a place to the error of x's Do, if an operator has failed. A cure, if it is not "",
	// takes the place of the one that the error names. x is a *cgotorch.Exec. A second place is not
	// added.
	Explain func(x any, place, cure string)
	// Failure returns the *cgotorch.Error of x's Do, or nil if no operator of it has failed. x is a
	// *cgotorch.Exec. The caller may change the Message.
	Failure func(x any) any
	// Watched reports whether x, a *cgotorch.Exec, comes from NoWaits.
	Watched func(x any) bool
	// Unwatched returns a *cgotorch.Exec that equals x, but does not come from NoWaits.
	Unwatched func(x any) any
	// Core returns x, a *cgotorch.Exec, and `tensors`, a []*cgotorch.Tensor, for a call of the core. It
	// fails x's Do if a tensor is closed.
	Core func(x any, op string, tensors any) (ct.Exec, []*ct.Tensor)
	// Must ends the call. It fails x's Do if the status is an error, or if the call has waited under
	// NoWaits. It frees the status.
	Must func(x any, op string, status *ct.Status, tensors any)
	// Own returns a new handle as a *cgotorch.Tensor that x's Do owns.
	Own func(x any, h *ct.Tensor) any
	// Call begins a call of an operator with the Exec x, a *cgotorch.Exec. The result is an
	// opcall.Call.
	Call func(x, op any) any
	// Casts returns the value that WithCasts has given to x, a *cgotorch.Exec, or nil.
	Casts func(x any) any
	// WithCasts returns a *cgotorch.Exec that equals x, except that Casts returns `casts` for it.
	WithCasts func(x, casts any) any
	// Optimized notes that an optimizer has t, a *cgotorch.Tensor.
	Optimized func(t any)
	// SetReducer notes that r reduces the gradient of t, a *cgotorch.Tensor, as its gradient i. A nil r
	// removes the note. ReducerOf returns it.
	SetReducer func(t any, r Reducer, i int)
	ReducerOf  func(t any) (r Reducer, i int)
	// HasGrad reports whether `grad` is the tensor that t.Grad has returned last. Both are
	// *cgotorch.Tensor.
	HasGrad func(t, grad any) bool
	// WatchLeaves begins to note the leaves that operators of x's stream use. x is a *cgotorch.Exec.
	// StrayLeaves ends this. It describes the leaves that have a gradient and are in no optimizer. It
	// returns "" if there are none.
	WatchLeaves func(x any)
	StrayLeaves func(x any) string
	// Report and WithReport are the same for a report of nn. Every Exec that is derived from x has
	// the report of x.
	Report     func(x any) any
	WithReport func(x, report any) any
)
