package library

import (
	"path/filepath"
	"runtime"
)

// cloneFolder returns the root of the module that this file was compiled from, or "" if the
// compiler was told to leave paths out.
func cloneFolder() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return ""
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
