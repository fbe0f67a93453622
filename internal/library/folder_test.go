package library

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each place comes before the next: the program in `bin` finds the libraries of the last one first,
// and then those that are put before it. The variable comes first of all.
func TestPlaces_Order(t *testing.T) {
	bin, clone, home, cache, system := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("STREAMTORCH_CACHE", "")
	find := func() (place, error) { return first("a.so", places(filepath.Join(bin, "program"), clone, system)) }
	if got, err := find(); err == nil || strings.Count(err.Error(), ", ") < 4 {
		t.Errorf("nothing is there: got %v, %v", got, err)
	}
	for _, c := range []struct {
		folder, variable, value string
		rule                    rule
	}{
		{filepath.Join(system, "lib", Key()), "", "", ofSystem},
		{filepath.Join(home, ".cache/streamtorch/lib", Key()), "", "", ofUser},
		{filepath.Join(home, "xdg/streamtorch/lib", Key()), "XDG_CACHE_HOME", filepath.Join(home, "xdg"), ofUser},
		{filepath.Join(cache, "lib", Key()), "STREAMTORCH_CACHE", cache, ofUser},
		{filepath.Join(clone, "build/lib"), "", "", ofClone},
		{filepath.Join(bin, "lib"), "", "", beside},
		{bin, "", "", beside},
	} {
		touch(t, filepath.Join(c.folder, "a.so"))
		if c.variable != "" {
			t.Setenv(c.variable, c.value)
		}
		if got, err := find(); got.folder != c.folder || got.rule != c.rule {
			t.Errorf("got %v, %v, want %s", got, err, c.folder)
		}
	}
	program, variable := t.TempDir(), t.TempDir()
	touch(t, filepath.Join(program, "a.so"))
	touch(t, filepath.Join(variable, "a.so"))
	use.folder = program
	defer func() { use.folder, use.looked = "", false }()
	for _, c := range []struct{ variable, want string }{{"", program}, {variable, variable}} {
		t.Setenv("STREAMTORCH_LIB", c.variable)
		if got, err := placeOf("a.so"); got.folder != c.want {
			t.Errorf("STREAMTORCH_LIB=%s: got %v, %v, want %s", c.variable, got, err, c.want)
		}
	}
}

// A cache without an absolute path is told, and does not hide the libraries of the machine.
func TestPlaces_BadCache(t *testing.T) {
	system := t.TempDir()
	for _, c := range []struct{ cache, xdg, home, text string }{
		{"relative", "", "/root", "STREAMTORCH_CACHE=relative (it is not an absolute path"},
		{"", "relative", "/root", "XDG_CACHE_HOME=relative (it is not an absolute path"},
		{"", "", "", "the user's cache (HOME is not set)"},
	} {
		t.Setenv("STREAMTORCH_CACHE", c.cache)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		t.Setenv("HOME", c.home)
		if _, err := first("a.so", places("", "", system)); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("got %v, want an error with %q", err, c.text)
		}
		if root := UserRoot(); root != "" {
			t.Errorf("the user's root is %q", root)
		}
	}
	touch(t, filepath.Join(system, "lib", Key(), "a.so"))
	if got, err := first("a.so", places("", "", system)); got.rule != ofSystem {
		t.Errorf("got %v, %v", got, err)
	}
}

// A file of strangers beside the program, in the clone, in the cache or in /opt is passed over.
func TestFirst_Strangers(t *testing.T) {
	t.Setenv("STREAMTORCH_CACHE", "")
	for name, open := range map[string]func(folder string) error{
		"every user can write":    func(folder string) error { return os.Chmod(folder, 0o777|os.ModeSticky) },
		"every user can write ":   func(folder string) error { return os.Chmod(filepath.Join(folder, "a.so"), 0o666) },
		"belongs to another user": func(folder string) error { return os.Chown(folder, 1234, -1) },
		"a.so belongs to another": func(folder string) error { return os.Chown(filepath.Join(folder, "a.so"), 1234, -1) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			t.Setenv("HOME", root)
			t.Setenv("XDG_CACHE_HOME", filepath.Join(root, "cache"))
			all := places(filepath.Join(root, "bin/program"), filepath.Join(root, "clone"), filepath.Join(root, "opt"))
			for _, p := range all {
				touch(t, filepath.Join(p.folder, "a.so"))
				if err := open(p.folder); os.IsPermission(err) {
					t.Skip("giving a file away needs root")
				} else if err != nil {
					t.Fatal(err)
				}
			}
			got, err := first("a.so", all)
			if err == nil || strings.Count(err.Error(), strings.TrimSpace(name)) != len(all) {
				t.Errorf("got %v, %v, want an error with %d times %q", got, err, len(all), name)
			}
			for i := range all {
				all[i].named = true
			}
			if got, err := first("a.so", all); err != nil || got.folder != all[0].folder {
				t.Errorf("a folder that the user names: got %v, %v", got, err)
			}
		})
	}
}

// A bundle may belong to the owner of its program, who could as well have changed the program.
func TestFirst_OwnerOfProgram(t *testing.T) {
	folder := t.TempDir()
	all := []string{filepath.Join(folder, "a.so"), filepath.Join(folder, "program"), folder}
	for _, path := range all[:2] {
		touch(t, path)
	}
	for _, path := range all {
		if err := os.Chown(path, 1234, -1); err != nil {
			t.Skip("giving a file away needs root: ", err)
		}
	}
	if got, err := first("a.so", places(all[1], "", t.TempDir())); got.folder != folder {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCureFor(t *testing.T) {
	for _, c := range []struct{ clone, version, want string }{
		{"/c", "v0.1.0", "run make libraries in /c"},
		{"", "v0.1.0", "cmd/streamtorch@v0.1.0 install"},
		{"", "", "in its clone run: go run ./cmd/streamtorch install"}, // a replaced module, with -trimpath
	} {
		if got := cureFor(c.clone, c.version); !strings.HasSuffix(got, c.want) {
			t.Errorf("%q, %q: got %q, want %q", c.clone, c.version, got, c.want)
		}
	}
}

func TestCloneOf(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		name  string
		clone bool
	}{{"me@work/streamtorch", true}, {"streamtorch@work", true}, {"github.com/streamtorch/streamtorch@v0.1.0", false}, {"vendor/github.com/streamtorch/streamtorch", false}} {
		folder := filepath.Join(root, c.name)
		if !strings.HasPrefix(c.name, "vendor") {
			touch(t, filepath.Join(folder, "Makefile"))
		}
		if got := cloneOf(filepath.Join(folder, "internal/library/clone.go")); (got == folder) != c.clone {
			t.Errorf("%s: got %q", c.name, got)
		}
	}
	if got := cloneOf("github.com/streamtorch/streamtorch/internal/library/clone.go"); got != "" {
		t.Errorf("a path of -trimpath: got %q", got)
	}
}
