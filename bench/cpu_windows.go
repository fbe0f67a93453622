package main

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time that all threads of this process have used.
func cpuTime() time.Duration {
	self, _ := syscall.GetCurrentProcess()
	var began, ended, kernel, user syscall.Filetime
	syscall.GetProcessTimes(self, &began, &ended, &kernel, &user) // GetProcessTimes fails only for a wrong argument
	const tick = 100                                              // ns
	ticks := func(f syscall.Filetime) time.Duration {
		return time.Duration(int64(f.HighDateTime)<<32 + int64(f.LowDateTime))
	}
	return (ticks(kernel) + ticks(user)) * tick
}
