package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// roots returns the roots that are looked through: the chosen one, or the user's and that of all.
func (in *Installer) roots() []string {
	if in.Root != "" {
		return []string{in.Root}
	}
	var all []string
	for _, root := range []string{library.UserRoot(), library.SystemRoot} {
		if root != "" && isFolder(root) {
			all = append(all, root)
		}
	}
	return all
}

var (
	ofLibraries = regexp.MustCompile(`^[0-9a-f]{12}-(amd64|arm64)$`)
	ofWheel     = regexp.MustCompile(`^[a-z0-9-]+-[0-9.]+-[0-9a-f]{12}$`)
	ofDownload  = regexp.MustCompile(`^([a-z0-9-]+-[0-9.]+-[0-9a-f]{12}\.whl|libcgotorch-[0-9a-f]{12}-.*\.tar\.gz)(\.part)?$`)
)

// parts returns the folders of a root that Install made: our libraries, trees of wheels, wheels. It
// knows them by their exact names.
func parts(root string) (libraries, trees, wheels []string) {
	return matching(filepath.Join(root, "lib"), ofLibraries), matching(root, ofTree), matching(filepath.Join(root, "wheels"), ofWheel)
}

// List writes what is installed, with the version that this program wants marked.
func (in *Installer) List(to io.Writer) error {
	found := false
	for _, root := range in.roots() {
		libraries, trees, _ := parts(root)
		for _, folder := range libraries {
			found = true
			mark, what := " ", "no manifest, so not whole"
			if m, err := library.ReadManifest(filepath.Join(folder, library.ManifestFile)); err == nil {
				what = "the loader alone"
				if m.LibTorch != "" {
					what = "for LibTorch " + m.LibTorch + " in " + m.Folder
				}
			}
			if filepath.Base(folder) == library.Key() {
				mark = "*"
			}
			fmt.Fprintf(to, "%s libraries  %6d MB  %s, %s\n", mark, megabytes(bytesIn(folder)), folder, what)
		}
		for _, folder := range trees {
			found = true
			fmt.Fprintf(to, "  LibTorch   %6d MB  %s\n", megabytes(bytesIn(folder)), folder)
		}
	}
	if !found {
		fmt.Fprintln(to, in.nothing())
		return nil
	}
	fmt.Fprintf(to, "* is for this version of the module, source %.12s\n", library.Source)
	return nil
}

func bytesIn(folder string) (n int64) {
	filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// ErrDamaged is returned by Verify if a file is missing or has changed.
var ErrDamaged = errors.New("something is damaged: run remove, and then install")

// Verify reads all that is installed, and writes which files are missing or have changed.
func (in *Installer) Verify(ctx context.Context, to io.Writer) error {
	found, damaged := false, false
	tell := func(folder string, wrong []string) {
		found = true
		for _, w := range wrong {
			fmt.Fprintf(to, "%s: %s\n", folder, w)
		}
		if len(wrong) == 0 {
			fmt.Fprintf(to, "%s: whole\n", folder)
		}
		damaged = damaged || len(wrong) > 0
	}
	for _, root := range in.roots() {
		libraries, trees, _ := parts(root)
		for _, folder := range libraries {
			tell(folder, wrongLibraries(folder))
		}
		for _, folder := range trees {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			wrong, listed := wrongTree(folder)
			if !listed {
				found = true
				fmt.Fprintf(to, "%s: it has no list of hashes, so it cannot be checked\n", folder)
				continue
			}
			tell(folder, wrong)
		}
	}
	switch {
	case damaged:
		return ErrDamaged
	case !found:
		return in.nothing()
	}
	return nil
}

// nothing is the error for roots in which nothing is installed.
func (in *Installer) nothing() error {
	roots := in.roots()
	if len(roots) == 0 {
		roots = []string{library.UserRoot(), library.SystemRoot}
	}
	return fmt.Errorf("nothing is installed in %s; run install, or give the -prefix that it had", strings.Join(roots, " and "))
}

// wrongLibraries returns what is wrong with the files of a folder of libraries.
func wrongLibraries(folder string) []string {
	text, err := os.ReadFile(filepath.Join(folder, sumsFile))
	if err != nil {
		return []string{sumsFile + " is missing"}
	}
	var wrong []string
	wanted := []string{library.ManifestFile, library.DecoderFile}
	if m, err := library.ReadManifest(filepath.Join(folder, library.ManifestFile)); err == nil && m.LibTorch != "" {
		wanted = append(wanted, library.CoreFile)
	}
	for _, name := range wanted {
		if sumOf(string(text), name) == "" {
			wrong = append(wrong, sumsFile+" has no "+name)
		}
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			wrong = append(wrong, compare(folder, f[1], f[0], Hash)...)
		}
	}
	return wrong
}

// wrongTree returns what is wrong with the files of a tree of wheels. `listed` is false if the tree
// has no hashes of its files.
func wrongTree(folder string) (wrong []string, listed bool) {
	for _, record := range recordsIn(folder) {
		files, err := readRecord(filepath.Join(folder, record))
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		for _, f := range files {
			wrong = append(wrong, compare(folder, f.name, f.hash, recordHash)...)
		}
		listed = true
	}
	return wrong, listed
}

// compare returns what is wrong with a file that must have a hash.
func compare(folder, name, want string, hash func(path string) (string, error)) []string {
	have, err := hash(filepath.Join(folder, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []string{name + " is missing"}
	case err != nil:
		return []string{err.Error()}
	case have != want:
		return []string{name + " has changed"}
	}
	return nil
}

// Remove removes what Install made in the root, and tells how much. What it does not know by its
// exact name stays. Another process must not use what is removed.
func (in *Installer) Remove(ctx context.Context, to io.Writer) error {
	root := in.rootPath()
	if libraries, trees, wheels := parts(root); root == "" || len(libraries)+len(trees)+len(wheels) == 0 {
		return in.nothing()
	}
	return in.locked(ctx, func(root string) error {
		libraries, trees, wheels := parts(root)
		downloads := append(workFolders(root), matching(filepath.Join(root, "tmp"), ofDownload)...)
		bytes := int64(0)
		for _, path := range slices.Concat(libraries, trees, wheels, downloads) {
			bytes += bytesIn(path)
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("%s cannot be removed: %w; run this as the user who installed it", path, err)
			}
		}
		for _, folder := range []string{"lib", "wheels", "tmp"} {
			os.Remove(filepath.Join(root, folder)) // if nothing of others is in it
		}
		fmt.Fprintf(to, "removed %d MB from %s\n", megabytes(bytes), root)
		return nil
	})
}
