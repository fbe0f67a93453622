// Package install tests what the author of a program outside this module does: go get, go build, go
// vet and go mod vendor, and make install.
package install

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// program is a small program that uses the library.
const program = `
// cut: program
package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

func main() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	err := stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float32{1, 2, 3}, 3)
		fmt.Println(cgotorch.ToSlice[float32](x, x.Add(a, a)), decode.Sniff([]byte("\x89PNG\r\n\x1a\n")))
		return nil
	})
	if err != nil {
		panic(err)
	}
}
// end: program
`

func TestInstall_ModuleOutside(t *testing.T) {
	root := must.Get(filepath.Abs("../.."))(t)
	if _, err := os.Stat(filepath.Join(root, "build/lib/libcgotorch.so")); err != nil {
		t.Fatal("the libraries are not built; run make build")
	}

	// The source is a copy without the products of builds, because go get fetches only the tracked
	// files.
	source := t.TempDir()
	for file := range strings.Lines(run(t, root, nil, "git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.go", "*_gen.h", "go.mod", "go.sum")) {
		copyFile(t, root, source, strings.TrimSpace(file))
	}

	prefix := t.TempDir()
	installed := []string{"libcgotorch.so", "libcgotorch_decode.so", "libcgotorch.torch"}
	// SUDO_USER makes the target behave as under sudo, where make install only copies files that are
	// built. This test checks the copies, and not the build.
	run(t, root, []string{"SUDO_USER=nobody"}, "make", "--no-print-directory", "install", "PREFIX="+prefix)
	for _, file := range installed {
		if _, err := os.Stat(filepath.Join(prefix, "lib", file)); err != nil {
			t.Error(err)
		}
	}

	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666))
	run(t, dir, nil, "go", "mod", "init", "example.org/outside")
	run(t, dir, nil, "go", "mod", "edit", "-require=github.com/streamtorch/streamtorch@v0.0.0",
		"-replace=github.com/streamtorch/streamtorch="+source)
	copyFile(t, root, dir, "go.sum")
	run(t, dir, nil, "go", "build", "-mod=mod", "-o", "outside", ".")
	run(t, dir, nil, "go", "vet", "-mod=mod", ".")
	run(t, dir, nil, "go", "mod", "vendor")
	run(t, dir, nil, "go", "build", "-mod=vendor", "-o", "vendored", ".")
	run(t, dir, []string{"CGO_ENABLED=0"}, "go", "build", "-mod=vendor", "-o", "pure", ".")
	run(t, dir, []string{"CGO_ENABLED=0", "GOOS=darwin"}, "go", "vet", "-mod=vendor", ".")
	run(t, dir, []string{"CGO_ENABLED=0", "GOOS=windows"}, "go", "vet", "-mod=vendor", ".")

	lib := []string{"STREAMTORCH_LIB=" + filepath.Join(prefix, "lib")}
	for _, program := range []string{"./outside", "./vendored"} {
		if got, want := run(t, dir, lib, program), "[2 4 6] PNG\n"; !strings.EqualFold(got, want) {
			t.Errorf("%s printed %q, want %q", program, got, want)
		}
	}
	for _, c := range []struct {
		program, env, text string
	}{
		{"./outside", "STREAMTORCH_LIB=" + dir, "STREAMTORCH_LIB=" + dir + " has no libcgotorch.so"},
		{"./outside", "STREAMTORCH_LIB=", "libcgotorch.so is in none of these folders: " + dir},
		{"./pure", lib[0], "CGO_ENABLED=1"},
	} {
		if got := fails(t, dir, c.env, c.program); !strings.Contains(got, c.text) {
			t.Errorf("%s %s printed %q, want %q", c.env, c.program, got, c.text)
		}
	}

	run(t, root, nil, "make", "--no-print-directory", "uninstall", "PREFIX="+prefix)
	for _, file := range installed {
		if _, err := os.Stat(filepath.Join(prefix, "lib", file)); err == nil {
			t.Errorf("make uninstall left %s", file)
		}
	}
}

// copyFile copies a file. It does nothing if the working tree does not have the file.
func copyFile(t *testing.T, from, to, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(from, file))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(filepath.Join(to, file)), 0o777)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(to, file), text, 0o666)
	}
	must.Do(t, err)
}

// fails runs a program that must end with 2, as after a panic, and returns what it printed.
func fails(t *testing.T, dir, env, name string) string {
	t.Helper()
	cmd := exec.Command(name)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env)
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("%s %s: %v", env, name, cmd.ProcessState)
	}
	return string(out)
}

// run runs a command and returns its standard output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}
