package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// bundle fills the folder `dir` for a GPU machine that has neither Go nor a compiler. The folder
// gets the edges that only a GPU shows.
//
//	run.sh                 tries all edges, against the Python torch of the machine
//	lib/                   the unchanged libraries
//	tests/FOLDER.test      the unchanged tests, and googletest.test
//	edges/NAME/            the files that change if the edge is removed: libraries, or a test binary
//	edges/list             one line for each edge: name, test binary, test
func (w *workshop) bundle(dir string, all []edge) error {
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		return fmt.Errorf("%s is not empty", dir)
	}
	for _, folder := range []string{"lib", "tests", "edges"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	for _, script := range []string{"tests/mutation/run.sh", "tests/bundle/libtorch.sh"} {
		if err := command("cp", script, dir); err != nil {
			return err
		}
	}
	lib, err := w.buildLibraries(edge{}, "cgotorch_test")
	if err != nil {
		return err
	}
	libraries, err := bundled(lib)
	if err != nil {
		return err
	}
	for _, library := range libraries {
		if err := strip(library, filepath.Join(dir, "lib", filepath.Base(library))); err != nil {
			return err
		}
	}
	if err := command("cp", "build/bundled.json", filepath.Join(dir, "lib", library.ManifestFile)); err != nil {
		return err
	}
	if err := strip(filepath.Join(w.dir, "cmake/cgotorch_test"), filepath.Join(dir, "tests/googletest.test")); err != nil {
		return err
	}
	var list strings.Builder
	all = slices.DeleteFunc(all, func(e edge) bool { return e.device != onGPU })
	for _, e := range all {
		name := strings.ReplaceAll(e.folder, "/", "-") + ".test"
		if e.isGoogleTest() {
			name = "googletest.test"
		}
		fmt.Fprintln(&list, e.name, name, e.test)
		control := filepath.Join(dir, "tests", name)
		if _, err := os.Stat(control); err != nil {
			if err := command("go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", control, "./"+e.folder); err != nil {
				return err
			}
		}
		if err := w.bundleEdge(e, dir, name); err != nil {
			return err
		}
		fmt.Println(e.name)
	}
	return os.WriteFile(filepath.Join(dir, "edges/list"), []byte(list.String()), 0o644)
}

// bundleEdge builds the library or the test binary without the edge. It puts those files that
// differ from the unchanged files into the edge's folder in the bundle.
func (w *workshop) bundleEdge(e edge, dir, testName string) error {
	folder := filepath.Join(dir, "edges", e.name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if e.isGo() {
		return w.buildGo(e, filepath.Join(folder, testName), "-trimpath", "-ldflags", "-s -w")
	}
	var targets []string
	if e.isGoogleTest() {
		targets = append(targets, "cgotorch_test")
	}
	lib, err := w.buildLibraries(e, targets...)
	if err != nil {
		return err
	}
	if e.isGoogleTest() { // the test binary contains the core
		return strip(filepath.Join(w.dir, "cmake/cgotorch_test"), filepath.Join(folder, testName))
	}
	libraries, err := filepath.Glob(filepath.Join(lib, "*.so"))
	for _, library := range libraries {
		without := filepath.Join(folder, filepath.Base(library))
		err = errors.Join(err, strip(library, without))
		if command("cmp", without, filepath.Join(dir, "lib", filepath.Base(library))) == nil {
			err = errors.Join(err, os.Remove(without))
		}
	}
	return err
}

// bundled returns the paths of our libraries. It adds the libraries of image formats, because a
// GPU machine may lack these.
func bundled(lib string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(lib, "*.so"))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(err, fmt.Errorf("no libraries in %s", lib))
	}
	needed, err := output("ldd", filepath.Join(lib, "libcgotorch_decode.so"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(needed) {
		fields := strings.Fields(line) // libz.so.1 => /lib/libz.so.1 (0x…)
		if len(fields) > 2 && (strings.HasPrefix(fields[0], "libjpeg") || strings.HasPrefix(fields[0], "libpng") || strings.HasPrefix(fields[0], "libz.")) {
			paths = append(paths, fields[2])
		}
	}
	return paths, nil
}

func strip(from, to string) error { return command("strip", "--strip-unneeded", "-o", to, from) }
