// Package place names lines of the program: those of a call, and those of recorded call stacks.
package place

import (
	"fmt"
	"runtime"
	"strings"
)

const module = "github.com/streamtorch/streamtorch/"

// Caller returns the file and line of the innermost frame that belongs to the program. All code
// belongs to the program, except code in folders cgotorch and prefetcher. Tests always belong to
// the program.
func Caller() string {
	var pcs [64]uintptr
	return In(pcs[:runtime.Callers(2, pcs[:])], Own)
}

// In returns the file and line of the innermost frame in pcs for which `passOver` returns false. It
// returns "" if there is none.
func In(pcs []uintptr, passOver func(runtime.Frame) bool) string {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.File != "" && !passOver(f) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}

// Own reports whether a frame is Go's or the library's, and so not the program's.
func Own(f runtime.Frame) bool {
	if strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "iter.") {
		return true
	}
	rest, own := strings.CutPrefix(f.Function, module)
	if !own || strings.HasSuffix(f.File, "_test.go") {
		return false
	}
	return strings.HasPrefix(rest, "cgotorch") || strings.HasPrefix(rest, "prefetcher")
}

// Core reports whether a frame is of package cgotorch itself, and not of its tests.
func Core(f runtime.Frame) bool {
	return strings.HasPrefix(f.Function, module+"cgotorch.") && !strings.HasSuffix(f.File, "_test.go")
}
