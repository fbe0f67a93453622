package cgotorch

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// The kinds of failures that callers act on. Test for them with [errors.Is].
var (
	ErrInvalidArgument = errors.New("invalid argument")
	ErrUnsupported     = errors.New("not supported on this device or dtype")
	ErrOutOfMemory     = errors.New("out of memory")
	// Every later call on that device fails too. Host state can still be saved.
	ErrDeviceLost    = errors.New("device lost")
	ErrNoDevice      = errors.New("no such device")
	ErrNotFound      = errors.New("no such operator")
	ErrMisuse        = errors.New("misuse of an Exec or a Stream")
	ErrNotCapturable = errors.New("cannot be captured") // as part of a [Graph]
	ErrClosed        = errors.New("closed")
	ErrStreamRace    = errors.New("stream race")           // see [CheckStreams]
	ErrWaited        = errors.New("waited for the device") // in a Do that asked for [Exec.NoWaits]
	ErrStale         = errors.New("out of date")           // of a [Graph]: something that was captured has changed
)

// kinds are the kinds of errors by the core's codes. A failure inside the core or LibTorch has
// none.
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
}

// Error is the failure of one call.
type Error struct {
	Op      string // the operator or function, such as "aten::conv2d" or "Stream.Record"
	Kind    error  // a sentinel of this package, such as [ErrOutOfMemory]; nil for a failure of no kind
	Message string // LibTorch's text, or ours
	// Shapes are the dtype and shape of each tensor argument, as in "float32[2 3], float32[4 5]";
	// "" for none.
	Shapes string
	Caller string // file:line of the call in the program, outside this library; "" where unknown
	Err    error  // a cause besides the kind, or nil
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
	if e.Message != "" {
		b.WriteString(": ")
		b.WriteString(e.Message)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
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

// refuse returns the error of a call that the library refuses by itself. The caller is that of the
// program, however deep in the library refuse is called.
func refuse(op string, kind error, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Caller: caller(), Message: fmt.Sprintf(format, args...)}
}

// check frees a status and returns it as an error of op.
func check(op string, status *ct.Status) error {
	if status == nil {
		return nil
	}
	return statusError(op, status)
}

func statusError(op string, status *ct.Status) *Error {
	e := &Error{Op: op, Kind: kinds[ct.StatusCode(status)], Message: ct.StatusMessage(status), Caller: caller()}
	ct.StatusFree(status)
	return e
}

const modulePath = "github.com/streamtorch/streamtorch/"

// caller returns the file and line of the innermost frame of the program: of another module, an
// example or a test.
func caller() string {
	var pcs [64]uintptr
	return callerIn(pcs[:runtime.Callers(2, pcs[:])], ownFrame)
}

// callerIn returns the file and line of the innermost frame that is not passed over.
func callerIn(pcs []uintptr, passOver func(runtime.Frame) bool) string {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.File != "" && !passOver(f) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}

func ownFrame(f runtime.Frame) bool {
	if strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "iter.") {
		return true
	}
	rest, own := strings.CutPrefix(f.Function, modulePath)
	if !own || strings.HasSuffix(f.File, "_test.go") {
		return false
	}
	return strings.HasPrefix(rest, "cgotorch") || strings.HasPrefix(rest, "prefetcher")
}
