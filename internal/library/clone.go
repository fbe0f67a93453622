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

// cloneFolder returns the root of the clone that this file was compiled from. It is "" for a module
// that the go command downloaded, and if the compiler was told to leave paths out.
func cloneFolder() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return ""
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(root, "Makefile")); err != nil || strings.Contains(filepath.Base(root), "@") {
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

// cure is what a user does about a library that is missing or wrong.
func cure() string {
	if clone := cloneFolder(); clone != "" {
		return "run make libraries in " + clone
	}
	at := Version()
	if at == "" {
		at = "latest"
	}
	return "run: go run " + module + "/cmd/streamtorch@" + at + " install"
}
