package archive

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/inflate"
)

// Note [Reading a .tar]
//
// A .tar is read with pread and not mapped into memory. A mapped file that shrinks gives a
// SIGBUS, but it must give an error. Mapped pages would also count as resident memory.
//
// With Options.Reading.AllowTruncated a pass ends where the file ends. The members that lie wholly
// before the end are read as a whole archive. The index of this archive is not stored in a file.

// tarStream goes through a .tar or .tgz.
type tarStream struct {
	shard   *Shard
	tar     *tar.Reader
	number  int
	current Entry
	bytes   int64 // memory of a table of the members so far
	memory  *arena.Arena

	plain   *endWatch // a .tar
	inflate *inflater // a .tgz
}

func (s *Shard) openTar(ctx context.Context, r reading) *tarStream {
	if s.format == gzipTar {
		z := s.inflate(ctx, cmp.Or(r.workers, s.Workers))
		return &tarStream{shard: s, tar: tar.NewReader(z), inflate: z, memory: r.memory}
	}
	plain := &endWatch{SectionReader: io.NewSectionReader(s.file, 0, s.info.Size())}
	return &tarStream{shard: s, tar: tar.NewReader(plain), plain: plain, memory: r.memory}
}

func (s *tarStream) Next() (Entry, error) {
	for {
		h, err := s.tar.Next()
		if err == io.EOF {
			return Entry{}, s.finish()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // no error here, because shard.admit judges names
			return Entry{}, s.explain(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		s.number++
		if s.bytes += int64(len(h.Name)) + entryBytes; s.bytes > s.shard.mostTable() {
			return Entry{}, s.shard.unreadable(nil, "a decompression bomb: after %d members the list of their names takes %d MiB, far more than the file; unpack it and pack the images alone",
				s.number, s.bytes>>20)
		}
		s.current = Entry{Number: s.number, Name: h.Name, size: h.Size, kind: kindOf(h)}
		if s.plain != nil {
			s.current.offset, _ = s.plain.Seek(0, io.SeekCurrent)
		} else {
			s.inflate.count()
			s.current.offset = s.inflate.at // the content begins here: a tar.Reader reads no further than the header
		}
		return s.current, nil
	}
}

func (s *tarStream) Content() ([]byte, error) {
	buf := s.memory.Take(int(s.current.size))
	if _, err := io.ReadFull(s.tar, buf); err != nil {
		s.memory.Give(buf)
		return nil, s.explain(err)
	}
	return buf, nil
}

func (s *tarStream) index() *inflate.Index { return s.inflate.reader.Index() }

func (s *tarStream) good() int64 {
	if s.plain != nil {
		return s.plain.Size()
	}
	return s.inflate.at
}

func (s *tarStream) Close() {
	if s.inflate != nil {
		s.inflate.reader.Close()
		s.inflate.count()
	}
}

// finish checks the data after the last member. It returns io.EOF when the archive is whole.
func (s *tarStream) finish() error {
	if s.plain != nil && s.plain.ended {
		return s.shard.unreadable(ErrTruncated, "cut short: it has no end marker after member %d; copy or download it again", s.number)
	}
	var rest io.Reader = s.plain
	if s.inflate != nil {
		// The checksum of a single gzip member can replace a missing end marker. If there are
		// several gzip members, others may be missing, so an end marker is needed.
		if z := s.inflate; z.err == io.EOF && s.number > 0 && (z.reader.Members() > 1 || z.at%512 != 0) {
			return s.shard.unreadable(ErrTruncated, "cut short: it has no end marker after member %d; copy or download it again", s.number)
		}
		rest = s.inflate
	}
	if _, err := io.Copy(onlyZeros{}, rest); errors.Is(err, errNotZero) {
		return s.shard.unreadable(err, "there is more behind the end marker after member %d, as where archives were joined; join them with tar --concatenate, or unpack them and pack them together", s.number)
	} else if err != nil {
		return err
	}
	return io.EOF
}

// onlyZeros is a writer for the padding after an archive. It accepts only zeros.
type onlyZeros struct{}

var errNotZero = errors.New("not padding")

func (onlyZeros) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != 0 {
			return 0, errNotZero
		}
	}
	return len(p), nil
}

// explain returns a complete *Error for an error of the tar reader. For a .tgz it looks for a
// fault of the gzip data first. A flipped bit gives a wrong tar header long before the reader
// reaches the checksum.
func (s *tarStream) explain(err error) error {
	if s.inflate != nil {
		if _, below := io.Copy(io.Discard, s.inflate); below != nil {
			return below
		}
	}
	switch {
	case s.inflate != nil && s.number == 0 && errors.Is(err, tar.ErrHeader):
		return s.shard.unreadable(err, "gzip data, but no tar archive inside; .tgz, .tar.gz, .tar and directories can be read")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return s.shard.unreadable(ErrTruncated, "cut short in or after member %d (%s); copy or download it again", max(s.number, 1), Printable(s.current.Name))
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return s.shard.unreadable(err, "damaged: invalid tar header after member %d (%s); copy or download it again", s.number, Printable(s.current.Name))
	}
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return s.shard.unreadable(err, "after member %d (%s): %v", s.number, Printable(s.current.Name), path.Err)
	}
	return s.shard.unreadable(err, "damaged after member %d (%s): %v; copy or download it again", s.number, Printable(s.current.Name), err)
}

// kindOf returns the kind of the member with this header.
func kindOf(h *tar.Header) entryKind {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return sparseFile
		}
	}
	switch h.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont: // every reader takes '\x00' and '7' for regular files
		return regularFile
	case tar.TypeDir:
		return subdirectory
	case tar.TypeSymlink:
		return symbolicLink
	case tar.TypeLink:
		return hardLink
	case tar.TypeGNUSparse:
		return sparseFile
	}
	return specialFile
}

// endWatch notices when its reader reaches the end of the file. In a whole tar archive, the
// reader stops earlier, at the end marker.
type endWatch struct {
	*io.SectionReader
	ended bool
}

func (w *endWatch) Read(p []byte) (int, error) {
	n, err := w.SectionReader.Read(p)
	if err == io.EOF && len(p) > 0 {
		w.ended = true
	}
	return n, err
}
