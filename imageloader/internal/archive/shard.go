package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/inflate"
	"github.com/streamtorch/streamtorch/internal/signature"
)

// format is the kind of a shard. The shard's content decides it.
type format int

const (
	directory format = iota + 1
	plainTar
	gzipTar
)

func (f format) String() string {
	return [...]string{"unknown", "directory", "tar", "gzip-compressed tar"}[f]
}

// shard is one file of an archive, or a directory. It is safe for concurrent use.
type Shard struct {
	Path string
	*Options

	number int32 // number of the shard in its archive
	format format
	file   file        // a .tar or .tgz, else nil
	info   fs.FileInfo // what file.Stat said when the file was opened
	root   folder      // a directory, else nil

	patience
	beside bool        // an index file can be written beside the shard
	labels LabelSource // LabelsFromMembers, or any other value for labels from directories
	cut    atomic.Bool // the file is cut short, and Stats says so

	content   atomic.Pointer[inflate.File] // content of a .tgz whose index is known
	indexFile string                       // the index file of the shard's table, "" without an index file
}

// Stream goes once through a shard, in the shard's order. Its errors are *Error, or the cause of
// the context's end.
type Stream interface {
	// Next goes to the next member. At the end of a whole archive it returns io.EOF.
	Next() (Entry, error)
	// Content returns the content of the member that Next returned. The content lies in memory of
	// the stream's arena. Content may be called at most once for a member. An ErrBadMember
	// concerns only that member.
	Content() ([]byte, error)
	Close()

	// good is called after an error. It returns how many bytes at the beginning of the .tar can be
	// read.
	good() int64
	// index returns the index of a .tgz after its end was reached.
	index() *inflate.Index
}

// reading has the options of a stream.
type reading struct {
	contents bool         // the caller will ask for the contents of images
	memory   *arena.Arena // for the contents. nil means Go's heap
	workers  int          // number of goroutines that inflate a .tgz. 0 means those of the shard
}

