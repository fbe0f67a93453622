// Package install puts LibTorch and the compiled libraries on a machine. The command streamtorch
// and the set-up of a clone call it. It needs no cgo.
//
// A root is a folder with all of it:
//
//	wheels/NAME-VERSION-HASH   one wheel, unpacked
//	libtorch-2.11.0-cpu-HASH   several wheels as one tree, made of hard links. Its folders are those
//	                           that pip makes, because LibTorch finds its libraries by them
//	lib/SOURCE-PROCESSOR       our libraries, and a manifest that says where their LibTorch is
//	tmp                        unfinished downloads. What lies outside of tmp is whole
//
// Each part gets its name when it is whole. A lock of the root lets one process at a time change
// it.
package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/internal/filelock"
	"github.com/streamtorch/streamtorch/internal/library"
)

// Default is the release of LibTorch that is downloaded.
const Default = "2.11.0"

// An Installer puts things into a root.
type Installer struct {
	Root     string // "" is the user's
	Lock     *Lock
	CUDA     bool          // with the CUDA libraries of LibTorch
	Version  string        // the release of LibTorch; "" is any that is there, or Default
	Index    string        // a package index, as that of pip; "" is the one of pip's configuration
	From     string        // a folder or a URL of prebuilt libraries; "" is the release of this version
	Compile  bool          // the libraries are compiled, even if there is a release
	Shared   bool          // for all users of the machine
	Patience time.Duration // with a server that sends nothing; 0 is 30 s
	Arch     string        // the processor of LibTorch, in Go's words; "" is that of this program
	Out      *Printer      // gets what is done
}

func (in *Installer) processor() string {
	if in.Arch != "" {
		return in.Arch
	}
	return runtime.GOARCH
}

// rootPath returns the path of the root, or "" if the user has none.
func (in *Installer) rootPath() string {
	if in.Root != "" {
		return in.Root
	}
	return library.UserRoot()
}

// ErrRoot is wrapped by the error for a root that cannot be written.
var ErrRoot = errors.New("cannot be written")

// folder returns the path of the root, which exists.
func (in *Installer) folder() (string, error) {
	root := in.rootPath()
	switch {
	case root == "" && os.Getenv("STREAMTORCH_CACHE") != "":
		return "", fmt.Errorf("the cache %s is not an absolute path; set STREAMTORCH_CACHE to one", os.Getenv("STREAMTORCH_CACHE"))
	case root == "":
		return "", errors.New("HOME is not set; set STREAMTORCH_CACHE to a folder for downloads")
	case !filepath.IsAbs(root):
		return "", fmt.Errorf("%s is not an absolute path; write it from /", root)
	}
	root = filepath.Clean(root)
	if name := foreign(root); name != "" {
		return "", fmt.Errorf("%s holds other things (%s) and is no root of streamtorch; name a folder of its own, such as %s", root, name, filepath.Join(root, "streamtorch"))
	}
	if err := in.makeFolder(root); err != nil {
		return "", unwritable(root, err)
	}
	return root, nil
}

// lockName is the file of a root that the process holds locked which changes the root. A folder
// with this file is a root.
const lockName = "streamtorch.lock"

var (
	ofRoot = regexp.MustCompile(`^(lib|wheels|tmp|lock|kernels|release|peer-.*)$`)
	ofTree = regexp.MustCompile(`^(libtorch-[0-9.]+-(cpu|cuda)|cuda-[0-9.]+)-[0-9a-f]{12}$`)
)

// foreign returns the name of something in a folder that shows that the folder is no root.
func foreign(root string) string {
	entries, _ := os.ReadDir(root)
	for _, e := range entries {
		if e.Name() == lockName {
			return ""
		}
	}
	for _, e := range entries {
		if !ofRoot.MatchString(e.Name()) && !ofTree.MatchString(e.Name()) {
			return e.Name()
		}
	}
	return ""
}

func unwritable(root string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return full(root)
	}
	return fmt.Errorf("%s %w (%w); set STREAMTORCH_CACHE, or -prefix, to a folder that can", root, ErrRoot, err)
}

func full(folder string) error {
	return fmt.Errorf("the disk of %s is full; free some, or set STREAMTORCH_CACHE, or -prefix, to a folder on another disk: %w", folder, syscall.ENOSPC)
}

// makeFolder makes a folder, and checks that it can be written. If the root is for all users, all
// can read what it makes. It changes no folder that is there.
func (in *Installer) makeFolder(folder string) error {
	var err error
	if in.Shared {
		err = makeReadable(folder)
	} else {
		err = os.MkdirAll(folder, 0o755)
	}
	if err != nil {
		return err
	}
	probe, err := os.CreateTemp(folder, "probe")
	if err != nil {
		return err
	}
	probe.Close()
	return os.Remove(probe.Name())
}

// locked calls f with the path of the root, while no other process changes the root. It waits for
// one that does. Before, it removes what killed processes left.
func (in *Installer) locked(ctx context.Context, f func(root string) error) error {
	root, err := in.folder()
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(root, lockName), func() { in.Out.Line("another streamtorch changes %s; waiting for it", root) })
	if err != nil {
		return unwritable(root, err)
	}
	defer unlock()
	for _, name := range []string{"tmp", "wheels", "lib"} {
		if err := in.makeFolder(filepath.Join(root, name)); err != nil {
			return unwritable(root, err)
		}
	}
	for _, left := range workFolders(root) {
		os.RemoveAll(left)
	}
	return f(root)
}

// lockFile takes the lock of a file. If another process has it, lockFile calls waiting once and
// waits.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := filelock.Open(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		held, err := filelock.Try(file)
		if err == nil && !held {
			return func() { file.Close() }, nil
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("%s cannot be locked: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

var ofWork = regexp.MustCompile(`^streamtorch-[0-9]+$`)

// workFolders returns the folders that workFolder made.
func workFolders(root string) []string { return matching(filepath.Join(root, "tmp"), ofWork) }

// matching returns the paths of what has a matching name in a folder.
func matching(folder string, name *regexp.Regexp) (paths []string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if name.MatchString(e.Name()) {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths
}

// workFolder returns a new folder in tmp of the root, and the function that removes it. The caller
// has the lock.
func workFolder(root string) (folder string, remove func(), err error) {
	folder, err = os.MkdirTemp(filepath.Join(root, "tmp"), "streamtorch-")
	if err != nil {
		return "", nil, unwritable(root, err)
	}
	return folder, func() { os.RemoveAll(folder) }, nil
}

// place gives a whole folder its final name. A folder that has the name goes away. Between the two
// the name is missing for a moment.
func place(folder, final string) error {
	syncFolder(folder)
	old := folder + "-old"
	if err := os.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer os.RemoveAll(old)
	return os.Rename(folder, final)
}
