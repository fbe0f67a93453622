package imageloader

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// format is the kind of an archive, as its content tells it.
type format int

const (
	directory format = iota + 1
	plainTar
	gzipTar
)

func (f format) String() string {
	return [...]string{"unknown", "directory", "tar", "gzip-compressed tar"}[f]
}

// archive is an opened archive. It is safe for concurrent use.
type archive struct {
	path   string
	format format
	file   *os.File    // a .tar or .tgz
	info   fs.FileInfo // of file, when it was opened
	root   *os.Root    // a directory

	maxMember int // bytes
}

// stream goes once through an archive, in its order. Its errors are complete: *Error, or the cause of the context's end.
type stream interface {
	// next goes to the next member. At the end of an archive that is whole it returns io.EOF.
	next() (entry, error)
	// content returns the content of the member that next returned, in memory from take. The error is about that member
	// alone when it is ErrBadMember.
	content(take func(bytes int) []byte) ([]byte, error)
	close()
}

// openArchive finds out what path is. The archive must be closed.
func openArchive(path string, maxMember int) (*archive, error) {
	a := &archive{path: path, maxMember: maxMember}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, a.unreadable(err, "no such file or directory; check the path")
	} else if err != nil {
		return nil, a.unreadable(err, "%v", bare(err))
	}
	switch {
	case info.IsDir():
		a.format = directory
		a.root, err = os.OpenRoot(path)
	case info.Mode().IsRegular():
		a.file, err = os.Open(path)
	default:
		return nil, a.unreadable(nil, "neither a file nor a directory; a pipe or device has to be written to a file first")
	}
	if err != nil {
		return nil, a.unreadable(err, "%v", bare(err))
	}
	if a.file != nil {
		if err := a.sniff(); err != nil {
			a.Close()
			return nil, err
		}
	}
	return a, nil
}

// Close closes the file. No stream and no read may be running.
func (a *archive) Close() error {
	if a.root != nil {
		return a.root.Close()
	}
	return a.file.Close()
}

// open starts at the first member. A stream of a .tgz reads until ctx ends.
func (a *archive) open(ctx context.Context) (stream, error) {
	if a.format == directory {
		return a.openDirectory()
	}
	if err := a.unchanged(); err != nil {
		return nil, err
	}
	if a.format == gzipTar {
		return a.openGzip(ctx)
	}
	return a.openTar(), nil
}

// read returns the content of a member of a .tar or a directory, in memory from take, as stream.content does.
func (a *archive) read(e entry, take func(bytes int) []byte) ([]byte, error) {
	if a.format == directory {
		return a.readFile(e, take)
	}
	buf := take(int(e.size))
	if _, err := a.file.ReadAt(buf, e.offset); err == io.EOF {
		return nil, a.unreadable(err, "changed while it was being read; open it again")
	} else if err != nil {
		return nil, a.unreadable(err, "%v", bare(err))
	}
	return buf, nil
}

// unchanged fails when the file was written to since it was opened: member positions and sample numbers would be wrong.
func (a *archive) unchanged() error {
	info, err := a.file.Stat()
	if err != nil {
		return a.unreadable(err, "%v", bare(err))
	}
	if info.Size() != a.info.Size() || !info.ModTime().Equal(a.info.ModTime()) {
		return a.unreadable(nil, "changed while it was being read; open it again")
	}
	return nil
}

// sniff sets format from the first bytes of the file, or says what the file is instead.
func (a *archive) sniff() error {
	var err error
	if a.info, err = a.file.Stat(); err != nil {
		return a.unreadable(err, "%v", bare(err))
	}
	head := make([]byte, 512)
	n, err := a.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return a.unreadable(err, "%v", bare(err))
	}
	head = head[:n]
	begins := func(prefix string) bool { return bytes.HasPrefix(head, []byte(prefix)) }
	const wanted = "; .tgz, .tar.gz, .tar and directories can be read"
	switch {
	case n == 0:
		return a.unreadable(nil, "empty file (0 bytes); copy or download it again")
	case begins("\x1f\x8b"):
		a.format = gzipTar
	case isTarHeader(head):
		a.format = plainTar
	case begins("PK\x03\x04"), begins("PK\x05\x06"):
		return a.unreadable(nil, "a zip file%s; unpack it and give the directory", wanted)
	case begins("\xfd7zXZ"), begins("\x28\xb5\x2f\xfd"), begins("BZh"):
		return a.unreadable(nil, "compressed with xz, zstd or bzip2%s; decompress it first", wanted)
	case begins("version https://git-lfs"):
		return a.unreadable(nil, "a Git LFS pointer and not the file; run git lfs pull")
	case begins("<"):
		return a.unreadable(nil, "a web page or XML and not an archive; the download failed, download it again")
	default:
		return a.unreadable(nil, "neither gzip nor tar (it begins with %q)%s", head[:min(n, 8)], wanted)
	}
	return nil
}

// isTarHeader says whether block is the first block of a tar archive: a header with a right checksum, or an end marker.
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

func (a *archive) unreadable(cause error, format string, args ...any) *Error {
	return &Error{Path: a.path, Reason: fmt.Sprintf(format, args...), Kind: ErrArchive, Cause: cause}
}

func (a *archive) badMember(e entry, cause error, format string, args ...any) *Error {
	return &Error{
		Path: a.path, Member: e.number, Name: e.name, Reason: fmt.Sprintf(format, args...), Kind: ErrBadMember, Cause: cause,
	}
}

// bare returns the cause of a *fs.PathError, whose path the caller names itself.
func bare(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
