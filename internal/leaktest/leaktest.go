// Package leaktest fails tests that leave handles or goroutines behind.
package leaktest

import (
	"maps"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// Check fails the test if it ends with other handles than there are now, or with more goroutines. What is being freed by then, by a
// goroutine that ends by itself, has five seconds for it; nothing is left to the collector. live is cgotorch.LiveHandles: this package is
// below cgotorch, whose tests use it too. closed is run before either count, to close what may stay open for longer than a test.
func Check(t testing.TB, live func() map[string]int, closed ...func()) {
	t.Helper()
	count := func() (map[string]int, int) {
		for _, fn := range closed {
			fn()
		}
		return live(), runtime.NumGoroutine()
	}
	handles, goroutines := count()
	t.Cleanup(func() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // cleanups of the runtime's would free what was forgotten
		gotHandles, gotGoroutines := count()
		left := func() bool { return !maps.Equal(gotHandles, handles) || gotGoroutines > goroutines }
		for deadline := time.Now().Add(5 * time.Second); left() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
			gotHandles, gotGoroutines = live(), runtime.NumGoroutine()
		}
		if !maps.Equal(gotHandles, handles) {
			t.Errorf("live handles: got %v, want %v", gotHandles, handles)
		}
		if gotGoroutines > goroutines {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", gotGoroutines, goroutines, stacks[:runtime.Stack(stacks, true)])
		}
	})
}
