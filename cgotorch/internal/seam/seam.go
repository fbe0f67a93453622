// Package seam declares the access to package cgotorch that only packages inside folder cgotorch
// get. They use it through package inside.
package seam

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// Core is what package cgotorch gives. X is *cgotorch.Exec, T is *cgotorch.Tensor, D is
// cgotorch.Device and E is *cgotorch.Error: this package cannot import them.
type Core[X, T, D, E any] interface {
	// Ready fails if the core cannot be used.
	Ready() error
	// Check turns a status of the core into an error of op, and frees the status. For a nil status it
	// returns nil.
	Check(op string, status *ct.Status) error
	// Caller returns the file and line of the innermost frame that belongs to the program.
	Caller() string
	// StreamName returns the name of the last stream with this number. It returns false if cgotorch
	// has no name for the number.
	StreamName(id uint64) (string, bool)
	// Waits must be called before op waits for the device on purpose. It fails the Do of the calling
	// goroutine if this Do uses NoWaits.
	Waits(op string)
	// Device returns a device as the core knows it.
	Device(d D) ct.Device
	// Operator returns an operator of LibTorch by its name, such as "aten::fft_fft". The operator is
	// looked up at its first call.
	Operator(name string) Operator[X]

	// Prepare returns x and `tensors` for a call of the core. It fails x's Do if a tensor is closed.
	// The caller keeps the tensors alive until the call has returned.
	Prepare(x X, op string, tensors []T) (ct.Exec, []*ct.Tensor)
	// Must ends the call. It fails x's Do if the status is an error, or if the call has waited under
	// NoWaits. It frees the status.
	Must(x X, op string, status *ct.Status, tensors []T)
	// Own returns a new handle as a tensor that x's Do owns.
	Own(x X, h *ct.Tensor) T
	// Explain adds a place to the error of x's Do, if an operator has failed. A cure, if it is not "",
	// takes the place of the one that the error names. A second place is not added.
	Explain(x X, place, cure string)
	// Failure returns the error of x's Do, or nil if no operator of it has failed. The caller may
	// change the Message.
	Failure(x X) E
	// Watched reports whether x comes from NoWaits. Unwatched returns an Exec that equals x, but does
	// not come from NoWaits.
	Watched(x X) bool
	Unwatched(x X) X
	// Uncaptured returns an Exec whose work is not part of the graph that x captures, if it does. Its
	// work is enqueued at once, before the launches, and cannot draw random numbers.
	Uncaptured(x X) X
	// InGraph reports whether x's work belongs to a captured function or to its warm-up run.
	InGraph(x X) bool

	// Observe adds an observer to x's Do and to the later Dos of its stream. Unobserve removes it, and
	// reports whether it was there.
	Observe(x X, o Observer[X, T])
	Unobserve(x X, o Observer[X, T]) bool

	// Values returns the values that packages keep with x. With returns an Exec that equals x, but
	// has these values.
	Values(x X) *Values
	With(x X, v *Values) X
	// Notes returns the place of the values that packages keep with t.
	Notes(t T) **Values
	// Version returns the number of in-place writes to t so far.
	Version(t T) int
	// StorageBytes returns the size of the memory in which t and its views lie.
	StorageBytes(t T) int64
	// IsLeaf reports whether t is a leaf that requires a gradient.
	IsLeaf(t T) bool
	// HasGrad reports whether `grad` is the tensor that t.Grad has returned last.
	HasGrad(t, grad T) bool
}

// Operator is an operator of LibTorch.
type Operator[X any] interface {
	// Schema returns the operator's schema.
	Schema() (string, error)
	// Begin begins a call of the operator. The result is an opcall.Call.
	Begin(x X) any
}

// An Observer follows a Do. Its methods run on the Do's thread, or on the thread of a backward that
// calls a function again. They must not unwind.
type Observer[X, T any] interface {
	// Before is called before each call of the Do.
	Before(x X, op string)
	// After is called after each call of the core that has succeeded. `kept` are the
	// arguments of an operator that no Do owns. For other calls `kept` is nil.
	After(x X, op string, kept []T)
	// End is called when a Do ends. An observer of a stream gets one End for each Do.
	End()
}

// registered is the Core of package cgotorch. It is set while the program starts.
var registered any

// Register stores the Core of package cgotorch. It is called once.
func Register(core any) { registered = core }

// Registered returns what Register has stored.
func Registered() any { return registered }
