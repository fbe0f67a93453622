//go:build !windows

package filelock

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Open is os.OpenFile. The file can be renamed and removed while it is open.
func Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

// Lock takes the lock of a file. It waits while another process has the lock. It fails on a file
// system without locks.
func Lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }

// Try takes the lock of a file, and does not wait. `held` says that another process has the lock.
func Try(file *os.File) (held bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
