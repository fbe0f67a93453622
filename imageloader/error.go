package imageloader

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The kinds of failure, for errors.Is. errors.Is also finds a cause from the operating system,
// such as fs.ErrNotExist.
var (
	// ErrArchive says that the archive itself cannot be read. It is missing, damaged, cut short, or
	// of an unknown format.
	ErrArchive = errors.New("unreadable archive")
	// ErrTruncated says that the file is cut short. The error is also an ErrArchive and an
	// io.ErrUnexpectedEOF. Options.AllowTruncated reads the part before the cut.
	ErrTruncated = fmt.Errorf("archive cut short: %w", io.ErrUnexpectedEOF)
	// ErrNoImages says that the archive has no images, or that Options.Split has none.
	ErrNoImages = errors.New("no images")
	// ErrBadMember says that a member is not a usable image, or that more members are unusable than
	// Options.MaxSkipRate allows.
	ErrBadMember = errors.New("unusable image")
	// ErrUnknownClass says that a member's class is not among the given classes, or that it is not
	// clear where the labels are from.
	ErrUnknownClass = errors.New("unknown class")
	// ErrInvalidOptions says that a value is out of its range. The value is in Options, or in a file
	// that Options names.
	ErrInvalidOptions = errors.New("invalid options")
	// ErrInvalidState says that a State does not belong to this loader.
	ErrInvalidState = errors.New("invalid state")
	// ErrBusy says that another epoch of the loader is still being read.
	ErrBusy = errors.New("an epoch is being read")
	// ErrClosed says that the loader is closed.
	ErrClosed = errors.New("loader is closed")
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
	return fmt.Sprintf("imageloader: %s: member %d (%s): %s", e.Path, e.Member, printable(e.Name), e.Reason)
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// fatal returns the error for an unusable image when no image may be skipped.
func fatal(bad *Error) *Error {
	with := *bad
	with.Reason += "; remove it, or let some be skipped with Options.MaxSkipRate"
	return &with
}

// printable returns a name from an archive, in a form for messages. It quotes a name that could
// disturb a terminal or a line-based log. It shortens a name that is longer than any file system
// allows.
func printable(name string) string {
	const most = 4096
	if len(name) > most {
		return printable(strings.ToValidUTF8(name[:100], "")) + fmt.Sprintf("… (%d bytes)", len(name))
	}
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name {
		return quoted
	}
	return name
}
