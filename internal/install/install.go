package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/internal/library"
)

// Install puts the libraries for this version of the module into the root, and LibTorch if it is
// not on the machine. With loader it is the library that needs no LibTorch alone. It waits for
// another process that changes the root. What was there stays until the new libraries are whole.
func (in *Installer) Install(ctx context.Context, loader bool) error {
	if err := Check(); err != nil {
		return err
	}
	var t *Torch
	var err error
	if !loader {
		if t, err = in.FindTorch(ctx); err != nil {
			return err
		}
		in.Out.Line("LibTorch %s: %s, from %s", t.Version, t.Folder, t.Origin)
	}
	return in.locked(ctx, func(root string) error {
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
		if err := in.fill(ctx, root, work, to, t); err != nil {
			return fmt.Errorf("the libraries: %w", err)
		}
		if err := place(to, final); err != nil {
			return unwritable(root, err)
		}
		in.Out.Line("the libraries are in %s", final)
		return nil
	})
}

// isThere reports whether a folder has the libraries for a LibTorch, whole and of this version. A
// nil LibTorch stands for the loader.
func (in *Installer) isThere(folder string, t *Torch) bool {
	m, err := library.ReadManifest(filepath.Join(folder, library.ManifestFile))
	if err != nil || m.Source != library.Source || in.From != "" {
		return false
	}
	if t != nil && (m.Folder != t.Lib() || library.Release(m.LibTorch) != library.Release(t.Version) || sizeOf(filepath.Join(folder, library.CoreFile)) == 0) {
		return false
	}
	return len(wrongFiles(folder)) == 0
}

// fill puts libraries, their manifest and their hashes into a folder.
func (in *Installer) fill(ctx context.Context, root, work, to string, t *Torch) error {
	err := in.prebuilt(ctx, root, to, t)
	m := library.Manifest{Platform: library.Platform, Source: library.Source}
	if errors.Is(err, errNone) {
		in.Out.Line("there are no prebuilt libraries of this version for %s", in.target(t))
		if err := in.compile(ctx, work, to, t); err != nil {
			return err
		}
		if t != nil {
			m.LibTorch = t.Version
		}
	} else if err != nil {
		return err
	} else if m, err = library.ReadManifest(filepath.Join(to, library.ManifestFile)); err != nil {
		return err
	} else if m.Platform != library.Platform || m.Source != library.Source {
		return fmt.Errorf("those of -from are for %s and source %.12s, and this program wants %s and %.12s; make them anew", m.Platform, m.Source, library.Platform, library.Source)
	}
	m.Folder, m.Open = "", nil
	if t != nil {
		m.Folder, m.Open = t.Lib(), t.Open
		if library.Release(m.LibTorch) != library.Release(t.Version) {
			return fmt.Errorf("those of -from are for LibTorch %s, and LibTorch %s is here; give -libtorch %s, or other libraries", m.LibTorch, t.Version, m.LibTorch)
		}
	} else {
		m.LibTorch = ""
	}
	if err := os.WriteFile(filepath.Join(to, library.ManifestFile), m.Text(), 0o644); err != nil {
		return unwritable(root, err)
	}
	if err := os.Chmod(filepath.Join(to, library.ManifestFile), 0o644); err != nil {
		return err
	}
	return writeSums(to)
}

func (in *Installer) target(t *Torch) string {
	if t == nil {
		return "the loader on " + library.Platform
	}
	return "LibTorch " + t.Version + " on " + library.Platform
}
