package decode

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/internal/ctd"
	"github.com/streamtorch/streamtorch/internal/signature"
)

// The faults of an image or a call, for errors.Is.
var (
	ErrInvalidArgument = errors.New("decode: invalid argument")
	ErrOutOfMemory     = errors.New("decode: out of memory")
	ErrNotAnImage      = errors.New("decode: not an image")           // the file has zero bytes, or no known format
	ErrTruncated       = errors.New("decode: truncated image")        // the data end before the last pixel
	ErrCorrupt         = errors.New("decode: corrupt image")          // the data contradict their format or checksum
	ErrTooLarge        = errors.New("decode: image too large")        // more pixels or scans than allowed
	ErrTooSmall        = errors.New("decode: image too small")        // smaller than the crop
	ErrUnsupported     = errors.New("decode: unsupported image kind") // valid, but not decoded here
	ErrInternal        = errors.New("decode: internal error")         // a defect of this library or of a format's decoder
	ErrClosed          = errors.New("decode: pool is closed")
)

// Error is the fault of one image. Its text is only the reason, such as "truncated JPEG". The
// caller adds the name of the file.
type Error struct {
	Reason string
	Kind   error // ErrTruncated or another error of this package, for errors.Is
}

// Error returns the reason.
func (e *Error) Error() string { return e.Reason }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func refuse(kind error, format string, args ...any) *Error {
	return &Error{Reason: fmt.Sprintf(format, args...), Kind: kind}
}

// take returns an error for a status and frees the status. It returns nil for NULL.
func take(status *ctd.Status) error {
	if status == nil {
		return nil
	}
	defer ctd.StatusFree(status)
	return &Error{Reason: ctd.StatusMessage(status), Kind: kindOf(ctd.StatusCode(status))}
}

// named returns err, or where the data are of a known kind that is not decoded, an error that names
// this kind.
func named(err error, data []byte) error {
	if err == nil {
		return nil
	}
	kind, known := signature.Of(data[:min(len(data), 512)])
	switch {
	case known && kind.Image:
		return refuse(ErrUnsupported, "%s, which is not decoded: %s", kind.Name, kind.Cure)
	case known:
		return refuse(ErrNotAnImage, "not an image but %s: %s", kind.Name, kind.Cure)
	}
	return err
}

func kindOf(code int32) error {
	switch code {
	case ctd.InvalidArgument:
		return ErrInvalidArgument
	case ctd.OutOfMemory:
		return ErrOutOfMemory
	case ctd.NotAnImage:
		return ErrNotAnImage
	case ctd.Truncated:
		return ErrTruncated
	case ctd.Corrupt:
		return ErrCorrupt
	case ctd.TooLarge:
		return ErrTooLarge
	case ctd.TooSmall:
		return ErrTooSmall
	case ctd.Unsupported:
		return ErrUnsupported
	}
	return ErrInternal
}
