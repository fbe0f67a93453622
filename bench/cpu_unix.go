//go:build !windows

package main

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time that all threads of this process have used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u) // Getrusage fails only for a wrong argument
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
