// Package install tests what the author of a program outside this module does: go get, install, go
// run, go build, go vet and go mod vendor.
package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// program is a small program that uses the library.
const program = `
// cut: program
package main

import (
	"bytes"
	"fmt"
	"image"
	"image/png"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

func main() {
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 2, 3))); err != nil {
		panic(err)
	}
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	err := stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float32{1, 2, 3}, 3)
		fmt.Println(cgotorch.ToSlice[float32](x, x.Add(a, a)), decode.Sniff(file.Bytes()))
		return decode.Check(file.Bytes()) // decodes it
	})
	if err != nil {
		panic(err)
	}
}
// end: program
`

const printed = "[2 4 6] PNG\n"

// The commands of the README, in an empty module and an empty home, without a clone. The
// module comes from a proxy, and the libraries from a server on this machine. LibTorch is in the
// cache. No other server is asked. Then the module is vetted, vendored, and vetted without cgo,
// also for other systems.
func TestInstall_Module(t *testing.T) {
	m := newMachine(t)
	if os.Getenv(wholeVariable) != "" {
		m = m.cold()
	}
	m.dir = filepath.Join(m.dir, "app")
	must.Do(t, os.Mkdir(m.dir, 0o777))
	m.run("go", "mod", "init", "example.org/app")
	m.write("main.go", program)
	begin := time.Now()
	m.run("go", "get", module+"@"+version)
	got := time.Now()
	out := m.run("go", "run", command, "install", "-from", m.release.URL)
	installed := time.Now()
	if ran := m.run("go", "run", "."); ran != printed {
		t.Errorf("go run printed %q, want %q", ran, printed)
	}
	t.Logf("go get %.1f s, install %.1f s, go run %.1f s", got.Sub(begin).Seconds(), installed.Sub(got).Seconds(), time.Since(installed).Seconds())
	if !strings.Contains(out, "checked") || !strings.Contains(out, "the libraries are in "+m.home) {
		t.Errorf("install printed\n%s", out)
	}
	if again := m.run("go", "run", command, "install"); !strings.Contains(again, "already") {
		t.Errorf("a second install printed\n%s", again)
	}
	if list := m.run("go", "run", command, "list"); !strings.Contains(list, "* libraries") {
		t.Errorf("list printed\n%s", list)
	}

	m.run("go", "vet", ".")
	m.run("go", "build", "-o", "outside", ".")
	m.run("go", "mod", "vendor")
	m.run("go", "build", "-mod=vendor", "-o", "vendored", ".")
	m.with("CGO_ENABLED=0").run("go", "vet", "-mod=vendor", ".")
	m.with("CGO_ENABLED=0", "GOOS=darwin").run("go", "vet", "-mod=vendor", ".")
	m.with("CGO_ENABLED=0", "GOOS=windows").run("go", "vet", "-mod=vendor", ".")
	for _, program := range []string{"./outside", "./vendored"} {
		if got := m.run(program); got != printed {
			t.Errorf("%s printed %q, want %q", program, got, printed)
		}
	}
	libraries := must.Get(filepath.Glob(filepath.Join(m.home, ".cache/streamtorch/lib/*")))(t)[0]
	empty := t.TempDir()
	for _, c := range []struct {
		program, env, text string
	}{
		{"./outside", "STREAMTORCH_LIB=" + empty, "STREAMTORCH_LIB=" + empty + " has no libcgotorch.so"},
		{"./outside", "HOME=", "libcgotorch.so is in none of these folders: " + m.dir},
		{"./outside", "HOME=" + empty, "cmd/streamtorch@"},
	} {
		if got := m.with(c.env).fails(c.program); !strings.Contains(got, c.text) {
			t.Errorf("%s %s printed %q, want %q", c.env, c.program, got, c.text)
		}
	}
	// A folder of libraries works from anywhere, read-only too, and one that has changed is told.
	if got := m.with("HOME=", "STREAMTORCH_LIB="+libraries).run("./outside"); got != printed {
		t.Errorf("STREAMTORCH_LIB: printed %q", got)
	}
	must.Do(t, os.Truncate(filepath.Join(libraries, "libcgotorch_cuda.so"), 1000))
	if got := m.fails("go", "run", command, "verify"); !strings.Contains(got, "libcgotorch_cuda.so has changed") {
		t.Errorf("verify printed\n%s", got)
	}
	m.run("go", "run", command, "remove")
	if got := m.fails("./outside"); !strings.Contains(got, "is in none of these folders") {
		t.Errorf("after remove: %q", got)
	}
}
