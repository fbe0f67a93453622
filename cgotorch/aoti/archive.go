package aoti

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
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
type archive struct{ *torchzip.Archive }

func openArchive(source io.ReaderAt, size int64, name string) (*archive, error) {
	inside := func(name string) string {
		if strings.HasPrefix(name, folderOfModels) { // PyTorch 2.8 and older writes no first folder
			return name
		}
		return torchzip.Below(name)
	}
	kind := torchzip.Kind{
		Package: "aoti", Format: ErrFormat, Unsupported: ErrUnsupported, Entries: mostEntries, Inside: inside,
		Make: "compile the PyTorch model with torch.export.export and torch._inductor.aoti_compile_and_package",
	}
	opened, err := torchzip.Open(kind, source, size, name)
	return &archive{opened}, err
}

// model returns the name of the model to load.
func (a *archive) model(wanted string) (string, error) {
	var names []string
	for entry := range a.Names() {
		if inside, ok := strings.CutPrefix(entry, folderOfModels); ok {
			if name, _, ok := strings.Cut(inside, "/"); ok && name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0 && a.Holds != nil:
		return "", a.Refuse("%w", a.Holds.Program(a.Kind))
	case len(names) == 0:
		return "", a.Bad("it has no entry %sMODEL/…", folderOfModels)
	}
	return a.Choose(names, wanted, "model")
}

// The files of a model, by their paths in the model's folder.
type modelFiles struct {
	archive  *archive
	entries  map[string]string // the names of their entries
	library  string            // the shared library
	metadata map[string]string
	source   string // the C++ source of the library
}

func (a *archive) open(model string) (*modelFiles, error) {
	m := &modelFiles{archive: a, entries: map[string]string{}}
	var libraries []string
	compilable := false
	for entry := range a.Names() {
		name, ok := strings.CutPrefix(entry, folderOfModels+model+"/")
		if !ok || name == "" || strings.HasSuffix(name, "/") {
			continue
		}
		if !filepath.IsLocal(name) || strings.Contains(name, "\\") {
			return nil, a.Bad("the entry %.100q leaves its folder", entry)
		}
		m.entries[name] = entry
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
		return nil, a.Refuse("the model %.100q is C++ source without a compiled library, and Go starts no compiler: package it without aot_inductor.package_cpp_only", model)
	case len(libraries) != 1:
		return nil, a.Bad("the model %.100q has %d compiled libraries, want one", model, len(libraries))
	}
	m.library = libraries[0]
	stem := strings.TrimSuffix(m.library, ".so")
	text, err := m.read(stem + "_metadata.json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &m.metadata); err != nil {
		return nil, a.Bad("%.200s_metadata.json: %w", stem, err)
	}
	if m.entries[stem+".cpp"] == "" {
		return nil, a.Refuse("it lacks %.200s.cpp, which says what inputs the library takes: package it again, with all files of aoti_compile_and_package", stem)
	}
	text, err = m.read(stem + ".cpp")
	m.source = string(text)
	return m, err
}

// section returns the bytes of a file without copying them.
func (m *modelFiles) section(name string) (*io.SectionReader, error) {
	entry := m.entries[name]
	if entry == "" {
		return nil, m.archive.Bad("the file %.200s is missing", name)
	}
	return m.archive.Section(entry)
}

func (m *modelFiles) read(name string) ([]byte, error) {
	entry := m.entries[name]
	if entry == "" {
		return nil, m.archive.Bad("the file %.200s is missing", name)
	}
	return m.archive.Read(entry, mostText)
}

// extract writes the files that the library needs into a folder.
func (m *modelFiles) extract(folder string) error {
	for name, entry := range m.entries {
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
			return m.archive.Bad("the entry %.200s: %w", entry, err)
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
