package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// workshop builds mutants in a folder.
//
//	build/mutation/csrc     a copy of csrc, in which one file is a mutant
//	build/mutation/cmake    CMake's files
//	build/mutation/lib      the libraries of the mutant
//	build/mutation/bin      test binaries
type workshop struct {
	root, dir string
	jobs      int
	tests     map[string]string // the test binaries of unchanged packages, by folder
}

func newWorkshop(jobs int) (*workshop, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat("build/lib/libcgotorch.so"); err != nil {
		return nil, fmt.Errorf("no libraries here: run make mutations in the root of the tree: %w", err)
	}
	w := &workshop{root: root, dir: filepath.Join(root, "build/mutation"), jobs: jobs, tests: map[string]string{}}
	return w, os.MkdirAll(filepath.Join(w.dir, "bin"), 0o755)
}

func command(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// control runs the tests of all edges on the unchanged tree. All of them must pass, because a
// test that always fails shows nothing. The tests of edges in C++ run with libraries that are built
// as those of a mutant.
func (w *workshop) control(all []edge) error {
	inGo, inCC := map[string][]string{}, map[string][]string{}
	for _, e := range all {
		tests := inGo
		if !e.isGo() {
			tests = inCC
		}
		if e.device != onGPU && !slices.Contains(tests[e.folder], e.test) {
			tests[e.folder] = append(tests[e.folder], e.test)
		}
	}
	if err := w.pass(inGo, filepath.Join(w.root, "build/lib")); err != nil || len(inCC) == 0 {
		return err
	}
	lib, err := w.buildLibraries(edge{})
	if err != nil {
		return err
	}
	return w.pass(inCC, lib)
}

// pass fails if one of the tests, by folder, fails with the libraries in the folder `lib`.
func (w *workshop) pass(byFolder map[string][]string, lib string) error {
	for folder, tests := range byFolder {
		binary, err := w.testBinary(folder)
		if err != nil {
			return err
		}
		failed, output, err := w.runTest(binary, folder, strings.Join(tests, "|"), lib)
		if err != nil {
			return err
		}
		if failed {
			return fmt.Errorf("the tests of %s fail with every edge in place:\n%s", folder, output)
		}
	}
	return nil
}

// try removes the edge and reports whether the edge's test fails.
func (w *workshop) try(e edge) (caught bool, output string, err error) {
	lib := filepath.Join(w.root, "build/lib")
	var binary string
	if e.isGo() {
		binary = filepath.Join(w.dir, "bin/mutant.test")
		err = w.buildGo(e, binary)
	} else {
		if binary, err = w.testBinary(e.folder); err == nil {
			lib, err = w.buildLibraries(e)
		}
	}
	if err != nil {
		return false, "", err
	}
	return w.runTest(binary, e.folder, e.test, lib)
}

// testBinary builds the test binary of an unchanged Go package, unless it is already built.
func (w *workshop) testBinary(folder string) (string, error) {
	if binary := w.tests[folder]; binary != "" {
		return binary, nil
	}
	binary := filepath.Join(w.dir, "bin", strings.ReplaceAll(folder, "/", "-")+".test")
	if err := command("go", "test", "-c", "-o", binary, "./"+folder); err != nil {
		return "", err
	}
	w.tests[folder] = binary
	return binary, nil
}

// buildGo builds the test binary without the edge e of a Go file.
func (w *workshop) buildGo(e edge, binary string, flags ...string) error {
	source := e.mutated()
	// The go command ignores files that begin with an underscore, so ./... does not match the mutant.
	mutant, overlay := filepath.Join(w.dir, "_mutant.go"), filepath.Join(w.dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(w.root, e.file): mutant}})
	if err != nil {
		return err
	}
	args := append([]string{"test", "-c", "-overlay", overlay, "-o", binary}, flags...)
	for {
		if err := errors.Join(os.WriteFile(mutant, []byte(source), 0o644), os.WriteFile(overlay, replace, 0o644)); err != nil {
			return err
		}
		err := command("go", append(args, "./"+e.folder)...)
		if err == nil {
			return nil
		}
		before := source
		if source = repaired(source, e.statements[0].start, err.Error()); source == before {
			return fmt.Errorf("%s does not compile: %w", e.name, err)
		}
	}
}

// buildLibraries builds the libraries without the edge e of a C++ file, and returns their folder.
// For an empty e it builds the unchanged libraries.
func (w *workshop) buildLibraries(e edge, targets ...string) (lib string, err error) {
	if err := w.copySources(e); err != nil {
		return "", err
	}
	source, cmake, lib := filepath.Join(w.dir, "csrc"), filepath.Join(w.dir, "cmake"), filepath.Join(w.dir, "lib")
	if _, err := os.Stat(filepath.Join(cmake, "CMakeCache.txt")); err != nil {
		args := []string{"-S", source, "-B", cmake, "-DCGOTORCH_TESTS=ON", "-DCGOTORCH_LIB_DIR=" + lib,
			"-DCMAKE_CXX_FLAGS=-w", // a mutant may have an unused variable, which is no error here
			"-DCGOTORCH_SETUP=" + filepath.Join(w.root, "build/libtorch.cmake")}
		if _, err := exec.LookPath("ninja"); err == nil {
			args = append(args, "-G", "Ninja")
		}
		if err := command("cmake", args...); err != nil {
			return "", err
		}
	}
	args := []string{"--build", cmake, "-j", fmt.Sprint(w.jobs), "--target", "libraries"}
	if err := command("cmake", append(args, targets...)...); err != nil {
		return "", fmt.Errorf("%s does not compile: %w", e.name, err)
	}
	// The programs take the mutant's libraries for those of the tree.
	manifest, err := os.ReadFile(filepath.Join(w.root, "build/lib", library.ManifestFile))
	if err != nil {
		return "", err
	}
	return lib, os.WriteFile(filepath.Join(lib, library.ManifestFile), manifest, 0o644)
}

// copySources makes the copy of csrc equal to the tree, without the edge e. It does not write
// files that are already right. Their times then do not change, and they are not compiled again.
func (w *workshop) copySources(e edge) error {
	files, err := output("git", "ls-files", "--cached", "--others", "--exclude-standard", "csrc")
	if err != nil {
		return err
	}
	for path := range strings.Lines(files) {
		path = strings.TrimSpace(path)
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if path == e.file {
			want = []byte(e.mutated())
		}
		to := filepath.Join(w.dir, path)
		if got, err := os.ReadFile(to); err == nil && bytes.Equal(got, want) {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, want, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// runTest runs tests of a Go package with the libraries in the folder `lib`. A test that does not
// end in time fails.
func (w *workshop) runTest(binary, folder, test, lib string) (failed bool, output string, err error) {
	run := exec.Command(binary, "-test.run", "^("+test+")$", "-test.timeout", "1m", "-test.v")
	run.Dir = filepath.Join(w.root, folder)
	// Without the garbage collector only an owner frees memory. The leak checks then see memory that
	// no owner has freed.
	run.Env = append(os.Environ(), "GOGC=off", "STREAMTORCH_LIB="+lib)
	out, err := run.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return true, string(out), nil
	case err != nil:
		return false, "", err
	}
	if ran := strings.Count(string(out), "\n--- PASS: ") + strings.Count(string(out), "\n--- SKIP: "); ran < strings.Count(test, "|")+1 {
		return false, "", fmt.Errorf("%s: not every test of %s ran:\n%s", folder, test, out)
	}
	return false, string(out), nil
}
