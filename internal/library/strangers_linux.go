package library

import (
	"os"
	"path/filepath"
	"syscall"
)

// openToStrangers returns why another user than root and this one could have put code into a
// folder with these files, or "". A file that is not there is passed over.
func openToStrangers(folder string, files ...string) string {
	paths := []string{folder}
	for _, f := range files {
		paths = append(paths, filepath.Join(folder, f))
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		switch {
		case info.Mode()&0o002 != 0:
			return "every user can write " + path
		case owner != 0 && int(owner) != os.Geteuid():
			return path + " belongs to another user"
		}
	}
	return ""
}
