package library

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// openToStrangers returns why another user than root, this one, and the owner of the file `like`
// could have put code into a folder with these files, or "". A file that is not there is passed
// over, and so is an empty `like`.
func openToStrangers(folder, like string, files ...string) string {
	trusted := []int{0, os.Geteuid()}
	if info, err := os.Stat(like); err == nil {
		trusted = append(trusted, ownerOf(info))
	}
	paths := []string{folder}
	for _, f := range files {
		paths = append(paths, filepath.Join(folder, f))
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		switch {
		case info.Mode()&0o002 != 0:
			return "every user can write " + path
		case !slices.Contains(trusted, ownerOf(info)):
			return path + " belongs to another user"
		}
	}
	return ""
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
