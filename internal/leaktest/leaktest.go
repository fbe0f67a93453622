// Package leaktest fails a test that ends with open handles, open files or running goroutines, and
// tells a test what the process holds. It needs no LibTorch.
package leaktest

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// Check counts handles and goroutines twice: during the call, and when the test ends. It fails
// the test if the counts of handles differ, or if the second count has more goroutines. The
// function `live` returns the number of handles of each kind. It may also count other things,
// such as files. If `live` is nil, Check counts only goroutines. Before each count, Check calls
// the functions in `closed`. They close things that may stay open after a test.
//
// At the end Check waits up to five seconds for goroutines to end and handles to be freed. The
// garbage collector does not run during that time.
func Check(t testing.TB, live func() map[string]int, closed ...func()) {
	t.Helper()
	if live == nil {
		live = func() map[string]int { return nil }
	}
	count := func() (map[string]int, int) {
		for _, fn := range closed {
			fn()
		}
		return live(), runtime.NumGoroutine()
	}
	things, goroutines := count()
	t.Cleanup(func() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a garbage collection would free forgotten handles
		gotThings, gotGoroutines := count()
		left := func() bool { return !maps.Equal(gotThings, things) || gotGoroutines > goroutines }
		for deadline := time.Now().Add(5 * time.Second); left() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
			gotThings, gotGoroutines = live(), runtime.NumGoroutine()
		}
		if !maps.Equal(gotThings, things) {
			t.Errorf("left open: got %v, want %v", gotThings, things)
		}
		if gotGoroutines > goroutines {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", gotGoroutines, goroutines, stacks[:runtime.Stack(stacks, true)])
		}
	})
}

// Usage is what a process holds.
type Usage struct {
	Threads, Files, Goroutines int
	Resident, Peak, Address    int // bytes: resident, the most that were, and of all mappings
}

// Used returns what this process holds. It skips a test on a system without /proc. The race
// detector's own memory is resident too, and grows with time.
func Used(t testing.TB) Usage {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	files := must.Get(os.ReadDir("/proc/self/fd"))(t)
	u := Usage{Files: len(files), Goroutines: runtime.NumGoroutine()}
	for name, n := range map[string]*int{"Threads": &u.Threads, "VmRSS": &u.Resident, "VmHWM": &u.Peak, "VmSize": &u.Address} {
		_, rest, _ := strings.Cut(string(status), "\n"+name+":")
		if _, err := fmt.Sscan(rest, n); err != nil {
			t.Fatalf("/proc/self/status has no %s: %v", name, err)
		}
	}
	for _, kilobytes := range []*int{&u.Resident, &u.Peak, &u.Address} {
		*kilobytes <<= 10
	}
	return u
}

func (u Usage) String() string {
	return fmt.Sprintf("%d threads, %d files, %d goroutines, %d MiB", u.Threads, u.Files, u.Goroutines, u.Resident>>20)
}

// RaceDetector reports whether this program was built with -race.
func RaceDetector() bool {
	build, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
