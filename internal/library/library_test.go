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

func TestUse(t *testing.T) {
	if err := Use("build/lib"); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative folder: %v", err)
	}
	t.Setenv("STREAMTORCH_LIB", "")
	named, root := t.TempDir(), t.TempDir()
	touch(t, filepath.Join(named, "libabsent.so"))
	touch(t, filepath.Join(root, "lib", Key(), "libother.so"))
	for _, c := range []struct{ use, file, want string }{
		{named, "libabsent.so", named}, {root, "libother.so", filepath.Join(root, "lib", Key())}, {named, "libother.so", ""},
	} {
		use.folder, use.looked = "", false
		if err := Use(c.use); err != nil {
			t.Fatal(err)
		}
		got, err := folderOf(c.file)
		if got != c.want || c.want == "" && !strings.Contains(err.Error(), c.use+", which the program names") {
			t.Errorf("%s in %s: got %q, %v", c.file, c.use, got, err)
		}
		if err := Use(c.use); err == nil || !strings.Contains(err.Error(), "open already") {
			t.Errorf("a second Use: %v", err)
		}
	}
	use.folder = ""
}

// header writes the header by which a LibTorch tells its version.
func header(t *testing.T, torch, version string) {
	t.Helper()
	n := strings.Split(version, ".")
	path := filepath.Join(torch, "include/torch/headeronly/version.h")
	touch(t, path)
	text := "#define TORCH_VERSION_MAJOR " + n[0] + "\n#define TORCH_VERSION_MINOR " + n[1] + "\n#define TORCH_VERSION_PATCH " + n[2] + "\n"
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestLibTorchFor(t *testing.T) {
	ours, torch, other := t.TempDir(), filepath.Join(t.TempDir(), "a folder"), t.TempDir()
	t.Setenv("LIBTORCH", "")
	m := Manifest{LibTorch: "2.11.0"}
	fails := func(what, text string) {
		t.Helper()
		if _, _, err := libTorchFor(ours, m); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error with %q", what, err, text)
		}
	}
	fails("no LibTorch", "does not say where LibTorch 2.11.0 is")
	m.Folder, m.Open = filepath.Join(torch, "lib"), []string{"/x/libcudart.so.13"}
	fails("a folder without LibTorch", m.Folder+" any more")
	t.Setenv("LIBTORCH", other)
	fails("$LIBTORCH without LibTorch", "LIBTORCH="+other)
	touch(t, filepath.Join(other, "lib", "libtorch_cpu.so"))
	fails("$LIBTORCH without its headers", "version is unknown")
	header(t, other, "2.12.1")
	fails("$LIBTORCH of another release", "is LibTorch 2.12.1, and 2.11.0 is needed")
	header(t, other, "2.11.1")
	if got, _, err := libTorchFor(ours, m); err != nil || got != filepath.Join(other, "lib") {
		t.Errorf("$LIBTORCH: got %q, %v", got, err)
	}
	touch(t, filepath.Join(torch, "lib", "libtorch_cpu.so"))
	header(t, torch, "2.10.0")
	fails("the named LibTorch, replaced by another release", "is LibTorch 2.10.0, and 2.11.0 is needed")
	header(t, torch, "2.11.0")
	if got, before, err := libTorchFor(ours, m); err != nil || got != filepath.Join(torch, "lib") || len(before) != 1 || before[0] != "/x/libcudart.so.13" {
		t.Errorf("the named LibTorch: got %q, %q, %v", got, before, err)
	}
	touch(t, filepath.Join(ours, "libtorch_cpu.so"))
	if got, _, err := libTorchFor(ours, m); err != nil || got != ours {
		t.Errorf("LibTorch beside our libraries: got %q, %v", got, err)
	}
}

// A folder of libraries that are not those of this program is an error.
func TestFind_OthersLibraries(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("STREAMTORCH_LIB", folder)
	touch(t, filepath.Join(folder, DecoderFile))
	for _, c := range []struct{ manifest, text string }{
		{"", "unknown"},
		{"{", "unexpected end"},
		{`{"platform": "linux-s390x", "source": "` + Source + `"}`, "are for linux-s390x"},
		{`{"platform": "` + Platform + `", "source": "0123456789abcdef"}`, "source 0123456789ab, want " + Source[:12]},
	} {
		path := filepath.Join(folder, ManifestFile)
		if c.manifest != "" {
			if err := os.WriteFile(path, []byte(c.manifest), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := Find(DecoderFile); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("manifest %q: got %v, want an error with %q", c.manifest, err, c.text)
		}
	}
	m := Manifest{Platform: Platform, Source: Source, LibTorch: "2.11.0", Open: []string{"/a"}}
	if err := os.WriteFile(filepath.Join(folder, ManifestFile), m.Text(), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, found, err := Find(DecoderFile); err != nil || got != folder || found.Open[0] != "/a" {
		t.Errorf("got %q, %v, %v", got, found, err)
	}
}
