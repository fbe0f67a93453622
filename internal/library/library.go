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
// KEY has the first digits of Source, and the processor. A folder of rules 3 to 6 is passed over if
// strangers can write it, as they can write /tmp.
//
// LibTorch is the first of these that is there: one in the same folder, the one that the folder's
// manifest names, and $LIBTORCH. It must be of the release that the libraries were compiled for.
//
// A program with the rights of another user, as by setuid, follows no variable of its environment.
package library

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"
)

// A Library is an open shared library.
type Library struct {
	Path   string
	handle unsafe.Pointer
	rule   rule
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
	f, err := Find(CoreFile)
	if err != nil {
		return nil, err
	}
	if err := f.openLibTorch(); err != nil {
		return nil, err
	}
	return open(filepath.Join(f.Path, CoreFile), false, f.rule)
}

// Decoder opens libcgotorch_decode.so. It needs no LibTorch.
func Decoder() (*Library, error) {
	f, err := Find(DecoderFile)
	if err != nil {
		return nil, err
	}
	return open(filepath.Join(f.Path, DecoderFile), false, f.rule)
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
		return fmt.Errorf("%s has version %d of its interface, and this program wants %d: %s", l.Path, got, want, l.rule.cure())
	}
	return nil
}

// use is what the program has said about the folder of the libraries.
var use struct {
	sync.Mutex
	folder string
	looked bool // a library was looked for
}

// Use is process-wide: it names the folder of the libraries. It fails if the path is not absolute
// or names no folder, if the program has named another one, and if a library was looked for before.
func Use(folder string) error {
	use.Lock()
	defer use.Unlock()
	if !filepath.IsAbs(folder) {
		return fmt.Errorf("the folder %q of the libraries is not an absolute path: write it from /", folder)
	}
	folder = filepath.Clean(folder)
	info, err := os.Stat(folder)
	switch {
	case folder == use.folder:
		return nil
	case err != nil:
		return fmt.Errorf("the folder of the libraries cannot be used: %w: name one that is there", err)
	case !info.IsDir():
		return fmt.Errorf("the folder %s of the libraries is a file: name its folder", folder)
	case use.folder != "":
		return fmt.Errorf("the program has named %s as the folder of the libraries, and names %s now: name one", use.folder, folder)
	case use.looked:
		return fmt.Errorf("a call has looked for the libraries before: name their folder %s before it", folder)
	}
	use.folder = folder
	return nil
}
