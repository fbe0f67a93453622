package library

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// touch makes an empty file, which is enough to be found.
func touch(t *testing.T, path string) { write(t, path, "") }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPlaceOf(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ environment, text string }{
		{"", "libabsent.so is in none of these folders"}, {"build/lib", "absolute"}, {folder, "STREAMTORCH_LIB=" + folder},
		{folder, "or unset STREAMTORCH_LIB"}, {"/tmp/50%dx", "STREAMTORCH_LIB=/tmp/50%dx has no libabsent.so"},
	} {
		t.Setenv("STREAMTORCH_LIB", c.environment)
		if _, err := placeOf("libabsent.so"); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("STREAMTORCH_LIB=%s: got %v, want an error with %q", c.environment, err, c.text)
		}
	}
	t.Setenv("STREAMTORCH_LIB", folder)
	touch(t, filepath.Join(folder, "libabsent.so"))
	if got, err := placeOf("libabsent.so"); err != nil || got.folder != folder {
		t.Errorf("STREAMTORCH_LIB=%s: got %v, %v", folder, got, err)
	}
}

func TestUse(t *testing.T) {
	t.Setenv("STREAMTORCH_LIB", "")
	named, root, missing := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "missing")
	touch(t, filepath.Join(named, "libabsent.so"))
	touch(t, filepath.Join(root, "lib", Key(), "libother.so"))
	defer func() { use.folder, use.looked = "", false }()
	fails := func(folder, text string) {
		t.Helper()
		if err := Use(folder); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Use(%q): got %v, want an error with %q", folder, err, text)
		}
	}
	for _, c := range []struct{ use, file, want string }{
		{named, "libabsent.so", named}, {root, "libother.so", filepath.Join(root, "lib", Key())}, {named, "libother.so", ""},
	} {
		use.folder, use.looked = "", false
		fails("build/lib", "absolute")
		fails(missing, "no such file")
		fails(filepath.Join(named, "libabsent.so"), "is a file")
		if err := Use(c.use); err != nil {
			t.Fatal(err)
		}
		fails(t.TempDir(), "the program has named "+c.use)
		got, err := placeOf(c.file)
		if got.folder != c.want || c.want == "" && !strings.Contains(err.Error(), c.use+", which the program names") {
			t.Errorf("%s in %s: got %q, %v", c.file, c.use, got.folder, err)
		}
		if err := Use(c.use + "/"); err != nil {
			t.Errorf("the same folder once more: %v", err)
		}
		use.folder = ""
		fails(c.use, "a call has looked for the libraries before")
	}
}

// header writes the header by which a LibTorch tells its version.
func header(t *testing.T, torch, version string) {
	t.Helper()
	n := strings.Split(version, ".")
	text := "#define TORCH_VERSION_MAJOR " + n[0] + "\n#define TORCH_VERSION_MINOR " + n[1] + "\n#define TORCH_VERSION_PATCH " + n[2] + "\n"
	write(t, filepath.Join(torch, "include/torch/headeronly/version.h"), text)
}

func TestFolder_LibTorch(t *testing.T) {
	ours, torch, other := t.TempDir(), filepath.Join(t.TempDir(), "a folder"), t.TempDir()
	t.Setenv("LIBTORCH", "")
	m := Manifest{LibTorch: "2.11.0"}
	fails := func(what, text string) {
		t.Helper()
		if _, err := (Folder{ours, m, ofUser}).libTorch(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error with %q", what, err, text)
		}
	}
	fails("no LibTorch", "does not say where LibTorch 2.11.0 is")
	m.Folder, m.Open = filepath.Join(torch, "lib"), []string{"/x/libcudart.so.13"}
	fails("a folder without LibTorch", m.Folder+" any more, or this user cannot read it")
	t.Setenv("LIBTORCH", other)
	fails("$LIBTORCH without LibTorch", "LIBTORCH="+other)
	touch(t, filepath.Join(other, "lib", "libtorch_cpu.so"))
	fails("$LIBTORCH without its headers", "version is unknown")
	header(t, other, "2.12.1")
	fails("$LIBTORCH of another release", "is LibTorch 2.12.1, and 2.11.0 is needed")
	header(t, other, "2.11.1")
	works := func(what, want, version string) {
		t.Helper()
		if got, have, err := (Folder{ours, m, ofUser}).LibTorch(); err != nil || got != want || have != version {
			t.Errorf("%s: got %q, %q, %v", what, got, have, err)
		}
	}
	works("$LIBTORCH", filepath.Join(other, "lib"), "2.11.1")
	m.LibTorch = "2.11"
	works("a manifest with a release", filepath.Join(other, "lib"), "2.11.1")
	m.LibTorch = "2.11.0"
	t.Setenv("LIBTORCH", "torch")
	fails("a relative $LIBTORCH", "LIBTORCH=torch is not an absolute path: write it from /")
	touch(t, filepath.Join(torch, "lib", "libtorch_cpu.so"))
	header(t, torch, "2.10.0")
	fails("the named LibTorch, replaced by another release", "is LibTorch 2.10.0, and 2.11.0 is needed")
	header(t, torch, "2.11.0")
	works("the named LibTorch", filepath.Join(torch, "lib"), "2.11.0")
	if got, _ := (Folder{ours, m, ofUser}).libTorch(); len(got.before) != 1 || got.before[0] != "/x/libcudart.so.13" {
		t.Errorf("the named LibTorch: %q are opened before it", got.before)
	}
	ours = filepath.Join(ours, "lib")
	touch(t, filepath.Join(ours, "libtorch_cpu.so"))
	works("LibTorch beside our libraries, of which the manifest alone tells", ours, "2.11.0")
	header(t, filepath.Dir(ours), "2.10.0")
	fails("LibTorch beside our libraries, of another release", "is LibTorch 2.10.0, and 2.11.0 is needed")
}

// A LibTorch without headers has its version in a file.
func TestTorchVersion(t *testing.T) {
	for name, text := range map[string]string{
		"build-version": "2.11.0+cpu\n",
		"version.py":    "from typing import Optional\n\n__all__ = ['__version__', 'git_version']\n__version__ = '2.11.0+cu130'\ndebug = False\n",
	} {
		folder := t.TempDir()
		write(t, filepath.Join(folder, name), text)
		if got, err := TorchVersion(folder); got != "2.11.0" {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	folder := t.TempDir()
	write(t, filepath.Join(folder, "version.py"), "__version__ = '2.11.0'\n") // of any program
	if _, err := TorchVersion(folder); err == nil || !strings.Contains(err.Error(), "write its version, such as 2.11.0, into "+folder) {
		t.Errorf("no version: %v", err)
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
		{`{"platform": "` + Platform + `", "source": "` + Source + `", "folder": "torch/lib"}`, "torch/lib, which is not an absolute path"},
		{`{"platform": "` + Platform + `", "source": "` + Source + `", "open": ["libm.so"]}`, "libm.so, which is not an absolute path"},
	} {
		path := filepath.Join(folder, ManifestFile)
		if c.manifest != "" {
			write(t, path, c.manifest)
		}
		if _, err := Find(DecoderFile); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("manifest %q: got %v, want an error with %q", c.manifest, err, c.text)
		}
	}
	m := Manifest{Platform: Platform, Source: Source, LibTorch: "2.11.0", Open: []string{"/a"}}
	write(t, filepath.Join(folder, ManifestFile), string(m.Text()))
	if got, err := Find(DecoderFile); err != nil || got.Path != folder || got.Manifest.Open[0] != "/a" {
		t.Errorf("got %v, %v", got, err)
	}
}
