// Package leaktest fails a test that ends with open handles, open files or running goroutines. It
// needs no LibTorch.
package leaktest

import (
	"maps"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
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
