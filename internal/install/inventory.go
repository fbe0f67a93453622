package install

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// parts returns the folders of a root that Install made: our libraries, trees of wheels, wheels.
func parts(root string) (libraries, trees, wheels []string) {
	libraries, _ = filepath.Glob(filepath.Join(root, "lib", "*-*"))
	for _, name := range []string{"libtorch-*", "cuda-*"} {
		found, _ := filepath.Glob(filepath.Join(root, name))
		trees = append(trees, found...)
	}
	wheels, _ = filepath.Glob(filepath.Join(root, "wheels", "*"))
	return libraries, trees, wheels
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
		fmt.Fprintf(to, "nothing is installed in %s\n", strings.Join(in.roots(), " and "))
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
	damaged := false
	for _, root := range in.roots() {
		libraries, trees, _ := parts(root)
		for _, folder := range append(libraries, trees...) {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if !isListed(folder) {
				fmt.Fprintf(to, "%s: it has no list of hashes, so it cannot be checked\n", folder)
				continue
			}
			wrong := wrongFiles(folder)
			for _, w := range wrong {
				fmt.Fprintf(to, "%s: %s\n", folder, w)
			}
			if len(wrong) == 0 {
				fmt.Fprintf(to, "%s: whole\n", folder)
			}
			damaged = damaged || len(wrong) > 0
		}
	}
	if damaged {
		return ErrDamaged
	}
	return nil
}

// wrongFiles returns what is wrong with the files of a folder: of libraries, or a tree of wheels.
func wrongFiles(folder string) []string {
	var wrong []string
	check := func(name, want string, hash func(path string) (string, error)) {
		have, err := hash(filepath.Join(folder, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			wrong = append(wrong, name+" is missing")
		case err != nil:
			wrong = append(wrong, err.Error())
		case have != want:
			wrong = append(wrong, name+" has changed")
		}
	}
	if strings.HasPrefix(filepath.Base(filepath.Dir(folder)), "lib") {
		text, err := os.ReadFile(filepath.Join(folder, sumsFile))
		if err != nil {
			return []string{sumsFile + " is missing"}
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 {
				check(f[1], f[0], hashOf)
			}
		}
		return wrong
	}
	records, _ := filepath.Glob(filepath.Join(folder, "*.dist-info/RECORD"))
	for _, record := range records {
		for name, want := range recordOf(record) {
			check(name, want, recordHash)
		}
	}
	return wrong
}

// isListed reports whether a folder has hashes of its files. Wheels have, but those of old tools.
func isListed(folder string) bool {
	records, _ := filepath.Glob(filepath.Join(folder, "*.dist-info/RECORD"))
	return len(records) > 0 || strings.HasPrefix(filepath.Base(filepath.Dir(folder)), "lib")
}

// recordOf returns the hashes of the files of a wheel that are unpacked, as the wheel's RECORD has
// them.
func recordOf(path string) map[string]string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	all := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f := strings.Split(lines.Text(), ",")
		if len(f) >= 3 && strings.HasPrefix(f[1], "sha256=") && kept.MatchString(f[0]) {
			all[f[0]] = strings.TrimPrefix(f[1], "sha256=")
		}
	}
	return all
}

// recordHash returns the hash of a file in the form that a RECORD has.
func recordHash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)), err
}

// Remove removes what Install made in the root, and tells how much. Another process must not use
// it.
func (in *Installer) Remove(ctx context.Context, to io.Writer) error {
	root := in.rootPath()
	if root == "" || !isFolder(root) {
		fmt.Fprintf(to, "nothing is installed in %s\n", root)
		return nil
	}
	return in.locked(ctx, func(root string) error {
		before := bytesIn(root)
		libraries, trees, wheels := parts(root)
		for _, folder := range append(append(append(libraries, trees...), wheels...), filepath.Join(root, "tmp")) {
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
		}
		for _, folder := range []string{"lib", "wheels"} {
			os.Remove(filepath.Join(root, folder)) // what is not ours stays
		}
		fmt.Fprintf(to, "removed %d MB from %s\n", megabytes(before-bytesIn(root)), root)
		return nil
	})
}
