package aoti

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a package of
// AOTInductor.
var ErrFormat = errors.New("not a whole package of AOTInductor")

// ErrUnsupported is wrapped by the errors for a package that is whole, but that cannot run here.
var ErrUnsupported = errors.New("the package cannot run here")

// Limits of an archive.
const (
	mostText    = 1 << 28 // the bytes of a source text or of metadata
	mostEntries = 1 << 16
)

const folderOfModels = "data/aotinductor/"

// An archive is the zip file around a package.
type archive struct {
	name    string // of the file
	source  io.ReaderAt
	size    int64
	entries map[string]*zip.File // by their names without the first folder
}

func (a *archive) bad(format string, args ...any) error {
	return fmt.Errorf("aoti: %s: %w: %w", a.name, ErrFormat, fmt.Errorf(format, args...))
}

func (a *archive) unsupported(format string, args ...any) error {
	return fmt.Errorf("aoti: %s: %w: %w", a.name, ErrUnsupported, fmt.Errorf(format, args...))
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
		inside := f.Name
		if !strings.HasPrefix(inside, folderOfModels) { // PyTorch 2.8 and older writes no first folder
			_, inside, _ = strings.Cut(inside, "/")
		}
		if inside == "" {
			continue
		}
		if a.entries[inside] != nil {
			return nil, a.bad("the entry %.100q is there twice", inside)
		}
		a.entries[inside] = f
	}
	return a, nil
}

// The method `model` returns the name of the model to load.
func (a *archive) model(wanted string) (string, error) {
	var names []string
	exported := false
	for entry := range a.entries {
		if inside, ok := strings.CutPrefix(entry, folderOfModels); ok {
			if name, _, ok := strings.Cut(inside, "/"); ok && name != "" {
				names = append(names, name)
			}
		}
		exported = exported || strings.HasPrefix(entry, "models/")
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0 && exported:
		return "", a.unsupported("it is an exported program and not compiled: load it with package pt2, or compile it with torch._inductor.aoti_compile_and_package")
	case len(names) == 0:
		return "", a.bad("it has no entry %sMODEL/…", folderOfModels)
	case wanted == "" && len(names) == 1:
		return names[0], nil
	case wanted == "":
		return "", fmt.Errorf("aoti: %s: it holds %d models, so choose one of them in Options.Model: %.200q", a.name, len(names), names)
	case !slices.Contains(names, wanted):
		return "", fmt.Errorf("aoti: %s: it holds no model %.100q; it holds %.200q", a.name, wanted, names)
	}
	return wanted, nil
}

// The files of a model, by their paths in the model's folder.
type modelFiles struct {
	archive  *archive
	files    map[string]*zip.File
	library  string // the shared library
	metadata map[string]string
	source   string // the C++ source of the library
}

func (a *archive) open(model string) (*modelFiles, error) {
	m := &modelFiles{archive: a, files: map[string]*zip.File{}}
	var libraries []string
	compilable := false
	for entry, f := range a.entries {
		name, ok := strings.CutPrefix(entry, folderOfModels+model+"/")
		if !ok || name == "" || strings.HasSuffix(name, "/") {
			continue
		}
		if !filepath.IsLocal(name) || strings.Contains(name, "\\") {
			return nil, a.bad("the entry %.100q leaves its folder", entry)
		}
		m.files[name] = f
		switch path.Ext(name) {
		case ".so":
			libraries = append(libraries, name)
		case ".cpp":
			compilable = true
		}
	}
	if len(libraries) > 1 {
		libraries = slices.DeleteFunc(libraries, func(name string) bool { return !strings.HasSuffix(name, ".wrapper.so") })
	}
	switch {
	case len(libraries) == 0 && compilable:
		return nil, a.unsupported("the model %.100q is C++ source without a compiled library, and Go starts no compiler: package it without aot_inductor.package_cpp_only", model)
	case len(libraries) != 1:
		return nil, a.bad("the model %.100q has %d compiled libraries, want one", model, len(libraries))
	}
	m.library = libraries[0]
	stem := strings.TrimSuffix(m.library, ".so")
	text, err := m.read(stem + "_metadata.json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &m.metadata); err != nil {
		return nil, a.bad("%.200s_metadata.json: %w", stem, err)
	}
	if m.files[stem+".cpp"] == nil {
		return nil, a.unsupported("it lacks %.200s.cpp, which says what inputs the library takes: package it again, with all files of aoti_compile_and_package", stem)
	}
	text, err = m.read(stem + ".cpp")
	m.source = string(text)
	return m, err
}

// The method `section` returns the bytes of a file without copying them.
func (m *modelFiles) section(name string) (*io.SectionReader, error) {
	f, a := m.files[name], m.archive
	if f == nil {
		return nil, a.bad("the file %.200s is missing", name)
	}
	if f.Method != zip.Store {
		return nil, a.unsupported("the file %.200s is compressed, and PyTorch compresses none", name)
	}
	at, err := f.DataOffset()
	if err != nil {
		return nil, a.bad("the file %.200s: %w", name, err)
	}
	if f.UncompressedSize64 != f.CompressedSize64 || at > a.size || f.UncompressedSize64 > uint64(a.size-at) {
		return nil, a.bad("the file %.200s of %d bytes leaves the archive of %d bytes", name, f.UncompressedSize64, a.size)
	}
	return io.NewSectionReader(a.source, at, int64(f.UncompressedSize64)), nil
}

func (m *modelFiles) read(name string) ([]byte, error) {
	section, err := m.section(name)
	if err != nil {
		return nil, err
	}
	if section.Size() > mostText {
		return nil, m.archive.bad("the file %.200s has %d bytes", name, section.Size())
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(section); err != nil {
		return nil, m.archive.bad("the file %.200s: %w", name, err)
	}
	return text.Bytes(), nil
}

// The method `extract` writes the files that the library needs into a folder.
func (m *modelFiles) extract(folder string) error {
	for name, f := range m.files {
		switch path.Ext(name) {
		case ".cpp", ".h", ".o":
			continue
		}
		section, err := m.section(name)
		if err != nil {
			return err
		}
		to := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return fmt.Errorf("aoti: %w", err)
		}
		if err := writeFile(to, section); err != nil {
			return m.archive.bad("the file %.200s: %w", f.Name, err)
		}
	}
	return nil
}

func writeFile(to string, from io.Reader) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
