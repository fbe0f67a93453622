package safetensors

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/filelock"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

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
	before := must.Get(os.Stat(path))(t).Mode()
	must.Do(t, WriteFile(path, tensorOf(1), nil))
	if after := must.Get(os.Stat(path))(t).Mode(); after != before {
		t.Errorf("permissions are %v, want %v", after, before)
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

// A killed process leaves its new file. The next WriteFile to the same path removes it, but not the
// new file of a process that still writes, and no file of another name.
func TestWriteFile_RemovesAbandoned(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "run.safetensors")
	for _, name := range []string{"run.safetensors.new-3w5e11264sgsf", "run.safetensors.new-notes.txt", "other.safetensors.new-3w5e11264sgsf", "run.safetensors.new-zz"} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte("part"), 0o644))
	}
	writing, err := filelock.Open(filepath.Join(folder, "run.safetensors.new-zz"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Close()
	if err := filelock.Lock(writing); err != nil {
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
