//go:build cgo && linux && (amd64 || arm64)

package library

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// libc returns the path of the C library, which this process has open.
func libc(t *testing.T) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(maps)) {
		if path := strings.TrimSpace(l[strings.IndexByte(l, ' '):]); strings.Contains(path, "/libc.so") {
			return path[strings.IndexByte(path, '/'):]
		}
	}
	t.Fatal("the test has no C library")
	return ""
}

// Fill refuses libraries of another interface, and those that lack a function.
func TestFill(t *testing.T) {
	path := libc(t)
	from := func() (*Library, error) { return open(path, false, byVariable) }
	var got []unsafe.Pointer
	fill := func(functions []unsafe.Pointer) { got = functions }
	version := func() int32 { return 4 }
	if err := Fill(from, []string{"getpid"}, fill, version, 4); err != nil || len(got) != 1 || got[0] == nil {
		t.Errorf("got %v, %v", got, err)
	}
	if err := Fill(from, []string{"getpid"}, fill, version, 5); err == nil || !strings.Contains(err.Error(), "has version 4 of its interface, and this program wants 5: put the libraries") {
		t.Errorf("another interface: %v", err)
	}
	got = nil
	if err := Fill(from, []string{"getpid", "get_none"}, fill, version, 4); err == nil || !strings.Contains(err.Error(), "no function get_none") || got != nil {
		t.Errorf("a function that is missing: %v, %v", got, err)
	}
}

// A library that is cut off anywhere is an error in place of SIGBUS.
func TestWhole(t *testing.T) {
	text, err := os.ReadFile(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libc10.so")
	write(t, path, string(text))
	if err := whole(path, ofUser); err != nil {
		t.Error(err)
	}
	for _, size := range []int{0, 3, 63, 64, 500, 4096, len(text) / 2, len(text) - 1} {
		write(t, path, string(text[:size]))
		if err := allWhole(filepath.Dir(path), ofUser, "libc10"); err == nil || !strings.Contains(err.Error(), "is cut off") {
			t.Errorf("%d of %d bytes: %v", size, len(text), err)
		}
	}
}

// Each folder's cure can help there.
func TestRule_Cure(t *testing.T) {
	for by, text := range map[rule]string{
		byVariable: "unset STREAMTORCH_LIB", byProgram: "another folder", beside: "beside the program", ofClone: "make libraries in", ofLibTorch: "LIBTORCH",
	} {
		path := filepath.Join(t.TempDir(), "libcgotorch.so")
		write(t, path, "no library, in more than the 64 bytes that the header of a library has")
		if _, err := open(path, false, by); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want an error with %q", err, text)
		}
	}
	for said, text := range map[string]string{
		"libstdc++.so.6: cannot open shared object file: No such file or directory":                   "apt-get install libstdc++6",
		"libgomp.so.1: cannot open shared object file: No such file or directory":                     "apt-get install libgomp1",
		"libz.so.1: cannot open shared object file: No such file or directory":                        "has libz.so.1",
		"/lib/libc.so.6: version `GLIBC_2.28' not found (required by /a/libtorch_cpu.so)":             "glibc 2.28 or newer",
		"/a/libc10.so: cannot open shared object file: No such file or directory":                     "",
		"libcudart.so.13: cannot open shared object file: No such file or directory":                  "",
		"/a/libtorch_cpu.so: cannot allocate memory in static TLS block":                              "GLIBC_TUNABLES",
		"/a/libcgotorch.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic": "",
	} {
		if got := systemCure(said); !strings.Contains(got, text) || text == "" && got != "" {
			t.Errorf("%s: got %q, want %q", said, got, text)
		}
	}
}

// A pipe that nobody writes is no manifest, and reading it does not wait.
func TestReadManifest_Pipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), ManifestFile)
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := ReadManifest(path)
		read <- err
	}()
	select {
	case err := <-read:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("ReadManifest waits for a pipe")
	}
}

// The program may be called by a link: the folder of its file counts.
func TestPlaceOf_Symlink(t *testing.T) {
	if os.Getenv("LIBRARY_TEST_PLACE") != "" {
		p, err := placeOf("a.so")
		os.Stdout.WriteString(p.folder)
		if err != nil {
			os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	folder, links := t.TempDir(), t.TempDir()
	program, link := filepath.Join(folder, "program"), filepath.Join(links, "link")
	touch(t, filepath.Join(folder, "lib/a.so"))
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "-test.run", "TestPlaceOf_Symlink")
	cmd.Env = append(os.Environ(), "LIBRARY_TEST_PLACE=1", "STREAMTORCH_LIB=")
	if out, err := cmd.Output(); err != nil || string(out) != filepath.Join(folder, "lib") {
		t.Errorf("got %q, %v, want the folder lib in %s", out, err, folder)
	}
}
