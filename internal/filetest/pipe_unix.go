//go:build !windows

package filetest

import (
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// Pipe makes a named pipe.
func Pipe(t testing.TB, path string) {
	t.Helper()
	must.Do(t, syscall.Mkfifo(path, 0o600))
}
