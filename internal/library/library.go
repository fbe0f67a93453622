// Package library finds and opens the shared libraries that the Go packages call. No package links
// them, so that a program builds where none of them is. They are opened when a program first needs
// them, and stay open for the rest of the process.
//
// A folder of libraries is the first of these that has the wanted file:
//
//  1. $STREAMTORCH_LIB; if it is set and has no such file, opening fails
//  2. the folder of the executable, and the folder lib in it, as in a bundle
//  3. build/lib of the clone that the program was compiled from
//  4. /usr/local/lib
//
// LibTorch is the first of these that is there: one in the same folder, the one that the file
// libcgotorch.torch in the folder names, and $LIBTORCH.
package library

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"
)

// A Library is an open shared library.
type Library struct {
	Path   string
	handle unsafe.Pointer
}

const (
	core    = "libcgotorch.so"
	decoder = "libcgotorch_decode.so"
)

// Core opens LibTorch and then libcgotorch.so. It reads files, and takes as long as the
// dynamic loader takes for LibTorch: some 0.3 s from the page cache.
func Core() (*Library, error) {
	folder, err := folderOf(core)
	if err != nil {
		return nil, err
	}
	if err := openLibTorch(folder); err != nil {
		return nil, err
	}
	return open(filepath.Join(folder, core), false)
}

// Decoder opens libcgotorch_decode.so. It needs no LibTorch.
func Decoder() (*Library, error) {
	folder, err := folderOf(decoder)
	if err != nil {
		return nil, err
	}
	return open(filepath.Join(folder, decoder), false)
}

// Fill opens a library by `from`, Core or Decoder, and gives `fill` the functions of these names.
// Then `abi` returns the version of the library's interface, which must be `want`. If a function is
// missing, Fill fails before it calls `fill`.
func Fill(from func() (*Library, error), names []string, fill func([]unsafe.Pointer), abi func() int32, want int32) error {
	l, err := from()
	if err != nil {
		return err
	}
	functions := make([]unsafe.Pointer, len(names))
	for i, name := range names {
		if functions[i], err = l.symbol(name); err != nil {
			return err
		}
	}
	fill(functions)
	if got := abi(); got != want {
		return fmt.Errorf("%s has version %d of its interface, and this program wants %d: %s", l.Path, got, want, cure)
	}
	return nil
}

// cure is what a user does about a library that is missing or wrong.
const cure = "run make libraries in the clone that the program is compiled from, or make install there"

// folderOf returns the folder that has a file of this name.
func folderOf(file string) (string, error) {
	if err := available(); err != nil {
		return "", err
	}
	if folder := os.Getenv("STREAMTORCH_LIB"); folder != "" {
		if !filepath.IsAbs(folder) {
			return "", fmt.Errorf("STREAMTORCH_LIB=%s is not an absolute path: write it from /", folder)
		}
		if !has(folder, file) {
			return "", fmt.Errorf("STREAMTORCH_LIB=%s has no %s: unset it, or name the folder of the libraries", folder, file)
		}
		return folder, nil
	}
	for _, folder := range folders() {
		if has(folder, file) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("%s is in none of these folders: %s: %s", file, strings.Join(folders(), ", "), cure)
}

func has(folder, file string) bool {
	info, err := os.Stat(filepath.Join(folder, file))
	return err == nil && info.Mode().IsRegular()
}

// folders returns the folders in which libraries may lie, in the order in which they are tried.
func folders() []string {
	var all []string
	if executable, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(executable); err == nil {
			executable = real
		}
		beside := filepath.Dir(executable)
		all = append(all, beside, filepath.Join(beside, "lib"))
	}
	if clone := cloneFolder(); clone != "" {
		all = append(all, filepath.Join(clone, "build", "lib"))
	}
	return append(all, "/usr/local/lib")
}
