// Package setup tests what make does before it compiles.
package setup

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// CMake's folder of a clone that was copied or moved names the old place. make removes the folder,
// and keeps that of a clone that stays where it is.
func TestMake_MovedClone(t *testing.T) {
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	old, here := t.TempDir(), t.TempDir()
	for _, clone := range []string{old, here} {
		write(t, filepath.Join(clone, "Makefile"), string(makefile))
		write(t, filepath.Join(clone, "csrc/CMakeLists.txt"), "")
		write(t, filepath.Join(clone, "build/lib/kept"), "")
	}
	cache := func(clone, of string) string {
		path := filepath.Join(clone, "build/csrc/CMakeCache.txt")
		write(t, path, "CMAKE_CACHEFILE_DIR:INTERNAL="+of+"/build/csrc\nCMAKE_HOME_DIRECTORY:INTERNAL="+of+"/csrc\n")
		return path
	}
	for _, test := range []struct {
		name, clone, of string
		stays           bool
	}{
		{"unmoved", old, old, true},
		{"copied", here, old, false},
		{"moved", here, filepath.Join(here, "gone"), false},
	} {
		path := cache(test.clone, test.of)
		command := exec.Command("make", "moved")
		command.Dir = test.clone
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", test.name, err, out)
		}
		if _, err := os.Stat(path); (err == nil) != test.stays {
			t.Errorf("%s: the cache exists: %v, want %v", test.name, err == nil, test.stays)
		}
		if _, err := os.Stat(filepath.Join(test.clone, "build/lib/kept")); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o777))
	must.Do(t, os.WriteFile(file, []byte(text), 0o666))
}
