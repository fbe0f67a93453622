package inflate

import (
	"errors"
	"io"
	"slices"
)

// input is a part of a file in memory. It grows at its end when more bytes are needed.
type input struct {
	file  io.ReaderAt
	size  int64 // bytes of the whole file
	begin int64 // offset in the file of bytes[0]
	bytes []byte

	borrowed bool // the bytes are the caller's, and must not change. They have no room for more
}

// last reports whether the part reaches the end of the file.
func (in *input) last() bool { return in.begin+int64(len(in.bytes)) >= in.size }

// at returns the bytes of the part from an offset in the file on.
func (in *input) at(offset int64) []byte { return in.bytes[offset-in.begin:] }

// grow reads up to n more bytes. If more than 1 MiB of the input lies before the offset `keep`,
// grow drops these bytes first.
func (in *input) grow(n, keep int64) error {
	if gone := keep - in.begin; gone > 1<<20 {
		if in.borrowed {
			in.bytes, in.borrowed = slices.Clone(in.bytes[gone:]), false
		} else {
			in.bytes = in.bytes[:copy(in.bytes, in.bytes[gone:])]
		}
		in.begin += gone
	}
	end := in.begin + int64(len(in.bytes))
	n = min(n, in.size-end)
	had := len(in.bytes)
	in.bytes = slices.Grow(in.bytes, int(n))[:had+int(n)] // append would clear the bytes first
	got, err := in.file.ReadAt(in.bytes[had:], end)
	in.bytes = in.bytes[:had+got]
	if int64(got) == n {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF // the file is shorter than its size
	}
	return err
}
