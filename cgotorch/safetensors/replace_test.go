package safetensors

import (
	"bytes"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const errFull = syscall.ENOSPC

func tensorOf(bytes int) []Tensor {
	return []Tensor{{Name: "w", DType: "U8", Shape: []int64{int64(bytes)}, Data: make([]byte, bytes)}}
}

// onlyFile checks that the file at `path` holds `content`, and that it is the only file in its
// folder.
func onlyFile(t *testing.T, path string, content []byte) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("the folder holds %v, want %s alone", entries, filepath.Base(path))
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s changed: %d bytes, %v; want %d bytes", path, len(got), err, len(content))
	}
}

func TestWriteFile_Replaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	for _, n := range []int{10, 2_000_000, 3} {
		must.Do(t, WriteFile(path, tensorOf(n), nil))
		var want bytes.Buffer
		must.Do(t, Write(&want, tensorOf(n), nil))
		onlyFile(t, path, want.Bytes())
	}
	must.Do(t, os.Chmod(path, 0o640))
	must.Do(t, WriteFile(path, tensorOf(1), nil))
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("permissions are %v, %v; want 640", info.Mode(), err)
	}
}

func TestWriteFile_Failures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	must.Do(t, WriteFile(path, tensorOf(10), nil))
	old, _ := os.ReadFile(path)
	broken := errors.New("no element")
	failing := []Tensor{{Name: "w", DType: "U8", Shape: []int64{3_000_000}, Data: make([]byte, 3_000_000)},
		{Name: "x", DType: "U8", Shape: []int64{1}, Read: func() ([]byte, error) { return nil, broken }}}

	torchtest.WantError(t, WriteFile(path, failing, nil), broken, path, "tensor x")
	onlyFile(t, path, old)

	failing[1].Read = func() ([]byte, error) { panic("as an operator does") }
	func() {
		defer func() { recover() }()
		WriteFile(path, failing, nil)
	}()
	onlyFile(t, path, old)

	torchtest.WantError(t, WriteFile(path, append(tensorOf(1), tensorOf(1)...), nil), nil, path+": tensor w is there twice")
	onlyFile(t, path, old)

	torchtest.WantError(t, WriteFile(filepath.Join(path, "x"), tensorOf(1), nil), syscall.ENOTDIR)
	if err := WriteFile(filepath.Dir(path), tensorOf(1), nil); err == nil {
		t.Error("a folder was replaced")
	}
	if leftovers, _ := filepath.Glob(filepath.Dir(path) + ".new-*"); len(leftovers) > 0 {
		t.Errorf("left behind: %v", leftovers)
	}
}

// TestWriteFile_FullDisk fills a file system of 1 MiB. If the test may not mount a file system,
// it is skipped, and only TestWriteFile_FileTooLarge runs.
func TestWriteFile_FullDisk(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a file system to fill cannot be mounted here: ", err)
	}
	defer syscall.Unmount(folder, 0)
	path := filepath.Join(folder, "run.safetensors")
	must.Do(t, WriteFile(path, tensorOf(400_000), nil))
	old, _ := os.ReadFile(path)
	torchtest.WantError(t, WriteFile(path, tensorOf(800_000), nil), errFull, path, "make room or choose another path")
	onlyFile(t, path, old)
	if err := WriteFile(path, tensorOf(500_000), nil); err != nil { // fits because the failed WriteFile has removed its file
		t.Errorf("afterwards: %v", err)
	}
}

const limitedPath = "SAFETENSORS_LIMITED_PATH"

// TestWriteFile_FileTooLarge writes while files are limited to 1 MiB. A separate process has this
// limit.
func TestWriteFile_FileTooLarge(t *testing.T) {
	if path := os.Getenv(limitedPath); path != "" {
		signal.Ignore(syscall.SIGXFSZ) // if the process ignores this signal, the write returns an error
		must.Do(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
		torchtest.WantError(t, WriteFile(path, tensorOf(3<<20), nil), syscall.EFBIG, path+": not saved")
		return
	}
	path := filepath.Join(t.TempDir(), "run.safetensors")
	must.Do(t, WriteFile(path, tensorOf(400_000), nil))
	old, _ := os.ReadFile(path)
	limited := exec.Command(os.Args[0], "-test.run=^TestWriteFile_FileTooLarge$")
	limited.Env = append(os.Environ(), limitedPath+"="+path)
	if out, err := limited.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	onlyFile(t, path, old)
}

// A killed process leaves its new file. The next WriteFile to the same path removes it, but not the
// new file of a process that still writes, and no file of another name.
func TestWriteFile_RemovesAbandoned(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "run.safetensors")
	for _, name := range []string{"run.safetensors.new-3w5e11264sgsf", "run.safetensors.new-notes.txt", "other.safetensors.new-3w5e11264sgsf", "run.safetensors.new-zz"} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte("part"), 0o644))
	}
	writing, err := os.Open(filepath.Join(folder, "run.safetensors.new-zz"))
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Close()
	if err := syscall.Flock(int(writing.Fd()), syscall.LOCK_EX); err != nil {
		t.Skip("no locks here: ", err)
	}
	inner := func() ([]byte, error) { // another save of the same path runs while this one writes
		return []byte{1}, WriteFile(path, tensorOf(1), nil)
	}
	must.Do(t, WriteFile(path, []Tensor{{Name: "x", DType: "U8", Shape: []int64{1}, Read: inner}}, nil))
	var left []string
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"other.safetensors.new-3w5e11264sgsf", "run.safetensors", "run.safetensors.new-notes.txt", "run.safetensors.new-zz"}
	if !slices.Equal(left, want) {
		t.Errorf("the folder has %q, want %q", left, want)
	}
}
