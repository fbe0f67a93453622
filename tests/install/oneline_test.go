package install

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// A program that cannot open the libraries, because of how it was compiled, ends with one line that
// says what to do.
func TestOneLine(t *testing.T) {
	const (
		tensors = `return cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { x.Ones(cgotorch.Float32, 2); return nil })`
		probe   = `_, err := decode.Probe([]byte("\x89PNG\r\n\x1a\n")); return err`
		static  = "-ldflags=-linkmode external -extldflags -static"
	)
	for _, c := range []struct {
		name, imports, function, compiler, cgo, flags, want string
	}{
		{"cgotorch without cgo", "cgotorch", tensors, "gcc", "0", "", "CGO_ENABLED=1 and a C compiler"},
		{"decode without cgo", "imageloader/decode", probe, "gcc", "0", "", "CGO_ENABLED=1 and a C compiler"},
		{"static", "cgotorch", tensors, "gcc", "1", static, "link it without -static"},
		{"musl", "cgotorch", tensors, "musl-gcc", "1", "", "LibTorch needs glibc"},
		{"musl, decode", "imageloader/decode", probe, "musl-gcc", "1", "", "LibTorch needs glibc"},
		{"static musl", "cgotorch", tensors, "musl-gcc", "1", static, "LibTorch needs glibc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.compiler); err != nil {
				t.Skip("the package musl-tools is not installed: ", err)
			}
			source, program := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "program")
			text := "package main\nimport (\"fmt\"; \"os\"; \"" + module + "/" + c.imports + "\")\nfunc f() error { " + c.function +
				" }\nfunc main() { if err := f(); err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) } }\n"
			must.Do(t, os.WriteFile(source, []byte(text), 0o666))
			execute(t, "../..", []string{"CC=" + c.compiler, "CGO_ENABLED=" + c.cgo}, "go", "build", cmp.Or(c.flags, "-v=false"), "-o", program, source)
			cmd := exec.Command(program)
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 || bytes.Count(out, []byte("\n")) != 1 || bytes.Count(out, []byte(c.want)) != 1 {
				t.Errorf("%v, and it printed %q, want 1 and a line with %q", cmd.ProcessState, out, c.want)
			}
			t.Logf("%s", out)
		})
	}
}

// The first program of the README compiles where gcc is that of musl, as on Alpine.
func TestMusl_Compiles(t *testing.T) {
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		t.Skip("the package musl-tools is not installed: ", err)
	}
	execute(t, "../..", []string{"CC=musl-gcc", "CGO_ENABLED=1"}, "go", "build", "-o", filepath.Join(t.TempDir(), "a"), "./examples/quickstart")
}
