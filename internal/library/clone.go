package library

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// module is the module of this package.
const module = "github.com/streamtorch/streamtorch"

// clone returns the root of the clone that this file was compiled from. It is "" for a module
// that the go command downloaded, and if the compiler was told to leave paths out.
func clone() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return ""
	}
	return cloneOf(file)
}

// cloneOf returns the root of the clone that has the path of this file, or "".
func cloneOf(file string) string {
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(root, "Makefile")); err != nil || !filepath.IsAbs(file) || strings.Contains(filepath.Base(root), "@v") {
		return "" // a vendor folder, and the go command's own copy
	}
	return root
}

// Version returns the version of the module in this program, or "" if the program is compiled from
// a folder that has changes.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Replace == nil && strings.HasPrefix(m.Version, "v") && !strings.Contains(m.Version, "+dirty") {
			return m.Version
		}
	}
	return ""
}
