package filetest

import "testing"

// Pipe skips the test.
func Pipe(t testing.TB, _ string) {
	t.Helper()
	t.Skip("Windows has no named pipes in folders")
}
