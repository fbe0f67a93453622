package library

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// main is the library that tells where LibTorch is.
const main = "libtorch_cpu.so"

// torchFile is the file beside our libraries that says which LibTorch they were compiled for. Its
// lines are paths: the folder of LibTorch's libraries, and then libraries that LibTorch needs and
// does not find by itself.
const torchFile = "libcgotorch.torch"

// openLibTorch opens LibTorch for the libraries in a folder. All later libraries see its symbols.
func openLibTorch(folder string) error {
	torch, before, err := libTorchFor(folder)
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

// libTorchFor returns the folder of LibTorch's libraries, and the paths of libraries to open before
// them. $LIBTORCH comes last: the libraries of the folder may be compiled for another release.
func libTorchFor(folder string) (torch string, before []string, err error) {
	if has(folder, main) {
		return folder, nil, nil
	}
	path := filepath.Join(folder, torchFile)
	text, err := os.ReadFile(path)
	if paths := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }); len(paths) > 0 && has(paths[0], main) {
		return paths[0], paths[1:], nil
	}
	if chosen := os.Getenv("LIBTORCH"); chosen != "" {
		for _, lib := range []string{filepath.Join(chosen, "lib"), filepath.Join(chosen, "torch", "lib"), chosen} {
			if has(lib, main) {
				return lib, nil, nil
			}
		}
		return "", nil, fmt.Errorf("LIBTORCH=%s has no lib/%s: set it to the folder of LibTorch, or unset it", chosen, main)
	}
	if err != nil {
		return "", nil, fmt.Errorf("which LibTorch belongs to %s is unknown: %w: %s", folder, err, cure)
	}
	return "", nil, fmt.Errorf("LibTorch is not in %q any more, which %s names: %s", text, path, cure)
}
