// Package deploy tests make bundle, and the files of examples/serve/deploy with a bundle of
// examples/serve. A bundle runs in a root that has nothing else.
package deploy

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// root returns the root of the repository.
func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	must.Do(t, err)
	return path
}

// makeBundle makes a bundle without CUDA and returns its folder. The end of the test removes it.
// It lies in build/, because /tmp may be in memory.
func makeBundle(t *testing.T, program string, args ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Join(root(t), "build"), "deploy")
	if err != nil {
		t.Fatalf("%v; run make build", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bundle := filepath.Join(dir, "bundle")
	args = append([]string{"-C", root(t), "--no-print-directory", "bundle", "PROGRAM=" + program, "OUT=" + bundle, "CUDA=0"}, args...)
	if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
		t.Fatalf("make bundle PROGRAM=%s: %v\n%s", program, err, out)
	}
	return bundle
}

// inEmptyRoot returns a command that runs a program of a bundle in a root that has this bundle,
// /proc, /sys and /dev, as a container has them, and the folders of mounts. All but /dev is
// read-only. mounts has a folder of the machine for each folder of the root. The process of the
// command is the program's.
func inEmptyRoot(t *testing.T, bundle string, mounts map[string]string, program string, args ...string) *exec.Cmd {
	t.Helper()
	unshare := []string{"--mount", "--user", "--map-root-user"}
	if err := exec.Command("unshare", append(unshare, "true")...).Run(); err != nil {
		if unshare = unshare[:1]; exec.Command("unshare", append(unshare, "true")...).Run() != nil {
			t.Skipf("this user may not make a namespace: unshare: %v", err)
		}
	}
	all := map[string]string{"/proc": "/proc", "/sys": "/sys", "/dev": "/dev"}
	for to, from := range mounts {
		all[to] = from
	}
	// A remount without a flag that the mount has already is refused, so it repeats the flags.
	script := `set -e
		root=$1
		readonly() { mount -o "remount,bind,$(findmnt -nro VFS-OPTIONS --mountpoint "$1" | tail -1 | sed 's/^rw/ro/')" "$1"; }
		mount --bind "$root" "$root"
		readonly "$root"
		while [ "$2" != -- ]; do
			mount --rbind "$3" "$root$2"
			case $2 in /proc | /sys | /dev | /cache) ;; *) readonly "$root$2" ;; esac
			shift 2
		done
		shift 2
		exec env -i STREAMTORCH_CACHE=/cache "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$root" "$@"`
	command := append(unshare, "bash", "-c", script, "bash", bundle)
	for to, from := range all {
		must.Do(t, os.MkdirAll(filepath.Join(bundle, to), 0o777))
		command = append(command, to, from)
	}
	return exec.Command("unshare", append(append(command, "--", program), args...)...)
}

func TestBundle_BadInput(t *testing.T) {
	occupied := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(occupied, "mine"), nil, 0o666))
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "make bundle PROGRAM=./examples/serve"},
		{[]string{"PROGRAM=./examples/nothing"}, "is not a folder"},
		{[]string{"PROGRAM=./docs"}, "go list fails there"},
		{[]string{"PROGRAM=./cgotorch"}, "is package cgotorch; name the folder of a main package"},
		{[]string{"PROGRAM=./internal/cuts/cutdocs"}, "needs no bundle"},
		{[]string{"PROGRAM=./examples/inspect", "OUT=" + occupied}, "is no bundle"},
		{[]string{"PROGRAM=./examples/inspect", "CUDA=yes"}, "must be 0, 1 or unset"},
	} {
		out, err := exec.Command("make", append([]string{"-C", root(t), "--no-print-directory", "bundle"}, test.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "streamtorch: ") || !strings.Contains(string(out), test.want) {
			t.Errorf("make bundle %v: %v, want an error with %q:\n%s", test.args, err, test.want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(occupied, "mine")); err != nil {
		t.Error(err)
	}
}

// other is a program of another module. It needs the decoder of images and no LibTorch.
const other = `package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

var version = "none"

func main() { fmt.Println(version, decode.Sniff([]byte("\x89PNG\r\n\x1a\n"))) }
`

func TestBundle_OtherModule(t *testing.T) {
	dir := t.TempDir()
	sums := must.Get(os.ReadFile(filepath.Join(root(t), "go.sum")))(t)
	for name, text := range map[string]string{
		"main.go": other,
		"go.mod": "module example.org/other\n\ngo 1.24.0\n\nrequire github.com/streamtorch/streamtorch v0.0.0\n\n" +
			"replace github.com/streamtorch/streamtorch => " + root(t) + "\n",
		"go.sum": string(sums),
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	tidy := exec.Command("go", "mod", "tidy")
	tidy.Dir, tidy.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod")
	if out, err := tidy.CombinedOutput(); err != nil {
		t.Skipf("go mod tidy, which wants modules that only tests need: %v\n%s", err, out)
	}
	bundle := makeBundle(t, dir, "GO_LDFLAGS=-X main.version=v1")
	checkLibraries(t, bundle)
	if torch, _ := filepath.Glob(filepath.Join(bundle, "lib/libtorch*")); torch != nil {
		t.Errorf("the program needs no LibTorch, and the bundle has %v", torch)
	}
	for _, license := range []string{"streamtorch/LICENSE", "go/LICENSE"} {
		if _, err := os.Stat(filepath.Join(bundle, "licenses", license)); err != nil {
			t.Error(err)
		}
	}
	cmd := inEmptyRoot(t, bundle, nil, "/other")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if out, err := cmd.Output(); err != nil || !strings.EqualFold(string(out), "v1 PNG\n") {
		t.Errorf("the program printed %q, %v\n%s", out, err, errs.String())
	}
}

// glibc are the libraries that come from the machine, where the bundle is not the root.
var glibc = regexp.MustCompile(`/(ld-linux[^/]*|lib(c|m|dl|pthread|rt|util|resolv|mvec|nss_[a-z]+)\.so\.[0-9]+)$`)

// checkLibraries fails the test if a file of the bundle names a folder outside of it, or if the
// loader of this machine takes a library from elsewhere.
func checkLibraries(t *testing.T, bundle string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(bundle, "lib/*.so*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("the bundle has the libraries %v, %v", files, err)
	}
	programs := must.Get(filepath.Glob(filepath.Join(bundle, "*")))(t)
	for _, path := range append(files, programs...) {
		file, err := elf.Open(path)
		var format *elf.FormatError
		if info, _ := os.Stat(path); errors.As(err, &format) || info.IsDir() {
			continue
		}
		must.Do(t, err)
		for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
			folders, err := file.DynString(tag)
			if err != nil || len(folders) > 0 && !slices.Contains([]string{"$ORIGIN", "$ORIGIN/lib"}, folders[0]) {
				t.Errorf("%s looks for libraries in %v, %v", path, folders, err)
			}
		}
		file.Close()
		// A program links none of these libraries, and opens the core after LibTorch.
		if filepath.Dir(path) != bundle && !strings.HasPrefix(filepath.Base(path), "libcgotorch") {
			continue
		}
		ldd := exec.Command("ldd", path)
		ldd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+bundle+"/lib")
		out, err := ldd.Output()
		if err != nil {
			t.Errorf("ldd %s: %v", path, err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if len(fields) > 2 && fields[1] == "=>" && !strings.HasPrefix(fields[2], bundle+"/lib/") && !glibc.MatchString(fields[2]) {
				t.Errorf("%s: %s", path, strings.TrimSpace(line))
			}
		}
	}
}
