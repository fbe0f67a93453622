// Package torchzip reads the zip files in which PyTorch stores models.
package torchzip

import (
	"archive/zip"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
)

// MostRatio is the most bytes that Deflate makes of one.
const MostRatio = 1032

// mostDirectory is the most bytes of a directory. One entry of PyTorch takes about 100.
const mostDirectory = 32 << 20

// Directory reads the directory of a zip file. It fails if the directory has more than 32 MiB.
//
// An entry is compared with its checksum when it is read. After set_crc32_options(False) PyTorch
// writes 0 in place of checksums, and nothing is compared.
func Directory(source io.ReaderAt, size int64) (*zip.Reader, error) {
	b := &bounded{ReaderAt: source, left: mostDirectory}
	r, err := zip.NewReader(b, size)
	b.open = true
	if err != nil {
		return nil, err
	}
	for _, f := range r.File {
		if f.CRC32 == 0 {
			f.Flags &^= checksumBehind
		}
	}
	return r, nil
}

// checksumBehind is the flag of an entry whose checksum stands behind its data too. With the flag,
// Go's zip compares the data with a checksum of 0. Without the flag it takes 0 for no checksum.
const checksumBehind = 1 << 3

// A bounded source fails after a number of bytes, until it is open. Then several goroutines may
// read it at once.
type bounded struct {
	io.ReaderAt
	left int64
	open bool
}

func (b *bounded) ReadAt(data []byte, at int64) (int, error) {
	if !b.open {
		if b.left -= int64(len(data)); b.left < 0 {
			return 0, fmt.Errorf("the list of its entries has more than %d bytes", mostDirectory)
		}
	}
	return b.ReaderAt.ReadAt(data, at)
}

// Kind says who reads an archive.
type Kind struct {
	Package     string // stands before errors
	Format      error  // is wrapped by the errors for a damaged file
	Unsupported error  // is wrapped by the errors for a whole file that the package does not take
	Make        string // how a file is made in Python
	Entries     int    // the most entries that a file may have
	// Inside returns the name of an entry without its first folder, or "" to pass over the entry.
	Inside func(name string) string
}

// Archive is an open zip file. Several goroutines may read it at once.
type Archive struct {
	Kind
	Name    string    // of the file
	Holds   *FileKind // what its entries are; nil for an unknown kind
	source  io.ReaderAt
	size    int64
	entries map[string]*zip.File
}

// OpenFile opens a file, and returns its size. It refuses what is no regular file before it opens
// it, because the open of a pipe waits for a writer.
func OpenFile(pkg, path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w; check the path", pkg, err)
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: %s is not a regular file, but a folder, a pipe or a device: give the path of a .pt2 file", pkg, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", pkg, err)
	}
	return f, info.Size(), nil
}

// Open reads the directory of a file of `size` bytes. Errors show `name` as the name of the file.
func Open(kind Kind, source io.ReaderAt, size int64, name string) (*Archive, error) {
	a := &Archive{Kind: kind, Name: name, source: source, size: size, entries: map[string]*zip.File{}}
	directory, err := Directory(source, size)
	if err != nil {
		head := make([]byte, max(0, min(size, HeadLength)))
		n, _ := source.ReadAt(head, 0)
		if other := Recognize(head[:n]); other != nil {
			return nil, a.Bad("%w", other.Program(kind))
		}
		return nil, a.Bad("%w: it has %d bytes, and is cut short or of another kind: copy the file again", err, size)
	}
	if len(directory.File) > kind.Entries {
		return nil, a.Bad("it has %d entries, more than %d", len(directory.File), kind.Entries)
	}
	a.Holds = RecognizeZip(func(yield func(string) bool) {
		for _, f := range directory.File {
			if !yield(f.Name) {
				return
			}
		}
	})
	for _, f := range directory.File {
		inside := kind.Inside(f.Name)
		if inside == "" {
			continue
		}
		if a.entries[inside] != nil {
			return nil, a.Bad("the entry %.100q is there twice", inside)
		}
		a.entries[inside] = f
	}
	return a, nil
}

// Below returns the name without its first folder.
func Below(name string) string {
	_, inside, _ := strings.Cut(name, "/")
	return inside
}

// Bad returns the error for a damaged file.
func (a *Archive) Bad(format string, args ...any) error {
	return a.Errorf("%w: %w", a.Format, fmt.Errorf(format, args...))
}

