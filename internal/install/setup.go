package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/csrc"
	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// Prepare is the program setup: it makes the clone in the current folder ready to compile. The
// arguments are a purpose, or manifest, and the folder that gets what was found.
func Prepare(ctx context.Context, lock *Lock, args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("usage: setup PURPOSE [FOLDER]")
	}
	clone, err := os.Getwd()
	if err != nil {
		return err
	}
	out := filepath.Join(clone, "build")
	if len(args) == 2 {
		if out, err = filepath.Abs(args[1]); err != nil {
			return err
		}
	}
	if args[0] == "manifest" {
		return writeManifest(clone, out)
	}
	cuda, err := HasDriver()
	if err != nil {
		return err
	}
	in := &Installer{Lock: lock, CUDA: cuda, Version: os.Getenv("LIBTORCH_VERSION"), Out: NewPrinter(os.Stdout)}
	return in.setup(ctx, clone, out, args[0])
}

// A purpose is what a clone is made ready for.
type purpose struct{ loader, tests, patchelf bool }

// purposeOf returns the purpose of that name.
func purposeOf(name string) (p purpose, err error) {
	switch name {
	case "build":
	case "test":
		p = purpose{tests: true, patchelf: true}
	case "bundle":
		p = purpose{patchelf: true}
	case "loader":
		p = purpose{loader: true}
	case "test-loader":
		p = purpose{loader: true, tests: true}
	default:
		err = fmt.Errorf("setup %s: want build, test, bundle, loader or test-loader", name)
	}
	return p, err
}

// setup makes a clone ready to compile, and the machine with it: it installs system packages if it
// may. It finds LibTorch, or downloads it, and writes libtorch.cmake, libtorch.env and
// libtorch.json into the folder `out`. On a machine that is ready, setup does nothing. The loader
// needs no LibTorch, so for it setup looks for compilers and packages alone.
func (in *Installer) setup(ctx context.Context, clone, out, name string) error {
	p, err := purposeOf(name)
	if err != nil {
		return err
	}
	if err := Check(); err != nil {
		return err
	}
	if strings.ContainsAny(clone, " \t\n") {
		return fmt.Errorf("%s: cgo cannot build in a folder with a space in its name; move the clone", clone)
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return fmt.Errorf("%s cannot be made: %w", out, err)
	}
	if err := writeSource(clone); err != nil {
		return err
	}
	stamp := filepath.Join(out, "setup."+name)
	key := in.setupKey()
	if isDone(out, stamp, key, p) {
		return nil
	}
	unlock, err := lockFile(ctx, filepath.Join(out, "setup.lock"), func() { in.Out.Line("another make is setting this clone up; waiting for it") })
	if err != nil {
		return err
	}
	defer unlock()
	if isDone(out, stamp, key, p) {
		return nil
	}
	os.Remove(stamp)
	if err := in.ready(ctx, out, p); err != nil {
		return err
	}
	if !p.loader {
		t, err := in.FindTorch(ctx)
		if err == nil {
			err = in.headers(ctx, "", t)
		}
		if err != nil {
			return err
		}
		if err := in.writeTorch(out, t); err != nil {
			return fmt.Errorf("%s cannot be written: %w", out, err)
		}
	}
	return os.WriteFile(stamp, key, 0o666)
}

// setupKey is all that a set-up depends on.
func (in *Installer) setupKey() []byte {
	var key bytes.Buffer
	for _, name := range []string{"LIBTORCH", "CXX", "CC", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"} {
		fmt.Fprintf(&key, "%s=%s\n", name, os.Getenv(name))
	}
	fmt.Fprintf(&key, "version=%s cuda=%v root=%s\n", in.Version, in.CUDA, in.rootPath())
	for _, w := range in.Lock.wheels {
		fmt.Fprintln(&key, w.line)
	}
	return key.Bytes()
}

