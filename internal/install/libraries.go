package install

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// releases is where the archives of a version of csrc lie.
const releases = "https://github.com/streamtorch/streamtorch/releases/download/libraries-"

// sumsFile is the list of hashes in a folder of libraries, and beside the archives of a release.
const sumsFile = "SHA256SUMS"

// ArchiveName returns the name of the archive of libraries for a version of LibTorch and a platform
// such as linux-amd64. Without a version it has the half that needs no LibTorch.
func ArchiveName(platform, torch string) string {
	half := "loader"
	if torch != "" {
		half = "torch" + torch
	}
	return "libcgotorch-" + library.Source[:12] + "-" + platform + "-" + half + ".tar.gz"
}

// errNone says that there are no prebuilt libraries, so they must be compiled.
var errNone = errors.New("there are none")

// prebuilt puts the prebuilt libraries for a LibTorch, or without one for the loader, into a
// folder. It fails with errNone if there are none for it.
func (in *Installer) prebuilt(ctx context.Context, root, to string, t *Torch) error {
	torch := ""
	if t != nil {
		torch = in.Lock.sameRelease(t.Version)
	}
	name := ArchiveName(library.Platform, torch)
	if local, ok := in.local(); ok {
		if sizeOf(filepath.Join(local, library.DecoderFile)) > 0 {
			return copyLibraries(local, to, t != nil)
		}
		return in.fromFolder(local, name, to)
	}
	sum := sumOf(in.Lock.archives, name)
	switch {
	case in.From != "" && sum == "":
		return fmt.Errorf("release.sum of this version has no %s, so what %s sends cannot be checked; give -from a folder", name, printable(in.From))
	case sum == "" || in.Compile:
		return errNone
	}
	from, err := addressOf(in.From, name)
	if err != nil {
		return err
	}
	client, err := in.newClient(pipSettings())
	if err != nil {
		return err
	}
	path := filepath.Join(root, "tmp", name)
	in.Out.Line("downloading the libraries, some 1 MB, into %s", root)
	if err := in.fetch(ctx, client, from, file{title: name, sha256: sum}, path); err != nil {
		return fmt.Errorf("%s: %w; check the network and -from and run this again, or compile them with -compile", printable(from), err)
	}
	defer os.Remove(path)
	return unpackLibraries(path, to)
}

// addressOf returns the address of an archive of the release, or of the mirror `from`.
func addressOf(from, name string) (string, error) {
	if from == "" {
		from = releases + library.Source[:12]
	}
	u, err := url.Parse(from)
	if err != nil {
		return "", errors.New("-from is no address that can be read; write https://HOST/FOLDER")
	}
	return u.JoinPath(name).String(), nil
}

// local returns the folder that -from names, if it is no URL.
func (in *Installer) local() (string, bool) {
	if in.From == "" || strings.HasPrefix(in.From, "http://") || strings.HasPrefix(in.From, "https://") {
		return "", false
	}
	return in.From, true
}

// fromFolder unpacks the archive of that name in a folder. Its hash is that of release.sum, or else
// that of the list in the folder.
func (in *Installer) fromFolder(folder, name, to string) error {
	path := filepath.Join(folder, name)
	if sizeOf(path) == 0 {
		return fmt.Errorf("-from %s has no %s, and no %s either; name a folder that make release made, or build/lib of a clone of this version", folder, name, library.DecoderFile)
	}
	want := sumOf(in.Lock.archives, name)
	if want == "" {
		text, err := os.ReadFile(filepath.Join(folder, sumsFile))
		if err != nil {
			return fmt.Errorf("the hash of %s is unknown: %w; copy that file too", path, err)
		}
		if want = sumOf(string(text), name); want == "" {
			return fmt.Errorf("%s has no line for %s; make the release anew", filepath.Join(folder, sumsFile), name)
		}
		in.Out.Line("%s is not in release.sum of this version; checked against %s alone", name, filepath.Join(folder, sumsFile))
	}
	have, err := Hash(path)
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%s: %w; copy it again", path, &wrongSum{title: name, have: have, want: want})
	}
	return unpackLibraries(path, to)
}

// sameRelease returns the version of the lock whose interface a version of LibTorch has.
func (l *Lock) sameRelease(version string) string {
	i := slices.IndexFunc(l.releases, func(r release) bool { return library.Release(r.version) == library.Release(version) })
	if i < 0 {
		return ""
	}
	return l.releases[i].version
}

// unpackLibraries unpacks an archive of libraries into a new folder.
func unpackLibraries(path, to string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if header.Name == sumsFile { // it is written anew, with the manifest of this machine
			continue
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("%s has a file %q outside of its folder", path, header.Name)
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(header.Name, ".so") {
			mode = 0o755
		}
		if err := writeFile(filepath.Join(to, header.Name), r, mode); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

// copyLibraries copies compiled libraries and their manifest from a folder into a new one.
func copyLibraries(from, to string, core bool) error {
	if core && sizeOf(filepath.Join(from, library.CoreFile)) == 0 {
		return fmt.Errorf("%s has no %s; run make libraries there", from, library.CoreFile)
	}
	for _, path := range matching(from, regexp.MustCompile(`^libcgotorch(_[a-z]+)?\.(so|json)$`)) {
		if !core && !slices.Contains([]string{library.DecoderFile, library.ManifestFile}, filepath.Base(path)) {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = writeFile(filepath.Join(to, filepath.Base(path)), file, 0o644)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
