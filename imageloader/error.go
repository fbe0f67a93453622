package imageloader

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The kinds of failure, for errors.Is. A cause from the operating system can be tested for as well:
// errors.Is(err, fs.ErrNotExist).
var (
	// ErrArchive says that the archive itself cannot be read: missing, damaged, cut short, or of an
	// unknown format.
	ErrArchive = errors.New("unreadable archive")
	// ErrTruncated says of an ErrArchive that the file is cut short. Options.AllowTruncated reads its
	// good part. It is io.ErrUnexpectedEOF too.
	ErrTruncated = fmt.Errorf("archive cut short: %w", io.ErrUnexpectedEOF)
	// ErrNoImages says that the archive, or the split asked for, has no images.
	ErrNoImages = errors.New("no images")
	// ErrBadMember says that a member is not a usable image, or that more members are unusable than
	// Options.MaxSkipRate allows.
	ErrBadMember = errors.New("unusable image")
	// ErrUnknownClass says that a member's class is not among the classes given.
	ErrUnknownClass = errors.New("unknown class")
	// ErrInvalidOptions says that a value of Options, or in a file of Options, is out of its range.
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
	Name   string // of the member
	Reason string // the fault, and the remedy
	Kind   error  // ErrArchive or another error of this package. errors.Is finds it
	Cause  error  // the error of a lower layer, nil when there is nothing to add
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

// fatal is the error for an unusable image where no image may be skipped.
func fatal(bad *Error) *Error {
	with := *bad
	with.Reason += "; remove it, or let some be skipped with Options.MaxSkipRate"
	return &with
}

// printable returns a name from an archive. It is quoted if it could disturb a terminal or a
// line-based log, and shortened if it is longer than any file system allows.
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
