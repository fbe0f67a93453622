package cgotorch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// The kinds of failures. A program tests an error for a kind with [errors.Is].
var (
	ErrInvalidArgument = errors.New("invalid argument")
	ErrUnsupported     = errors.New("not supported on this device or dtype")
	ErrOutOfMemory     = errors.New("out of memory")
	// ErrDeviceLost means that every later call on the device fails too. State in host memory can
	// still be saved.
	ErrDeviceLost    = errors.New("device lost")
	ErrNoDevice      = errors.New("no such device")
	ErrNotFound      = errors.New("no such operator")
	ErrMisuse        = errors.New("misuse of an Exec or a Stream")
	ErrNotCapturable = errors.New("cannot be captured") // the work cannot be a part of a [Graph]
	ErrClosed        = errors.New("closed")
	ErrStreamRace    = errors.New("stream race")                       // see [CheckStreams]
	ErrWaited        = errors.New("waited for the device")             // in a Do that uses [Exec.NoWaits]
	ErrGroupFailed   = errors.New("the group of processes has failed") // see package distributed
	ErrStale         = errors.New("out of date")                       // a value that a [Graph] depends on has changed since the capture: see [Exec.DependsOn]
)

// kinds maps the core's status codes to kinds of errors. An internal failure of the core or of
// LibTorch has no kind.
var kinds = [...]error{
	ct.InvalidArgument: ErrInvalidArgument,
	ct.Unsupported:     ErrUnsupported,
	ct.OutOfMemory:     ErrOutOfMemory,
	ct.DeviceLost:      ErrDeviceLost,
	ct.NoDevice:        ErrNoDevice,
	ct.NotFound:        ErrNotFound,
	ct.Misuse:          ErrMisuse,
	ct.Internal:        nil,
	ct.NotCapturable:   ErrNotCapturable,
	ct.GroupFailed:     ErrGroupFailed,
}

// Error is the failure of one call.
type Error struct {
	Op      string // the operator or function, such as "aten::conv2d" or "Stream.Record"
	Kind    error  // a kind such as [ErrOutOfMemory], or nil for a failure without a kind
	Message string // the text of LibTorch or of this library
	// Shapes has the dtype and shape of each tensor argument, as in "float32[2 3], float32[4 5]". It
	// is "" for a call without tensors.
	Shapes string
	Caller string // file:line of the call in the program, outside this library; "" where unknown
	Err    error  // the cause, in addition to the kind; or nil
	place  string // the node of a pt2.Program that made the call, or ""
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cgotorch: ")
	b.WriteString(e.Op)
	if e.Shapes != "" {
		fmt.Fprintf(&b, "(%s)", e.Shapes)
	}
	if e.Caller != "" {
		fmt.Fprintf(&b, " at %s", e.Caller)
	}
	if e.place != "" {
		fmt.Fprintf(&b, ", %s", e.place)
	}
	if e.Message != "" {
		b.WriteString(": ")
		b.WriteString(e.Message)
	}
	if e.Err != nil {
		b.WriteString(": " + strings.TrimPrefix(e.Err.Error(), "cgotorch: "))
	}
	return b.String()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// kindOf returns the kind that err wraps, or nil.
func kindOf(err error) error {
	var e *Error
	if errors.As(err, &e) && e != nil && e.Kind != nil {
		return e.Kind
	}
	for _, kind := range []error{
		ErrInvalidArgument, ErrUnsupported, ErrOutOfMemory, ErrDeviceLost, ErrNoDevice, ErrNotFound,
		ErrMisuse, ErrNotCapturable, ErrClosed, ErrStreamRace, ErrWaited, ErrStale, ErrGroupFailed,
	} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return nil
}

// refuse returns an error for a call that this library refuses before it calls LibTorch. The Caller
// of the error is the line of the program, even if `refuse` is called deep in the library.
func refuse(op string, kind error, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Caller: caller(), Message: fmt.Sprintf(format, args...)}
}

// check turns a status of the core into an error of `op`, and frees the status. For a nil status it
// returns nil.
func check(op string, status *ct.Status) error {
	if status == nil {
		return nil
	}
	return statusError(op, status)
}

func statusError(op string, status *ct.Status) *Error {
	e := &Error{Op: op, Kind: kinds[ct.StatusCode(status)], Message: cured(op, ct.StatusMessage(status)), Caller: caller()}
	if c := theCheck.Load(); c != nil {
		if at := (*c).caller(site(ct.StatusSite(status))); at != "" {
			e.Message += "; the forward is at " + at
		}
	}
	ct.StatusFree(status)
	return e
}

// caller returns the file and line of the innermost frame that belongs to the program.
func caller() string { return place.Caller() }
