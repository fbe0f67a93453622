package imageloader

import (
	"errors"

	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
)

// Error is an error about an archive or about one of its members. Its fields are the Path of the
// archive, as given to Open or Scan, the number and the name of the Member, the Reason, the Kind
// and the Cause. Member counts from 1, and is 0 when the error is about no member. Kind is an
// error of this package or of the decoder. Cause is the error of a lower layer, or nil. errors.Is
// finds both.
type Error = archive.Error

// The kinds of failure, for errors.Is. errors.Is also finds a cause from the operating system,
// such as fs.ErrNotExist.
var (
	// ErrArchive says that the archive itself cannot be read. It is missing, damaged, cut short, or
	// of an unknown format.
	ErrArchive = archive.ErrArchive
	// ErrTruncated says that the file is cut short. The error is also an ErrArchive and an
	// io.ErrUnexpectedEOF. Options.Reading.AllowTruncated reads the part before the cut.
	ErrTruncated = archive.ErrTruncated
	// ErrNoImages says that the archive has no images, or that Options.Split has none.
	ErrNoImages = archive.ErrNoImages
	// ErrBadMember says that a member is not a usable image, or that more members are unusable than
	// Options.Reading.MaxSkipRate allows.
	ErrBadMember = archive.ErrBadMember
	// ErrUnknownClass says that a member's class is not among the given classes, or that it is not
	// clear where the labels are from.
	ErrUnknownClass = archive.ErrUnknownClass
	// ErrInvalidOptions says that a value is out of its range. The value is in Options.
	ErrInvalidOptions = archive.ErrInvalidOptions
	// ErrInvalidState says that a State does not belong to this loader.
	ErrInvalidState = errors.New("invalid state")
	// ErrBusy says that another epoch of the loader is still being read.
	ErrBusy = errors.New("an epoch is being read")
	// ErrClosed says that the loader is closed.
	ErrClosed = errors.New("loader is closed")
)
