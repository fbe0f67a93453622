package main

import (
	"fmt"
	"math/bits"
	"runtime"
	"syscall"
	"unsafe"
)

// cores is a set of CPU cores in the form of Linux: one bit for each core.
type cores [16]uint64

// last returns a set with only the highest core of s. Linux prefers the low cores for its own work.
func (s cores) last() cores {
	var one cores
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] != 0 {
			one[i] = 1 << (bits.Len64(s[i]) - 1)
			break
		}
	}
	return one
}

// onOneCore calls the function `start` while this thread may use only the process's highest core.
// A process that `start` begins inherits this limit, with all its threads and child processes.
func onOneCore(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all cores
	if err := affinity(syscall.SYS_SCHED_GETAFFINITY, &all); err != nil {
		return err
	}
	one := all.last()
	if err := affinity(syscall.SYS_SCHED_SETAFFINITY, &one); err != nil {
		return err
	}
	defer affinity(syscall.SYS_SCHED_SETAFFINITY, &all)
	return start()
}

// affinity gets or sets the cores that the calling thread may use. `call` is the system call.
func affinity(call uintptr, set *cores) error {
	if _, _, err := syscall.RawSyscall(call, 0, unsafe.Sizeof(*set), uintptr(unsafe.Pointer(set))); err != 0 {
		return fmt.Errorf("the cores that a thread may use: %w", err)
	}
	return nil
}
