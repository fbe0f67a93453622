// Package library finds and opens the shared libraries that the Go packages call. No package links
// them, so that a program builds where none of them is. They are opened when a program first needs
// them, and stay open for the rest of the process.
//
// A folder of libraries is the first of these that has the wanted file. It must fit the program, or
// opening fails: no later folder is tried.
//
//  1. $STREAMTORCH_LIB; if it is set and has no such file, opening fails
//  2. the folder that the program named by Use, likewise
//  3. the folder of the executable, and the folder lib in it, as in a bundle
//  4. build/lib of the clone that the program was compiled from
//  5. lib/KEY of the user's cache, where streamtorch install puts them
//  6. lib/KEY of /opt/streamtorch, which is for all users of a machine
//
// KEY has the first digits of Source, and the processor.
//
// LibTorch is the first of these that is there: one in the same folder, the one that the folder's
// manifest names, and $LIBTORCH. It must be of the release that the libraries were compiled for.
package library

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

//go:generate go run ../install/sourcegen

// A Library is an open shared library.
type Library struct {
	Path   string
	handle unsafe.Pointer
}

// The libraries that Go opens. The core opens the others.
const (
	CoreFile    = "libcgotorch.so"
	DecoderFile = "libcgotorch_decode.so"
)

// SystemRoot is the root of all users of a machine.
const SystemRoot = "/opt/streamtorch"

// Key returns the name of the folder, in the folder lib of a root, that has the libraries for this
// program.
func Key() string { return Source[:12] + "-" + runtime.GOARCH }

// Core opens LibTorch and then libcgotorch.so. It reads files, and takes as long as the
// dynamic loader takes for LibTorch: some 0.3 s from the page cache.
func Core() (*Library, error) {
	folder, m, err := Find(CoreFile)
	if err != nil {
		return nil, err
	}
	if err := openLibTorch(folder, m); err != nil {
		return nil, err
	}
	return open(filepath.Join(folder, CoreFile), false)
}

// Decoder opens libcgotorch_decode.so. It needs no LibTorch.
func Decoder() (*Library, error) {
	folder, _, err := Find(DecoderFile)
	if err != nil {
		return nil, err
	}
	return open(filepath.Join(folder, DecoderFile), false)
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
		return fmt.Errorf("%s has version %d of its interface, and this program wants %d: %s", l.Path, got, want, cure())
	}
	return nil
}

// use is what the program has said about the folder of the libraries.
var use struct {
	sync.Mutex
	folder string
	looked bool // a library was looked for
}

// Use names the folder of the libraries. It fails if the path is not absolute, and if a library was
// opened before.
func Use(folder string) error {
	use.Lock()
	defer use.Unlock()
	switch {
	case !filepath.IsAbs(folder):
		return fmt.Errorf("the folder %q of the libraries is not an absolute path: write it from /", folder)
	case use.looked:
		return errors.New("the libraries are open already: name their folder before the first call that needs them")
	}
	use.folder = folder
	return nil
}

// Find returns the folder that has a file of this name, and its manifest. Both fit this program.
func Find(file string) (folder string, m Manifest, err error) {
	if folder, err = folderOf(file); err != nil {
		return "", m, err
	}
	if m, err = ReadManifest(filepath.Join(folder, ManifestFile)); err != nil {
		return "", m, err
	}
	return folder, m, m.check(folder)
}

// folderOf returns the folder that has a file of this name.
func folderOf(file string) (string, error) {
	if err := available(); err != nil {
		return "", err
	}
	use.Lock()
	use.looked = true
	program := use.folder
	use.Unlock()
	if folder := os.Getenv("STREAMTORCH_LIB"); folder != "" {
		if !filepath.IsAbs(folder) {
			return "", fmt.Errorf("STREAMTORCH_LIB=%s is not an absolute path: write it from /", folder)
		}
		return only(folder, file, "STREAMTORCH_LIB="+folder+" has no %s: unset it, or name the folder of the libraries")
	}
	if program != "" {
		return only(program, file, program+", which the program names, has no %s: name the folder of the libraries")
	}
	for _, folder := range folders() {
		if has(folder, file) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("%s is in none of these folders: %s: %s", file, strings.Join(folders(), ", "), cure())
}

// only returns the folder, or the one of the libraries in it if it is a root. One must have the
// file.
func only(folder, file, wrong string) (string, error) {
	for _, f := range []string{folder, filepath.Join(folder, "lib", Key())} {
		if has(f, file) {
			return f, nil
		}
	}
	return "", fmt.Errorf(wrong, file)
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
	if root := UserRoot(); root != "" {
		all = append(all, filepath.Join(root, "lib", Key()))
	}
	return append(all, filepath.Join(SystemRoot, "lib", Key()))
}

// UserRoot returns the root of this user: $STREAMTORCH_CACHE, or the folder streamtorch in the
// user's cache. It returns "" if the user has none, or if the path is not absolute.
func UserRoot() string {
	root := os.Getenv("STREAMTORCH_CACHE")
	if root == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if home := os.Getenv("HOME"); cache == "" && home != "" {
			cache = filepath.Join(home, ".cache")
		}
		root = filepath.Join(cache, "streamtorch")
	}
	if !filepath.IsAbs(root) {
		return ""
	}
	return root
}
