//go:build !windows

package main

import (
	"os"
	"syscall"
)

// lock locks a file until the process ends. `held` says that another process has the lock.
func lock(file *os.File) (held bool) {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}
