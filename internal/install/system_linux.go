package install

import (
	"os"
	"syscall"
)

// tryLock takes the lock of a file, which ends with the process. It does not wait. `held` says that
// another process has the lock.
func tryLock(file *os.File) (held bool, err error) {
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}

// freeBytes returns how much of the disk of a folder this user may still write.
func freeBytes(folder string) (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(folder, &s)
	return int64(s.Bavail) * s.Bsize, err
}

// syncFolder brings what was written to the disk. After a power cut, a final name must not have
// empty files.
func syncFolder(string) { syscall.Sync() }
