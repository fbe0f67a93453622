package imageloader

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// inflater reads a gzip file, of one part or several, to its last byte. Where gzip data are followed by anything but more
// gzip data or zeros, it fails: that is how a damaged or badly joined file looks. Its errors are complete.
type inflater struct {
	archive *archive
	ctx     context.Context
	source  *bufio.Reader
	gzip    *gzip.Reader
	err     error // the first, io.EOF included; later reads return it again
}

func (a *archive) inflate(ctx context.Context) *inflater {
	file := io.NewSectionReader(a.file, 0, a.info.Size())
	z := &inflater{archive: a, ctx: ctx, source: bufio.NewReaderSize(cancelled{ctx, file}, 256<<10)}
	var err error
	if z.gzip, err = gzip.NewReader(z.source); err != nil {
		z.err = z.explain(err)
		return z
	}
	z.gzip.Multistream(false)
	return z
}

// Read implements io.Reader.
func (z *inflater) Read(p []byte) (int, error) {
	if z.err != nil {
		return 0, z.err
	}
	n, err := z.gzip.Read(p)
	if err == io.EOF {
		err = z.nextPart()
	}
	if err != nil {
		z.err = z.explain(err)
	}
	if n > 0 {
		return n, nil
	}
	return 0, z.err
}

// nextPart begins the next part, or returns io.EOF after the last.
func (z *inflater) nextPart() error {
	next, err := z.source.Peek(2)
	if len(next) == 2 && next[0] == 0x1f && next[1] == 0x8b {
		if err := z.gzip.Reset(z.source); err != nil {
			return err
		}
		z.gzip.Multistream(false)
		return nil
	}
	if err != nil && err != io.EOF {
		return err
	}
	for { // zeros are padding, as tapes have it
		b, err := z.source.ReadByte()
		if err != nil {
			return err
		}
		if b != 0 {
			return z.archive.unreadable(nil, "other data follow the gzip data: the file is damaged or was joined wrongly; copy or download it again")
		}
	}
}

// explain turns an error of the gzip reader into a complete one. It passes io.EOF and complete errors on.
func (z *inflater) explain(err error) error {
	var complete *Error
	var corrupt flate.CorruptInputError
	switch {
	case z.ctx.Err() != nil:
		return context.Cause(z.ctx)
	case errors.As(err, &complete):
		return err
	case err == io.EOF && z.gzip != nil:
		return io.EOF
	case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
		return z.archive.unreadable(io.ErrUnexpectedEOF, "cut short: its gzip data end early; copy or download it again")
	case errors.Is(err, gzip.ErrChecksum):
		return z.archive.unreadable(err, "damaged: its content does not match the gzip checksum; copy or download it again")
	case errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return z.archive.unreadable(err, "damaged: its gzip data are invalid; copy or download it again")
	}
	return z.archive.unreadable(err, "%v", bare(err))
}

// cancelled is a reader that fails once ctx has ended.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c cancelled) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
