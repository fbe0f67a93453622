package library

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// elfHeader is the header of an ELF file of 64 bits, with the names of elf.h.
type elfHeader struct {
	Ident                   [16]byte
	Type, Machine           uint16
	Version                 uint32
	Entry, Phoff, Shoff     uint64
	Flags                   uint32
	Ehsize, Phsize, Phnum   uint16
	Shsize, Shnum, Shstrndx uint16
}

// An elfSegment is the header of one segment.
type elfSegment struct {
	Type, Flags                                  uint32
	Offset, Vaddr, Paddr, Filesz, Memsz, Alignsz uint64
}

// whole fails if the file of a library is cut off. The dynamic loader maps such a file, and the
// process ends by SIGBUS where the rest is missing. For other faults the loader has errors.
func whole(path string, by rule) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %s", err, by.cure())
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if want := wholeSize(file); info.Size() < want {
		return fmt.Errorf("%s is cut off: it has %d bytes, want %d: %s", path, info.Size(), want, by.cure())
	}
	return nil
}

// wholeSize returns how many bytes an ELF file has at least, by its headers.
func wholeSize(file io.ReaderAt) int64 {
	var h elfHeader
	size := binary.Size(h)
	if binary.Read(io.NewSectionReader(file, 0, int64(size)), binary.LittleEndian, &h) != nil {
		return int64(size)
	}
	if string(h.Ident[:4]) != "\x7fELF" {
		return 0
	}
	segments := make([]elfSegment, h.Phnum)
	end := h.Phoff + uint64(h.Phnum)*uint64(binary.Size(elfSegment{}))
	want := max(end, h.Shoff+uint64(h.Shnum)*uint64(h.Shsize))
	if binary.Read(io.NewSectionReader(file, int64(h.Phoff), int64(end-h.Phoff)), binary.LittleEndian, segments) == nil {
		for _, s := range segments {
			want = max(want, s.Offset+s.Filesz)
		}
	}
	return int64(want)
}

// allWhole checks the libraries of a folder whose names begin so.
func allWhole(folder string, by rule, prefixes ...string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		isOne := func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }
		if strings.HasSuffix(e.Name(), ".so") && slices.ContainsFunc(prefixes, isOne) {
			if err := whole(filepath.Join(folder, e.Name()), by); err != nil {
				return err
			}
		}
	}
	return nil
}
