package library

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// ManifestFile is the name of the file beside our libraries that says what they are.
const ManifestFile = "libcgotorch.json"

// Platform is the system and the processor that this program is compiled for, such as linux-amd64.
const Platform = runtime.GOOS + "-" + runtime.GOARCH

// A Manifest says what the libraries in a folder were compiled from, and for what.
type Manifest struct {
	Folder   string   `json:"folder,omitempty"` // of LibTorch's libraries; "" if the program has to find it
	Open     []string `json:"open,omitempty"`   // libraries that LibTorch needs and does not find by itself
	LibTorch string   `json:"libtorch,omitempty"`
	Platform string   `json:"platform"`
	Source   string   `json:"source"` // the hash of csrc, as Source
}

// ReadManifest reads the manifest in a file.
func ReadManifest(path string) (m Manifest, err error) {
	text, err := readFile(path)
	if err != nil {
		return m, fmt.Errorf("what the libraries were compiled from is unknown: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// readFile reads a regular file. It does not wait for the writer of a pipe.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Text returns the manifest as the text of its file, a line for each field.
func (m Manifest) Text() []byte {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // strings have a text in JSON
	}
	return append(text, '\n')
}

// check fails if this program cannot use the libraries of a folder.
func (m Manifest) check(folder string) error {
	switch {
	case m.Platform != Platform:
		return fmt.Errorf("the libraries in %s are for %s, and this program is for %s", folder, m.Platform, Platform)
	case m.Source != Source:
		return fmt.Errorf("the libraries in %s are of another version of streamtorch than this program: source %.12s, want %.12s", folder, m.Source, Source)
	}
	for _, path := range append(slices.Clone(m.Open), m.Folder) {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s names %s, which is not an absolute path", filepath.Join(folder, ManifestFile), path)
		}
	}
	return nil
}
