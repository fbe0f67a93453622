package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// whole skips a test that takes minutes, but in make test-install.
func whole(t *testing.T) {
	t.Helper()
	if os.Getenv(wholeVariable) == "" {
		t.Skip("it takes minutes; run make test-install")
	}
}

// installed returns a machine on which the libraries are installed.
func installed(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.write("main.go", program)
	m.run("go", "get", module+"@"+version)
	m.run("go", "run", command, "install", "-from", m.release.URL)
	return m
}

// What an author does with a module: tests, with the race detector too, and a second module that
// uses the first one.
func TestWhole_Modules(t *testing.T) {
	whole(t)
	m := installed(t)
	m.write("main_test.go", "package main\n\nimport \"testing\"\n\nfunc TestMain_Runs(t *testing.T) { main() }\n")
	m.run("go", "test", ".")
	m.run("go", "test", "-race", ".")

	must.Do(t, os.MkdirAll(filepath.Join(m.dir, "double"), 0o777))
	m.write("double/double.go", `package double

import "github.com/streamtorch/streamtorch/cgotorch"

func Of(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor { return x.Add(t, t) }
`)
	second := *m
	second.dir = t.TempDir()
	second.write("main.go", strings.ReplaceAll(strings.ReplaceAll(program, "x.Add(a, a)", "double.Of(x, a)"),
		"\t\"github.com/streamtorch/streamtorch/cgotorch\"\n", "\t\"example.org/outside/double\"\n\t\"github.com/streamtorch/streamtorch/cgotorch\"\n"))
	second.run("go", "mod", "init", "example.org/second")
	second.run("go", "mod", "edit", "-require=example.org/outside@v0.0.0", "-replace=example.org/outside="+m.dir)
	second.run("go", "mod", "tidy")
	if got := second.run("go", "run", "."); got != printed {
		t.Errorf("the second module printed %q, want %q", got, printed)
	}
	second.run("go", "work", "init", ".", m.dir)
	if got := second.run("go", "run", "."); got != printed {
		t.Errorf("in a workspace it printed %q, want %q", got, printed)
	}
}

// A bundle of a module that knows no clone.
func TestWhole_Bundle(t *testing.T) {
	whole(t)
	m := installed(t)
	out := filepath.Join(t.TempDir(), "bundle")
	cmd := m.command("make", "bundle", "PROGRAM="+m.dir, "OUT="+out, "CUDA=0")
	cmd.Dir = must.Get(filepath.Abs("../.."))(t)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make bundle: %v\n%s", err, tail(string(said)))
	}
	run := exec.Command(filepath.Join(out, "outside"))
	run.Env, run.Dir = []string{"HOME=/nonexistent"}, "/"
	if got, err := run.CombinedOutput(); err != nil || string(got) != printed {
		t.Errorf("the bundle printed %q, %v", got, err)
	}
}

// A processor without AVX2, which QEMU stands for.
func TestWhole_OldProcessor(t *testing.T) {
	whole(t)
	qemu, err := exec.LookPath("qemu-x86_64-static")
	if err != nil {
		t.Fatalf("missing: qemu-user-static; run: apt-get install qemu-user-static: %v", err)
	}
	m := installed(t)
	m.run("go", "build", "-o", "outside", ".")
	if got := m.run(qemu, "-cpu", "Westmere", "./outside"); got != printed {
		t.Errorf("without AVX2 it printed %q, want %q", got, printed)
	}
}

// A home that cannot be written is an error of install, and does not hinder a program.
func TestWhole_ReadOnlyHome(t *testing.T) {
	whole(t)
	if os.Getuid() != 0 {
		t.Skip("a read-only mount needs root")
	}
	m := installed(t)
	m.run("go", "build", "-o", "outside", ".")
	m.with("GOBIN="+m.dir).run("go", "install", command)
	script := "mount --bind " + m.home + " " + m.home + " && mount -o remount,ro,bind " + m.home + " && exec \"$@\""
	inside := func(args ...string) *exec.Cmd {
		return m.command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh"}, args...)...)
	}
	if got, err := inside("./outside").CombinedOutput(); err != nil || string(got) != printed {
		t.Errorf("with a read-only home it printed %q, %v", got, err)
	}
	if got, err := inside("./streamtorch", "install", "-compile").CombinedOutput(); err == nil || !strings.Contains(string(got), "cannot be written") {
		t.Errorf("install with a read-only home: %v\n%s", err, got)
	}
}