// isDone reports whether a set-up with this key has ended, and its LibTorch is still there.
func isDone(out, stamp string, key []byte, p purpose) bool {
	if had, err := os.ReadFile(stamp); err != nil || !bytes.Equal(had, key) {
		return false
	}
	if p.loader {
		return true
	}
	m, err := library.ReadManifest(filepath.Join(out, torchFile))
	return err == nil && sizeOf(filepath.Join(m.Folder, "libtorch_cpu.so")) > 0
}

// ready gets the tools and packages of a purpose.
func (in *Installer) ready(ctx context.Context, out string, p purpose) error {
	if err := needTools(ctx); err != nil {
		return err
	}
	missing := missingPackages(ctx, p.tests, p.patchelf)
	if len(missing) == 0 {
		return nil
	}
	if err := getPackages(ctx, in.Out, filepath.Join(out, "apt.log"), missing); err != nil {
		return err
	}
	if missing = missingPackages(ctx, p.tests, p.patchelf); len(missing) > 0 {
		return fmt.Errorf("%s installed, and still not found by %s; set CPATH and LIBRARY_PATH to where they are", strings.Join(missing, " "), variable("CXX", "g++"))
	}
	return nil
}

// torchFile, in the folder of a set-up, has the LibTorch that was found, as a manifest.
const torchFile = "libtorch.json"

// bundledFile, in the folder of a set-up, is the manifest for libraries that go to another machine,
// whose LibTorch lies elsewhere.
const bundledFile = "bundled.json"

// writeTorch writes what CMake, the scripts and writeManifest read. A file whose text stays the
// same is not touched, so that nothing is compiled again.
func (in *Installer) writeTorch(out string, t *Torch) error {
	m := library.Manifest{Folder: t.Lib(), Open: t.Open, LibTorch: t.Version, Platform: library.Platform}
	changed := false
	for name, text := range map[string]string{
		torchFile:        string(m.Text()),
		"libtorch.cmake": t.CMake(),
		"libtorch.env":   fmt.Sprintf("LIBTORCH_LIB=%q\nCUDA_LIB=%q\n", t.Lib(), t.cudaLib()),
	} {
		wrote, err := replaceText(filepath.Join(out, name), text)
		if err != nil {
			return err
		}
		changed = changed || wrote
	}
	if changed {
		in.Out.Line("LibTorch %s: %s, from %s", t.Version, t.Folder, t.Origin)
	}
	return nil
}

// replaceText writes a file if it has another text.
func replaceText(path, text string) (wrote bool, err error) {
	if had, err := os.ReadFile(path); err == nil && string(had) == text {
		return false, nil
	}
	return true, replace.Write(path, []byte(text))
}

// writeManifest writes the manifest beside the libraries that were compiled from a clone's csrc
// into the folder lib of `out`, and the one for a bundle.
func writeManifest(clone, out string) error {
	source, err := csrc.Hash(os.DirFS(filepath.Join(clone, "csrc")))
	if err != nil {
		return err
	}
	m := library.Manifest{}
	lib := filepath.Join(out, "lib")
	if sizeOf(filepath.Join(lib, library.CoreFile)) > 0 {
		if m, err = library.ReadManifest(filepath.Join(out, torchFile)); err != nil {
			return err
		}
	}
	m.Platform, m.Source = library.Platform, source
	if _, err = replaceText(filepath.Join(lib, library.ManifestFile), string(m.Text())); err != nil {
		return err
	}
	m.Folder, m.Open = "", nil
	_, err = replaceText(filepath.Join(out, bundledFile), string(m.Text()))
	return err
}

// writeSource writes the hash of a clone's csrc into the Go code, if it has changed. Programs of
// the clone then want the libraries that are compiled from it.
func writeSource(clone string) error {
	source, err := csrc.Hash(os.DirFS(filepath.Join(clone, "csrc")))
	if err != nil {
		return err
	}
	text := "// Code generated by make setup. DO NOT EDIT.\n\npackage library\n\n" +
		"// Source is the SHA-256 of the C++ sources that the libraries for this program are compiled from.\n" +
		"const Source = \"" + source + "\"\n"
	_, err = replaceText(filepath.Join(clone, "internal/library/source_gen.go"), text)
	return err
}
