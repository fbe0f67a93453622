package main

import (
	"fmt"
	"math/bits"
	"runtime"
	"syscall"
	"unsafe"
)

// cores is a set of CPU cores in the kernel's form: a bit for each.
type cores [16]uint64

// last returns the set of its highest core alone: the kernel's own work likes the low cores.
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

// onOneCore runs start with this thread on the last core that the process may use. A process that
// start begins has that core alone, with all its threads and processes.
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

// affinity gets or sets the cores of the calling thread.
func affinity(call uintptr, set *cores) error {
	if _, _, err := syscall.RawSyscall(call, 0, unsafe.Sizeof(*set), uintptr(unsafe.Pointer(set))); err != 0 {
		return fmt.Errorf("the cores that a thread may use: %w", err)
	}
	return nil
}
