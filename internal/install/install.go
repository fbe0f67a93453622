package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/streamtorch/streamtorch/internal/library"
)

// Install puts the libraries for this version of the module into the root, and LibTorch if it is
// not on the machine. With loader it is the library that needs no LibTorch alone. It waits for
// another process that changes the root. What was there stays until the new libraries are whole.
func (in *Installer) Install(ctx context.Context, loader bool) error {
	if err := Check(); err != nil {
		return err
	}
	final := in.rootPath()
	if final != "" {
		final = filepath.Join(final, "lib", library.Key())
	}
	if _, ours := wholeLibraries(final); !ours {
		if err := in.canFill(ctx); err != nil { // before LibTorch is downloaded
			return err
		}
	}
	var t *Torch
	var err error
	if !loader {
		if t, err = in.FindTorch(ctx); err != nil {
			return err
		}
		in.Out.Line("LibTorch %s: %s, from %s", t.Version, t.Folder, t.Origin)
	}
	if in.isThere(final, t) { // a root that is whole need not be writable
		in.Out.Line("the libraries are in %s already", final)
		return nil
	}
	return in.locked(ctx, func(root string) error { return in.put(ctx, root, t) })
}

// canFill fails if no libraries can come: neither from -from, nor from a release, nor by compiling.
func (in *Installer) canFill(ctx context.Context) error {
	if folder, ok := in.local(); ok {
		if !isFolder(folder) {
			return fmt.Errorf("-from %s is not a folder; name one, or an address that begins with https://", folder)
		}
		return nil
	}
	if in.From != "" || !in.compiles() {
		return nil
	}
	return canCompile(ctx)
}

// compiles reports whether the libraries are to be compiled, since there is no release of this
// version for this platform, or because the user wants it.
func (in *Installer) compiles() bool {
	return in.Compile || !strings.Contains(in.Lock.archives, "libcgotorch-"+library.Source[:12]+"-"+library.Platform)
}

// put puts the libraries for a LibTorch, or without one for the loader, into a root. The caller has
// its lock.
func (in *Installer) put(ctx context.Context, root string, t *Torch) error {
	if t != nil && sizeOf(filepath.Join(t.Lib(), "libtorch_cpu.so")) == 0 {
		return fmt.Errorf("LibTorch is not in %s any more; run this again", t.Lib())
	}
	final := filepath.Join(root, "lib", library.Key())
	if in.isThere(final, t) {
		in.Out.Line("the libraries are in %s already", final)
		return nil
	}
	work, remove, err := workFolder(root)
	if err != nil {
		return err
	}
	defer remove()
	to := filepath.Join(work, "libraries")
	if err := makeReadable(to); err != nil {
		return unwritable(root, err)
	}
	if err := in.fill(ctx, root, work, to, t); errors.Is(err, syscall.ENOSPC) {
		return full(root)
	} else if err != nil {
		return fmt.Errorf("the libraries: %w", err)
	}
	if err := place(to, final); err != nil {
		return unwritable(root, err)
	}
	in.Out.Line("the libraries are in %s", final)
	return nil
}

// isThere reports whether a folder has the libraries for a LibTorch, whole and of this version. A
// nil LibTorch stands for the loader, whose library the others have too. What a folder of -from has
// is taken again each time, since a developer changes it.
func (in *Installer) isThere(folder string, t *Torch) bool {
	m, ours := wholeLibraries(folder)
	if !ours {
		return false
	}
	if t == nil {
		return m.LibTorch != "" || in.From == "" && !in.Compile
	}
	_, local := in.local()
	return !local && !in.Compile && m.Folder == t.Lib() && m.LibTorch != "" && library.Release(m.LibTorch) == library.Release(t.Version)
}

// wholeLibraries returns the manifest of the libraries in a folder. `ours` says that they are
// whole, and of this version. The path "" has none.
func wholeLibraries(folder string) (m library.Manifest, ours bool) {
	if folder == "" {
		return m, false
	}
	m, err := library.ReadManifest(filepath.Join(folder, library.ManifestFile))
	return m, err == nil && m.Source == library.Source && m.Platform == library.Platform && len(wrongLibraries(folder)) == 0
}

// fill puts libraries, their manifest and their hashes into a folder.
func (in *Installer) fill(ctx context.Context, root, work, to string, t *Torch) error {
	err := in.prebuilt(ctx, root, to, t)
	var m library.Manifest
	switch {
	case errors.Is(err, errNone):
		m, err = in.compiled(ctx, root, work, to, t)
	case err == nil:
		m, err = in.given(to, t)
	}
	if err != nil {
		return err
	}
	m.Folder, m.Open = "", nil
	if t != nil {
		m.Folder, m.Open = t.Lib(), t.Open
	} else {
		m.LibTorch = ""
	}
	path := filepath.Join(to, library.ManifestFile)
	if err := errors.Join(os.WriteFile(path, m.Text(), 0o644), os.Chmod(path, 0o644)); err != nil {
		return err
	}
	var names []string
	entries, err := os.ReadDir(to)
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return errors.Join(err, WriteSums(to, names))
}

// compiled compiles the libraries into a folder, and returns their manifest.
func (in *Installer) compiled(ctx context.Context, root, work, to string, t *Torch) (library.Manifest, error) {
	m := library.Manifest{Platform: library.Platform, Source: library.Source}
	if !in.Compile {
		in.Out.Line("there are no prebuilt libraries of this version for %s", in.target(t))
	}
	if t != nil {
		m.LibTorch = t.Version
		if err := in.headers(ctx, root, t); err != nil {
			return m, err
		}
	}
	return m, in.compile(ctx, work, to, t)
}

// given returns the manifest of libraries that came from a release or from -from. It fails if they
// are not those that this program wants.
func (in *Installer) given(to string, t *Torch) (m library.Manifest, err error) {
	origin := "the release"
	if in.From != "" {
		origin = "-from " + printable(in.From)
	}
	wanted := library.DecoderFile
	if t != nil {
		wanted = library.CoreFile
	}
	if sizeOf(filepath.Join(to, wanted)) == 0 {
		return m, fmt.Errorf("%s gave no %s; make them anew", origin, wanted)
	}
	m, err = library.ReadManifest(filepath.Join(to, library.ManifestFile))
	switch {
	case err != nil:
		return m, fmt.Errorf("%s gave no readable %s: %w", origin, library.ManifestFile, err)
	case m.Platform != library.Platform || m.Source != library.Source:
		return m, fmt.Errorf("those of %s are for %s and source %.12s, and this program wants %s and %.12s; make them anew", origin, m.Platform, m.Source, library.Platform, library.Source)
	case t != nil && m.LibTorch == "":
		return m, fmt.Errorf("those of %s are for the loader alone; give -loader, or other libraries", origin)
	case t != nil && library.Release(m.LibTorch) != library.Release(t.Version):
		return m, fmt.Errorf("those of %s are for LibTorch %s, and LibTorch %s is here; give -libtorch %s, or other libraries", origin, m.LibTorch, t.Version, m.LibTorch)
	}
	return m, nil
}

func (in *Installer) target(t *Torch) string {
	if t == nil {
		return "the loader on " + library.Platform
	}
	return "LibTorch " + t.Version + " on " + library.Platform
}
