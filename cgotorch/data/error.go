package data

import (
	"errors"
	"fmt"
)

// Errors to test for with [errors.Is]. After Close that is [cgotorch.ErrClosed].
var (
	// ErrBadRow says that a row of a file, or a sample of a sequence, does not fit its fields.
	ErrBadRow = errors.New("unusable row")
	// ErrTooLarge says that a row, a field or a sample exceeds its limit. It is an ErrBadRow too.
	ErrTooLarge = fmt.Errorf("too large: %w", ErrBadRow)
	// ErrInvalidOptions says that a field or an option is out of its range.
	ErrInvalidOptions = errors.New("invalid options")
	// ErrInvalidState says that a State does not belong to this loader.
	ErrInvalidState = errors.New("invalid state")
	// ErrBusy says that another epoch of the loader is still being read.
	ErrBusy = errors.New("an epoch is being read")
)

// Error is an error about one row of a data set.
type Error struct {
	Source string // the file, or the name of the data set
	Row    int64  // the row, from 1; a header is not counted. 0 when the error is about no row
	Column string // the column or field. "" when the error is about no column
	Reason string // the fault
	Kind   error  // ErrBadRow or another error of this package
	Cause  error  // the error of a lower layer, or nil
}

// Error returns one line, such as: data: train.csv: row 812, column "age": "x" is no float32.
func (e *Error) Error() string {
	text := "data: " + e.Source
	if e.Row > 0 {
		text += fmt.Sprintf(": row %d", e.Row)
	}
	if e.Column != "" {
		if e.Row > 0 {
			text += ","
		} else {
			text += ":"
		}
		text += fmt.Sprintf(" column %q", e.Column)
	}
	return text + ": " + e.Reason
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// quoted returns a value of a file for a message. It shortens a long value.
func quoted(value []byte) string {
	const most = 40
	if len(value) > most {
		return fmt.Sprintf("%q…", value[:most])
	}
	return fmt.Sprintf("%q", value)
}
