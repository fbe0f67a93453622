package archive

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The kinds of failure. Package imageloader says what they mean.
var (
	ErrArchive        = errors.New("unreadable archive")
	ErrTruncated      = fmt.Errorf("archive cut short: %w", io.ErrUnexpectedEOF)
	ErrNoImages       = errors.New("no images")
	ErrBadMember      = errors.New("unusable image")
	ErrUnknownClass   = errors.New("unknown class")
	ErrInvalidOptions = errors.New("invalid options")
)

// Error is an error about an archive or about one of its members.
type Error struct {
	Path   string // the archive, as given to Open or Scan
	Member int    // number of the member in the archive's order, from 1. 0 when the error is about no member
	Name   string // name of the member
	Reason string // the fault, and what to do
	Kind   error  // ErrArchive or another error of this package, or the decoder's, for errors.Is
	Cause  error  // the error of a lower layer, or nil when that error adds nothing
}

// Error returns one line: "imageloader: train.tgz: member 812 (cat/9.jpg): truncated JPEG".
func (e *Error) Error() string {
	if e.Member == 0 {
		return fmt.Sprintf("imageloader: %s: %s", e.Path, e.Reason)
	}
	return fmt.Sprintf("imageloader: %s: member %d (%s): %s", e.Path, e.Member, Printable(e.Name), e.Reason)
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// Fatal returns the error for an unusable image when no image may be skipped.
func Fatal(bad *Error) *Error {
	with := *bad
	with.Reason += "; remove it, or let some be skipped with Options.Reading.MaxSkipRate"
	return &with
}

// Printable returns a name from an archive, in a form for messages. It quotes a name that could
// disturb a terminal or a line-based log. It shortens a name that is longer than any file system
// allows.
func Printable(name string) string {
	const most = 4096
	if len(name) > most {
		return Printable(strings.ToValidUTF8(name[:100], "")) + fmt.Sprintf("… (%d bytes)", len(name))
	}
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name {
		return quoted
	}
	return name
}
