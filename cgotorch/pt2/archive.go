package pt2

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a file of
// torch.export.save.
var ErrFormat = errors.New("not a whole file of torch.export.save")

// ErrUnsupported is wrapped by the errors for a program that is whole, but that this package does
// not run.
var ErrUnsupported = errors.New("this package does not run it")

// Limits of an archive.
const (
	mostJSON    = 1 << 30 // the bytes of one JSON text
	mostEntries = 1 << 20
	mostRatio   = 1032 // Deflate makes at most so many bytes of one
)

// An archive is the zip file around a program.
type archive struct {
	name    string // of the file
	source  io.ReaderAt
	size    int64
	entries map[string]*zip.File // by their names without the first folder
}

func (a *archive) bad(format string, args ...any) error {
	return fmt.Errorf("pt2: %s: %w: %w", a.name, ErrFormat, fmt.Errorf(format, args...))
}

func (a *archive) unsupported(format string, args ...any) error {
	return fmt.Errorf("pt2: %s: %w: %w", a.name, ErrUnsupported, fmt.Errorf(format, args...))
}

func openArchive(source io.ReaderAt, size int64, name string) (*archive, error) {
	a := &archive{name: name, source: source, size: size, entries: map[string]*zip.File{}}
	directory, err := zip.NewReader(source, size)
	if err != nil {
		return nil, a.bad("%w", err)
	}
	if len(directory.File) > mostEntries {
		return nil, a.bad("it has %d entries, more than %d", len(directory.File), mostEntries)
	}
	for _, f := range directory.File {
		_, inside, ok := strings.Cut(f.Name, "/")
		if !ok || inside == "" {
			continue
		}
		if a.entries[inside] != nil {
			return nil, a.bad("the entry %.100q is there twice", inside)
		}
		a.entries[inside] = f
	}
	return a, a.check()
}

// The method `check` refuses archives of other kinds, and names them.
func (a *archive) check() error {
	for name := range a.entries {
		switch {
		case strings.HasPrefix(name, "data/aotinductor/"):
			return a.unsupported("it is compiled by AOTInductor: load it with package aoti, or save the result of torch.export.export with torch.export.save")
		case strings.HasPrefix(name, "code/"):
			return a.unsupported("it is a TorchScript program: export the model again, with torch.export.export and torch.export.save")
		case strings.HasSuffix(name, "serialized_exported_program.json"):
			return a.unsupported("PyTorch 2.8 or older has written it: load and save it again, with torch.export.load and torch.export.save of PyTorch 2.9 or newer")
		case name == "data.pkl":
			return a.unsupported("torch.save has written it, so it holds weights and no program: use checkpoint.LoadModel")
		}
	}
	for name, want := range map[string]string{"archive_format": "pt2", "archive_version": "0", "byteorder": "little"} {
		text, err := a.read(name, 64)
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(text)); got != want {
			return a.unsupported("its %s is %q, and this package reads %q", name, got, want)
		}
	}
	return nil
}

// The method `open` returns the bytes of an entry without copying them.
func (a *archive) open(name string) (*io.SectionReader, error) {
	f := a.entries[name]
	if f == nil {
		return nil, a.bad("the entry %.200s is missing", name)
	}
	if f.Method != zip.Store {
		return nil, a.unsupported("the entry %.200s is compressed, and torch.export.save compresses none", name)
	}
	at, err := f.DataOffset()
	if err != nil {
		return nil, a.bad("the entry %.200s: %w", name, err)
	}
	if f.UncompressedSize64 != f.CompressedSize64 || at > a.size || f.UncompressedSize64 > uint64(a.size-at) {
		return nil, a.bad("the entry %.200s of %d bytes at byte %d leaves the file of %d bytes", name, f.UncompressedSize64, at, a.size)
	}
	return io.NewSectionReader(a.source, at, int64(f.UncompressedSize64)), nil
}

// The method `read` returns the bytes of an entry that has at most `most` bytes.
func (a *archive) read(name string, most uint64) ([]byte, error) {
	f := a.entries[name]
	if f == nil {
		return nil, a.bad("the entry %.200s is missing", name)
	}
	if size := f.UncompressedSize64; size > most || f.CompressedSize64 > uint64(a.size) || size/mostRatio > f.CompressedSize64 {
		return nil, a.bad("the entry %.200s cannot have %d bytes", name, size)
	}
	r, err := f.Open()
	if err != nil {
		return nil, a.bad("the entry %.200s: %w", name, err)
	}
	defer r.Close()
	var text bytes.Buffer
	text.Grow(int(min(f.UncompressedSize64, uint64(a.size)*2)) + bytes.MinRead)
	if _, err := text.ReadFrom(r); err != nil {
		return nil, a.bad("the entry %.200s: %w", name, err)
	}
	return text.Bytes(), nil
}

// The method `json` reads an entry into v.
func (a *archive) json(name string, v any) error {
	text, err := a.read(name, mostJSON)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return a.bad("the entry %.200s: %w", name, err)
	}
	return nil
}

// The method `models` returns the names of the programs in the archive.
func (a *archive) models() []string {
	var names []string
	for entry := range a.entries {
		if name, ok := strings.CutPrefix(entry, "models/"); ok {
			if name, ok = strings.CutSuffix(name, ".json"); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// The method `model` returns the name of the program to load.
func (a *archive) model(wanted string) (string, error) {
	names := a.models()
	switch {
	case len(names) == 0:
		return "", a.bad("it has no entry models/NAME.json")
	case wanted == "" && len(names) == 1:
		return names[0], nil
	case wanted == "":
		return "", fmt.Errorf("pt2: %s: it holds %d programs, so choose one of them in Options.Model: %.200q", a.name, len(names), names)
	case !slices.Contains(names, wanted):
		return "", fmt.Errorf("pt2: %s: it holds no program %.100q; it holds %.200q", a.name, wanted, names)
	}
	return wanted, nil
}
