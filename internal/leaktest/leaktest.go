// Package leaktest fails tests that leave handles, files or goroutines behind. It needs no
// LibTorch.
package leaktest

import (
	"maps"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// Check fails the test if it ends with other counts than live has now, or with more goroutines.
// live counts things by kind, such as handles. nil counts none. closed is called before either
// count, to close things that may stay open for longer than a test.
//
// Check waits up to five seconds for a goroutine to end and for its things to be freed. It leaves
// nothing to the collector.
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
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the runtime's cleanups would free forgotten handles
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