// Refuse returns the error for a file that is whole, but that the package does not take.
func (a *Archive) Refuse(format string, args ...any) error {
	return a.Errorf("%w: %w", a.Unsupported, fmt.Errorf(format, args...))
}

// Errorf returns an error that begins with the package and the file.
func (a *Archive) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", a.Package, a.Name, fmt.Errorf(format, args...))
}

// Names returns the names of the entries, in no order.
func (a *Archive) Names() iter.Seq[string] { return maps.Keys(a.entries) }

// Size returns the bytes of the file.
func (a *Archive) Size() int64 { return a.size }

// Section returns the bytes of an entry without copying them. PyTorch compresses no entry, so a
// compressed one is refused.
func (a *Archive) Section(name string) (*io.SectionReader, error) {
	f := a.entries[name]
	if f == nil {
		return nil, a.Bad("the entry %.200s is missing", name)
	}
	if f.Method != zip.Store {
		return nil, a.Refuse("the entry %.200s is compressed, and PyTorch compresses none", name)
	}
	at, err := f.DataOffset()
	if err != nil {
		return nil, a.Bad("the entry %.200s: %w", name, err)
	}
	if f.UncompressedSize64 != f.CompressedSize64 || at > a.size || f.UncompressedSize64 > uint64(a.size-at) {
		return nil, a.Bad("the entry %.200s of %d bytes at byte %d leaves the file of %d bytes", name, f.UncompressedSize64, at, a.size)
	}
	return io.NewSectionReader(a.source, at, int64(f.UncompressedSize64)), nil
}

// ReadWhole fills `to` from an entry of [Archive.Section], and reads the rest of the entry. It
// fails if the checksum of the entry is wrong. PyTorch writes the checksums, and does not check
// them.
func (a *Archive) ReadWhole(name string, from io.Reader, to []byte) error {
	const piece = 256 << 10 // the checksum finds it in the processor's cache
	sum := crc32.NewIEEE()
	for at := 0; at < len(to); at += piece {
		part := to[at:min(at+piece, len(to))]
		if _, err := io.ReadFull(from, part); err != nil {
			return a.Bad("the entry %.200s: %w", name, err)
		}
		sum.Write(part)
	}
	if _, err := io.Copy(sum, from); err != nil {
		return a.Bad("the entry %.200s: %w", name, err)
	}
	if want := a.entries[name].CRC32; want != 0 && sum.Sum32() != want {
		return a.Bad("the entry %.200s is damaged: its checksum is %08x, and the file says %08x: copy the file again", name, sum.Sum32(), want)
	}
	return nil
}

// Read returns the bytes of an entry that has at most `most` bytes. It takes memory for the bytes
// that are there, and not for the bytes that the directory promises.
func (a *Archive) Read(name string, most uint64) ([]byte, error) {
	f := a.entries[name]
	if f == nil {
		return nil, a.Bad("the entry %.200s is missing", name)
	}
	if size := f.UncompressedSize64; size > most || f.CompressedSize64 > uint64(a.size) || size/MostRatio > f.CompressedSize64 {
		return nil, a.Bad("the entry %.200s cannot have %d bytes", name, size)
	}
	r, err := f.Open()
	if err != nil {
		return nil, a.Bad("the entry %.200s: %w", name, err)
	}
	defer r.Close()
	var text bytes.Buffer
	text.Grow(int(min(f.UncompressedSize64, uint64(a.size)*2)) + bytes.MinRead)
	if _, err := text.ReadFrom(r); err != nil {
		return nil, a.Bad("the entry %.200s: %w", name, err)
	}
	return text.Bytes(), nil
}

// Choose returns the name of the model to load: `wanted`, or the only one. `what` is a word for a
// model, such as "program".
func (a *Archive) Choose(names []string, wanted, what string) (string, error) {
	switch {
	case wanted == "" && len(names) == 1:
		return names[0], nil
	case wanted == "":
		return "", a.Errorf("it holds %d %ss, so choose one of them in Options.Model: %.200q", len(names), what, names)
	case !slices.Contains(names, wanted):
		return "", a.Errorf("it holds no %s %.100q; it holds %.200q", what, wanted, names)
	}
	return wanted, nil
}
