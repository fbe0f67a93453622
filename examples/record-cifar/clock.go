package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// earliest is the first moment that the Go code of this program can take. It is later than the
// start of the process, because the system loads the shared libraries first.
var earliest = time.Now()

// clock measures the phases of a run from the start of the process. Phases may overlap, because
// some of them run on goroutines of their own.
type clock struct {
	start time.Time // of the process
	from  string    // where start comes from

	mu     sync.Mutex
	phases []phase
}

// phase is one line of the printed table. Times are seconds since the start of the process.
type phase struct {
	Name string  `json:"name"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// newClock returns a clock with the phase before the first Go code. Linux gives the start in ticks
// of 10 ms and rounds down, so the clock may run up to 10 ms too early, and never too late.
func newClock() *clock {
	c := &clock{from: "/proc/self/stat"}
	age, err := processAge()
	if err == nil && (age < time.Since(earliest)-time.Millisecond || age > time.Since(earliest)+time.Minute) {
		err = fmt.Errorf("an age of %v is not plausible", age)
	}
	c.start = time.Now().Add(-age)
	if err != nil {
		c.start, c.from = earliest, fmt.Sprintf("the first Go code, because of /proc/self/stat: %v", err)
	}
	c.add("process start and libraries", c.start, time.Now())
	return c
}

// processAge returns the time since the start of this process.
func processAge() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	started, err := startTicks(stat)
	if err != nil {
		return 0, err
	}
	const bootTime, ticksPerSecond = 7, 100 // CLOCK_BOOTTIME and USER_HZ, which are constants of Linux on x86-64
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, bootTime, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		return 0, errno
	}
	return time.Duration(now.Nano()) - time.Duration(started)*(time.Second/ticksPerSecond), nil
}

// startTicks returns the field `starttime` of the text of /proc/self/stat. It is the start of the
// process since the boot of the system, in ticks.
func startTicks(stat []byte) (int64, error) {
	const field = 22 // counted from 1, as in proc(5)
	_, after, found := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	fields := bytes.Fields(after) // from field 3 on; the name before it may have blanks
	if !found || len(fields) <= field-3 {
		return 0, errors.New("it has too few fields")
	}
	return strconv.ParseInt(string(fields[field-3]), 10, 64)
}

// begin starts a phase. The returned function ends the phase.
func (c *clock) begin(name string) (end func()) {
	from := time.Now()
	return func() { c.add(name, from, time.Now()) }
}

func (c *clock) add(name string, from, to time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phases = append(c.phases, phase{name, from.Sub(c.start).Seconds(), to.Sub(c.start).Seconds()})
}

// seconds returns the time since the start of the process.
func (c *clock) seconds() float64 { return time.Since(c.start).Seconds() }

// table returns the phases in the order of their beginnings.
func (c *clock) table() []phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(c.phases), func(a, b phase) int {
		switch {
		case a.From < b.From:
			return -1
		case a.From > b.From:
			return 1
		}
		return 0
	})
}

// printPhases writes the table. Phases that overlap are not to be added up.
func printPhases(w io.Writer, phases []phase) {
	fmt.Fprintf(w, "  %-34s %8s %8s %8s\n", "phase, in seconds", "from", "to", "takes")
	for _, p := range phases {
		fmt.Fprintf(w, "  %-34s %8.3f %8.3f %8.3f\n", p.Name, p.From, p.To, p.To-p.From)
	}
}
