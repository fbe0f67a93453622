package archive

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/streamtorch/streamtorch/internal/inflate"
)

// inflater reads a gzip file of one or more members to its last byte. Only more gzip data or
// zeros may follow gzip data. inflater fails on any other data, because a damaged or badly joined
// file has such data. Its errors are *Error, io.EOF, or the cause of the context's end.
type inflater struct {
	shard  *Shard
	ctx    context.Context
	reader *inflate.Reader
	at     int64         // bytes of the content that were read or passed over so far
	busy   time.Duration // the time that the function `count` has counted so far
	err    error         // the first error, io.EOF included. Later reads return the same error
}

func (s *Shard) inflate(ctx context.Context, workers int) *inflater {
	return &inflater{
		shard: s, ctx: ctx, reader: inflate.NewReader(ctx, s.file, s.info.Size(), inflate.Options{Workers: workers}),
	}
}

// count adds the inflating time since the last count to the statistics.
func (z *inflater) count() {
	busy := z.reader.Busy()
	z.shard.counts.Inflate.Add(int64(busy - z.busy))
	z.busy = busy
}

// Read implements io.Reader.
func (z *inflater) Read(p []byte) (int, error) {
	if z.err != nil {
		return 0, z.err
	}
	n, err := z.reader.Read(p)
	z.passed(int64(n), err)
	if n > 0 {
		return n, nil
	}
	return 0, z.err
}

// Seek implements io.Seeker, but only forwards. With Seek a tar.Reader passes over a member without
// a copy of its content. At the end of the content Seek fails with io.ErrUnexpectedEOF.
func (z *inflater) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent || offset < 0 {
		return z.at, errors.ErrUnsupported
	}
	if z.err == nil {
		n, err := z.reader.Skip(offset)
		if z.passed(n, err); n == offset {
			return z.at, nil
		}
	}
	if z.err == io.EOF {
		return z.at, io.ErrUnexpectedEOF
	}
	return z.at, z.err
}

// passed notes that the reader has passed n bytes, and then failed with err.
func (z *inflater) passed(n int64, err error) {
	z.at += n
	if err != nil {
		z.err = z.shard.explain(z.ctx, err)
	}
}

// explain returns an *Error for an error of package inflate. It returns io.EOF unchanged. When
// the context has ended, it returns the context's cause.
func (s *Shard) explain(ctx context.Context, err error) error {
	switch {
	case err == io.EOF:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, inflate.ErrIndex) && s.indexFile != "" && s.unchanged() == nil:
		return s.unreadable(err, "its index file %s is damaged or of another archive; delete that file and open it again", s.indexFile)
	case errors.Is(err, inflate.ErrIndex), errors.Is(err, io.ErrUnexpectedEOF): // This case comes before those below, because an ErrIndex wraps some of their errors.
		return s.unreadable(err, "changed while it was being read; open it again")
	case errors.Is(err, inflate.ErrTruncated):
		return s.unreadable(ErrTruncated, "cut short: its gzip data end early; copy or download it again")
	case errors.Is(err, inflate.ErrChecksum):
		return s.unreadable(err, "damaged: its content does not match the gzip checksum; copy or download it again")
	case errors.Is(err, inflate.ErrTrailing):
		return s.unreadable(err, "other data follow the gzip data: the file is damaged or was joined wrongly; copy or download it again")
	case errors.Is(err, inflate.ErrCorrupt), errors.Is(err, inflate.ErrNotGzip):
		return s.unreadable(err, "damaged: its gzip data are invalid; copy or download it again")
	}
	return s.unreadable(err, "%v", bare(err))
}