// openShard finds out what kind of file is at `path`, and opens the file. The shard must be
// closed.
func openShard(from Files, path string, o *Options) (*Shard, error) {
	s := &Shard{Path: path, Options: o, beside: from.beside()}
	s.patience = patience{retries: max(o.ReadRetries, 0), timeout: o.ReadTimeout, counts: o.Counts}
	info, err := attempt(s.patience, func() (fs.FileInfo, error) { return from.stat(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.unreadable(err, "no such file or directory; check the path")
	} else if errors.Is(err, fs.ErrInvalid) && !s.beside {
		return nil, s.unreadable(err, "no path of a file system; give one such as data/train.tgz, without a slash before it")
	} else if err != nil {
		return nil, s.unreadable(err, "%v", bare(err))
	}
	switch {
	case info.IsDir():
		s.format = directory
		s.root, err = from.folder(path)
	case info.Mode().IsRegular():
		s.file, err = attempt(s.patience, func() (file, error) { return from.open(path) })
	default:
		return nil, s.unreadable(nil, "neither a file nor a directory; a pipe or device has to be written to a file first")
	}
	if err != nil {
		return nil, s.unreadable(err, "%v", bare(err))
	}
	if s.file != nil {
		s.file = steadyFile{s.file, s.patience}
		if err := s.sniff(); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close closes the file. No stream and no read may be running.
func (s *Shard) Close() error {
	if s.root != nil {
		return s.root.Close()
	}
	return s.file.Close()
}

// Open starts a stream at the first member, with contents in Options.Memory. A stream of a .tgz can
// read until ctx ends.
func (s *Shard) Open(ctx context.Context) (Stream, error) {
	return s.open(ctx, reading{contents: true, memory: s.Memory})
}

func (s *Shard) open(ctx context.Context, r reading) (Stream, error) {
	var members Stream
	if s.format == directory {
		files, err := s.openDirectory(r)
		if err != nil {
			return nil, err
		}
		members = files
	} else {
		if err := s.unchanged(); err != nil {
			return nil, err
		}
		members = s.openTar(ctx, r)
	}
	if s.labels == LabelsFromMembers {
		return &sampleStream{Stream: members, shard: s, reading: r, known: map[string]string{}}, nil
	}
	return members, nil
}

// Read returns the content of a sample in a .tar or a directory. The content lies in
// Options.Memory.
func (s *Shard) Read(image Sample) ([]byte, error) {
	e, memory := image.entry(), s.Memory
	if s.format == directory {
		return s.readFile(e, memory)
	}
	buf := memory.Take(int(e.size))
	_, err := s.file.ReadAt(buf, e.offset)
	if err == nil {
		return buf, nil
	}
	memory.Give(buf)
	if err == io.EOF {
		return nil, s.unreadable(err, "changed while it was being read; open it again")
	}
	return nil, s.unreadable(err, "%v", bare(err))
}

// Inflates reports whether the shard is a .tgz of which [Shard.Inflate] can inflate any part.
func (s *Shard) Inflates() bool { return s.content.Load() != nil }

// Inflate returns the bytes `from` to `to` of the inflated .tgz. They lie in `memory`, a piece of
// Options.Memory that the caller gives back.
func (s *Shard) Inflate(ctx context.Context, from, to int64) (data, memory []byte, err error) {
	data, err = s.content.Load().Inflate(from, to, func(n int) []byte {
		memory = s.Memory.Take(n)
		return memory
	})
	if err == nil {
		return data, memory, nil
	}
	s.Memory.Give(memory)
	if full := (*Error)(nil); !errors.As(err, &full) {
		err = s.explain(ctx, err)
	}
	return nil, nil, err
}

// unchanged fails when the file was changed after it was opened. In a changed file the positions of
// members and the numbers of samples would be wrong.
func (s *Shard) unchanged() error {
	info, err := s.file.Stat()
	if err != nil {
		return s.unreadable(err, "%v", bare(err))
	}
	if info.Size() != s.info.Size() || !info.ModTime().Equal(s.info.ModTime()) {
		return s.unreadable(nil, "changed while it was being read; open it again")
	}
	return nil
}

// sniff finds the format from the first bytes of the file and stores it in s. It fails for a file
// of another kind. If sniff knows that kind, the error names it.
func (s *Shard) sniff() error {
	var err error
	if s.info, err = s.file.Stat(); err != nil {
		return s.unreadable(err, "%v", bare(err))
	}
	if s.info.Size() < 0 {
		return s.unreadable(nil, "its file system says that it has %d bytes", s.info.Size())
	}
	head := make([]byte, 512)
	n, err := s.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return s.unreadable(err, "%v", bare(err))
	}
	head = head[:n]
	begins := func(prefix string) bool { return bytes.HasPrefix(head, []byte(prefix)) }
	kind, known := signature.Of(head)
	const wanted = "; .tgz, .tar.gz, .tar and directories can be read"
	switch {
	case n == 0:
		return s.unreadable(nil, "empty file (0 bytes); copy or download it again")
	case begins("\x1f\x8b"):
		s.format = gzipTar
	case isTarHeader(head):
		s.format = plainTar
	case begins("PK\x03\x04"), begins("PK\x05\x06"):
		return s.unreadable(nil, "a zip file%s; unpack it and give the directory", wanted)
	case begins("\xfd7zXZ"), begins("\x28\xb5\x2f\xfd"), begins("BZh"):
		return s.unreadable(nil, "compressed with xz, zstd or bzip2%s; decompress it first", wanted)
	case begins("version https://git-lfs"):
		return s.unreadable(nil, "a Git LFS pointer and not the file; run git lfs pull")
	case begins("<") && !known:
		return s.unreadable(nil, "a web page or XML and not an archive; the download failed, download it again")
	default:
		if image := signature.PictureOf(head); image != signature.NoPicture && !known {
			kind = signature.Kind{Name: "one image (" + image.String() + ")", Cure: "give the folder that holds its classes"}
		} else if !known {
			return s.unreadable(nil, "neither gzip nor tar (it begins with %q)%s", head[:min(n, 8)], wanted)
		}
		return s.unreadable(nil, "neither gzip nor tar but %s%s; %s", kind.Name, wanted, kind.Cure)
	}
	return nil
}

// isTarHeader reports whether `block` is the first block of a tar archive. The first block is a
// header with a right checksum, or an end marker.
func isTarHeader(block []byte) bool {
	if len(block) < 512 {
		return false
	}
	if allZero(block) {
		return true
	}
	_, err := tar.NewReader(bytes.NewReader(block)).Next()
	return !errors.Is(err, tar.ErrHeader)
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func (s *Shard) unreadable(cause error, format string, args ...any) *Error {
	return &Error{Path: s.Path, Reason: fmt.Sprintf(format, args...), Kind: ErrArchive, Cause: cause}
}

func (s *Shard) badMember(e Entry, cause error, format string, args ...any) *Error {
	return &Error{
		Path: s.Path, Member: e.Number, Name: e.Name, Reason: fmt.Sprintf(format, args...), Kind: ErrBadMember, Cause: cause,
	}
}

// bare returns the cause of a *fs.PathError. The caller names the path itself.
func bare(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
