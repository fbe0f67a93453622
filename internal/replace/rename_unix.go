//go:build !windows

package replace

import "os"

// rename replaces the file at a path by another.
func rename(from, to string) error { return os.Rename(from, to) }

// syncFolder makes the names in a folder safe from a power cut.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
