package library

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// main is the library that tells where LibTorch is.
const main = "libtorch_cpu.so"

// openLibTorch opens LibTorch for the libraries in a folder. All later libraries see its symbols.
func openLibTorch(folder string, m Manifest) error {
	torch, before, err := libTorchFor(folder, m)
	if err != nil {
		return err
	}
	for _, name := range []string{"libc10.so", main} { // each after those that it needs
		before = append(before, filepath.Join(torch, name))
	}
	for _, path := range before {
		if _, err := open(path, true); err != nil {
			return err
		}
	}
	return nil
}

// Torch returns the folder of LibTorch's libraries for the libraries in a folder, and the version
// that those are compiled for.
func Torch(folder string, m Manifest) (torch, version string, err error) {
	torch, _, err = libTorchFor(folder, m)
	return torch, m.LibTorch, err
}

// libTorchFor returns the folder of LibTorch's libraries, and the paths of libraries to open before
// them. $LIBTORCH comes last: the libraries of the folder may be compiled for another release.
func libTorchFor(folder string, m Manifest) (torch string, before []string, err error) {
	switch {
	case has(folder, main):
		return folder, nil, nil
	case m.LibTorch == "":
		return "", nil, fmt.Errorf("%s was compiled without a LibTorch: %s", folder, cure())
	case m.Folder != "" && has(m.Folder, main):
		return m.Folder, m.Open, m.fits(m.Folder, "which "+filepath.Join(folder, ManifestFile)+" names")
	}
	chosen := os.Getenv("LIBTORCH")
	if chosen == "" {
		if m.Folder != "" {
			return "", nil, fmt.Errorf("LibTorch is not in %s any more, which %s names: %s", m.Folder, filepath.Join(folder, ManifestFile), cure())
		}
		return "", nil, fmt.Errorf("%s does not say where LibTorch %s is: %s, or set LIBTORCH to its folder", filepath.Join(folder, ManifestFile), m.LibTorch, cure())
	}
	for _, lib := range []string{filepath.Join(chosen, "lib"), filepath.Join(chosen, "torch", "lib"), chosen} {
		if has(lib, main) {
			return lib, nil, m.fits(lib, "which LIBTORCH names")
		}
	}
	return "", nil, fmt.Errorf("LIBTORCH=%s has no lib/%s: set it to the folder of LibTorch, or unset it", chosen, main)
}

// fits fails if the LibTorch whose libraries are in a folder is of another release than the one
// that the manifest names. Releases that differ in their last number alone have one interface.
func (m Manifest) fits(lib, named string) error {
	have, err := TorchVersion(filepath.Dir(lib))
	if err != nil {
		return fmt.Errorf("%s, %s: %w", lib, named, err)
	}
	if Release(have) != Release(m.LibTorch) {
		return fmt.Errorf("%s, %s, is LibTorch %s, and %s is needed: %s", lib, named, have, m.LibTorch, cure())
	}
	return nil
}

// Release returns the first two numbers of a version of LibTorch.
func Release(version string) string {
	return version[:max(0, strings.LastIndexByte(version, '.'))]
}

var versionLine = regexp.MustCompile(`(?m)^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)`)

// TorchVersion returns the version, such as 2.11.0, of the LibTorch whose lib and include are in a
// folder.
func TorchVersion(folder string) (string, error) {
	var text []byte
	for _, header := range []string{"torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"} {
		text, _ = os.ReadFile(filepath.Join(folder, "include", header))
		if numbers := versionLine.FindAllSubmatch(text, -1); len(numbers) >= 3 {
			return fmt.Sprintf("%s.%s.%s", numbers[0][1], numbers[1][1], numbers[2][1]), nil
		}
	}
	return "", errors.New("its version is unknown, since it has no include/torch/headeronly/version.h")
}
