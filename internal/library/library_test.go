package library

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// touch makes an empty file, which is enough to be found.
func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestFolderOf(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ environment, text string }{
		{"", "libabsent.so is in none of these folders"}, {"build/lib", "absolute"}, {folder, "STREAMTORCH_LIB=" + folder},
	} {
		t.Setenv("STREAMTORCH_LIB", c.environment)
		if _, err := folderOf("libabsent.so"); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("STREAMTORCH_LIB=%s: got %v, want an error with %q", c.environment, err, c.text)
		}
	}
	touch(t, filepath.Join(folder, "libabsent.so"))
	if got, err := folderOf("libabsent.so"); err != nil || got != folder {
		t.Errorf("STREAMTORCH_LIB=%s: got %q, %v", folder, got, err)
	}
}

func TestLibTorchFor(t *testing.T) {
	ours, torch, other := t.TempDir(), filepath.Join(t.TempDir(), "a folder"), t.TempDir()
	t.Setenv("LIBTORCH", "")
	fails := func(what, text string) {
		t.Helper()
		if _, _, err := libTorchFor(ours); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error with %q", what, err, text)
		}
	}
	fails("no file", "is unknown")
	named := filepath.Join(ours, torchFile)
	if err := os.WriteFile(named, []byte(torch+"\n/x/libcudart.so.13\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	fails("a folder without LibTorch", named)
	t.Setenv("LIBTORCH", other)
	fails("$LIBTORCH without LibTorch", "LIBTORCH="+other)
	touch(t, filepath.Join(other, "lib", "libtorch_cpu.so"))
	if got, _, err := libTorchFor(ours); err != nil || got != filepath.Join(other, "lib") {
		t.Errorf("$LIBTORCH: got %q, %v", got, err)
	}
	touch(t, filepath.Join(torch, "libtorch_cpu.so"))
	if got, before, err := libTorchFor(ours); err != nil || got != torch || len(before) != 1 || before[0] != "/x/libcudart.so.13" {
		t.Errorf("the named LibTorch: got %q, %q, %v", got, before, err)
	}
	touch(t, filepath.Join(ours, "libtorch_cpu.so"))
	if got, _, err := libTorchFor(ours); err != nil || got != ours {
		t.Errorf("LibTorch beside our libraries: got %q, %v", got, err)
	}
}
