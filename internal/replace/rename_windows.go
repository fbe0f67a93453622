package replace

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// rename replaces the file at a path by another. Windows refuses that while somebody has the file
// at the path open, so rename waits up to two seconds for its readers.
func rename(from, to string) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := os.Rename(from, to)
		open := errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_SHARING_VIOLATION)
		if !open || pause > time.Second {
			return err
		}
		time.Sleep(pause)
	}
}

// syncFolder has nothing to do: NTFS keeps a journal of names.
func syncFolder(string) error { return nil }
