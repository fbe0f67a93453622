package archive

import (
	"context"
	"errors"
	"io"

	"github.com/streamtorch/streamtorch/internal/inflate"
)

// pass goes through a shard and makes its table.
type pass struct {
	Stream
	shard *Shard
	table table
	cut   error // the error of a shard that is cut short, if that is allowed
}

func (s *Shard) pass(ctx context.Context, r reading) (*pass, error) {
	stream, err := s.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return &pass{Stream: stream, shard: s}, nil
}

func (p *pass) Next() (Entry, error) {
	e, err := p.Stream.Next()
	if err == nil && p.shard.format != directory {
		p.table.entries = append(p.table.entries, e)
	}
	return e, p.forgive(err)
}

func (p *pass) Content() ([]byte, error) {
	data, err := p.Stream.Content()
	return data, p.forgive(err)
}

// forgive changes the error of a shard that is cut short to io.EOF, if
// Options.Reading.AllowTruncated is set.
func (p *pass) forgive(err error) error {
	if p.shard.AllowTruncated && errors.Is(err, ErrTruncated) {
		p.cut = err
		return io.EOF
	}
	return err
}

// keep is called when a whole shard has been read. It keeps the inflate.Index of a .tgz in the
// shard. It stores the table in an index file, unless the shard is cut short or the table can be
// made again quickly.
func (p *pass) keep(small bool) error {
	const many = 50_000 // members of a .tar. A pass through 50,000 members takes some 0.1 s
	s := p.shard
	known := s.content.Load() != nil
	if s.format == gzipTar && !known {
		p.table.gzip = p.Stream.index()
		s.content.Store(inflate.NewFile(s.file, p.table.gzip, s.Memory))
	}
	large := s.format == gzipTar && !small || s.format == plainTar && len(p.table.entries) > many
	if !large || s.NoIndexFile || known || p.cut != nil {
		return nil
	}
	path, err := s.storeTable(&p.table)
	if err != nil {
		s.Counts.note(func(n *Notes) { n.IndexError = err.Error() }) // the next Open works without the index file
	} else {
		s.Counts.indexFile(path)
	}
	return nil
}
