package archive

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/inflate"
)

// directoryStream goes through a directory in the order of the names. It does not follow symbolic
// links.
type directoryStream struct {
	shard   *Shard
	entries []Entry
	current Entry
	memory  *arena.Arena
}

func (s *Shard) openDirectory(r reading) (*directoryStream, error) {
	all := &directoryStream{shard: s, memory: r.memory}
	err := fs.WalkDir(s.root.tree(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil && !utf8.ValidString(name) {
			return s.unreadable(err, "%s: the name is not UTF-8; rename it", Printable(name))
		}
		if err != nil {
			return s.unreadable(err, "%s: %v; make it readable or move it away", Printable(name), bare(err))
		}
		if name == "." {
			return nil
		}
		e := Entry{Number: len(all.entries) + 1, Name: name, size: -1, kind: specialFile}
		switch {
		case d.IsDir():
			e.kind = subdirectory
		case d.Type()&fs.ModeSymlink != 0:
			e.kind = symbolicLink
		case d.Type().IsRegular():
			e.kind = regularFile
		}
		all.entries = append(all.entries, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (s *directoryStream) Next() (Entry, error) {
	if len(s.entries) == 0 {
		return Entry{}, io.EOF
	}
	s.current, s.entries = s.entries[0], s.entries[1:]
	return s.current, nil
}

func (s *directoryStream) Content() ([]byte, error) { return s.shard.readFile(s.current, s.memory) }

func (s *directoryStream) good() int64           { return math.MaxInt64 }
func (s *directoryStream) index() *inflate.Index { return nil }

func (s *directoryStream) Close() {}

// readFile returns the content of a file below the directory. An error of readFile concerns only
// that file.
func (s *Shard) readFile(e Entry, memory *arena.Arena) ([]byte, error) {
	into := memory
	if s.timeout > 0 { // a read that timed out may still write to its memory
		into = nil
	}
	data, err := attempt(s.patience, func() ([]byte, error) { return s.readOnce(e, into) })
	if bad := (*Error)(nil); err != nil && !errors.As(err, &bad) {
		err = s.badMember(e, err, "%v", bare(err))
	}
	if into != memory && err == nil {
		read := data
		data = memory.Take(len(read))
		copy(data, read)
	}
	return data, err
}

// readOnce reads a file. It returns an *Error for a failure that a second try cannot mend.
func (s *Shard) readOnce(e Entry, memory *arena.Arena) ([]byte, error) {
	f, err := s.root.open(e.Name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, s.badMember(e, nil, "no longer a file")
	}
	e.size = info.Size()
	if bad := s.tooLarge(e); bad != nil {
		return nil, bad
	}
	buf := memory.Take(int(e.size))
	_, err = io.ReadFull(f, buf)
	if err == nil || err == io.EOF && e.size == 0 {
		return buf, nil
	}
	memory.Give(buf)
	if errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF {
		return nil, s.badMember(e, err, "changed while it was being read")
	}
	return nil, err
}
