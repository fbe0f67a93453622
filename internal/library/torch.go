package library

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// main is the library that tells where LibTorch is.
const main = "libtorch_cpu.so"

// A libTorch is a LibTorch on this machine.
type libTorch struct {
	folder  string   // of its libraries
	before  []string // libraries to open before
	version string
	rule    rule
}

// openLibTorch opens LibTorch for the libraries in a folder. All later libraries see its symbols.
func (f Folder) openLibTorch() error {
	t, err := f.libTorch()
	if err != nil {
		return err
	}
	if err := allWhole(f.Path, f.rule, "libcgotorch"); err != nil {
		return err
	}
	if err := allWhole(t.folder, t.rule, "libc10", "libtorch"); err != nil {
		return err
	}
	for _, name := range []string{"libc10.so", main} { // each after those that it needs
		t.before = append(t.before, filepath.Join(t.folder, name))
	}
	for _, path := range t.before {
		if _, err := open(path, true, t.rule); err != nil {
			return err
		}
	}
	return nil
}

// LibTorch returns the folder of LibTorch's libraries for those in this folder, and its version.
func (f Folder) LibTorch() (folder, version string, err error) {
	t, err := f.libTorch()
	return t.folder, t.version, err
}

// libTorch returns the LibTorch for the libraries in the folder. $LIBTORCH comes last: the
// libraries may be compiled for another release.
func (f Folder) libTorch() (libTorch, error) {
	m, manifest := f.Manifest, filepath.Join(f.Path, ManifestFile)
	switch {
	case m.LibTorch == "":
		return libTorch{}, fmt.Errorf("%s was compiled without a LibTorch: %s", f.Path, f.rule.cure())
	case has(f.Path, main):
		t, err := f.fits(libTorch{folder: f.Path, rule: f.rule}, "which lies beside "+manifest)
		if errors.Is(err, errVersion) { // a bundle: who copied LibTorch there copied the manifest too
			t.version, err = m.LibTorch, nil
		}
		return t, err
	case m.Folder != "" && has(m.Folder, main):
		return f.fits(libTorch{folder: m.Folder, before: m.Open, rule: f.rule}, "which "+manifest+" names")
	}
	chosen := variable("LIBTORCH")
	switch {
	case chosen == "" && m.Folder != "":
		return libTorch{}, fmt.Errorf("LibTorch is not in %s any more, or this user cannot read it, and %s names it: %s, or set LIBTORCH to another folder", m.Folder, manifest, f.rule.cure())
	case chosen == "":
		return libTorch{}, fmt.Errorf("%s does not say where LibTorch %s is: %s, or set LIBTORCH to its folder", manifest, m.LibTorch, f.rule.cure())
	case !filepath.IsAbs(chosen):
		return libTorch{}, fmt.Errorf("LIBTORCH=%s is not an absolute path: write it from /", chosen)
	}
	for _, lib := range []string{filepath.Join(chosen, "lib"), filepath.Join(chosen, "torch", "lib"), chosen} {
		if has(lib, main) {
			return f.fits(libTorch{folder: lib, rule: ofLibTorch}, "which LIBTORCH names")
		}
	}
	return libTorch{}, fmt.Errorf("LIBTORCH=%s has no lib/%s: set it to the folder of LibTorch, or unset it", chosen, main)
}

// fits fails if a LibTorch is of another release than the one that the manifest names. Releases
// that differ in their last number alone have one interface.
func (f Folder) fits(t libTorch, named string) (libTorch, error) {
	have, err := TorchVersion(filepath.Dir(t.folder))
	if err != nil {
		return t, fmt.Errorf("%s, %s: %w", t.folder, named, err)
	}
	t.version = have
	if Release(have) != Release(f.Manifest.LibTorch) {
		return t, fmt.Errorf("%s, %s, is LibTorch %s, and %s is needed: %s", t.folder, named, have, f.Manifest.LibTorch, t.rule.cure())
	}
	return t, nil
}

// Release returns the first two numbers of a version of LibTorch.
func Release(version string) string {
	numbers := strings.SplitN(version, ".", 3)
	return strings.Join(numbers[:min(2, len(numbers))], ".")
}

var errVersion = errors.New("its version is unknown")

// The places that tell LibTorch's version: its headers, the file of its archive, and Python's.
var (
	versionLine = regexp.MustCompile(`(?m)^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)`)
	versionText = regexp.MustCompile(`^(?ms:.*git_version.*^__version__ = ')?(\d+\.\d+\.\d+)`)
)

// TorchVersion returns the version, such as 2.11.0, of the LibTorch whose folder lib is in a
// folder.
func TorchVersion(folder string) (string, error) {
	for _, header := range []string{"torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"} {
		text, _ := readFile(filepath.Join(folder, "include", header))
		if numbers := versionLine.FindAllSubmatch(text, -1); len(numbers) >= 3 {
			return fmt.Sprintf("%s.%s.%s", numbers[0][1], numbers[1][1], numbers[2][1]), nil
		}
	}
	for _, name := range []string{"build-version", "version.py"} {
		text, _ := readFile(filepath.Join(folder, name))
		if match := versionText.FindSubmatch(text); match != nil {
			return string(match[1]), nil
		}
	}
	return "", fmt.Errorf("%w, since it has no include/torch/headeronly/version.h and no build-version: write its version, such as 2.11.0, into %s", errVersion, filepath.Join(folder, "build-version"))
}
