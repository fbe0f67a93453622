package place

import (
	"runtime"
	"strings"
	"sync"
)

// A Site is the number of a call stack in a [Sites]. 0 means no stack.
type Site uint64

// Sites numbers call stacks. The zero value is empty. Any goroutine may use it.
type Sites struct {
	mu      sync.Mutex
	numbers map[stack]Site
	stacks  []stack // the stack of site n has index n-1
}

type stack struct {
	frames [24]uintptr
	do     Site // where the program called Do; a Do runs on a goroutine of its own
}

// Here returns the site of a call in the Do that was called at `do`. The recorded stack is that of
// the caller without its innermost `skip` frames, followed by the frames `from`.
func (t *Sites) Here(skip int, do Site, from ...uintptr) Site {
	s := stack{do: do}
	copy(s.frames[runtime.Callers(2+skip, s.frames[:]):], from)
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.numbers[s]
	if !ok {
		if t.numbers == nil {
			t.numbers = map[stack]Site{}
		}
		t.stacks = append(t.stacks, s)
		n = Site(len(t.stacks))
		t.numbers[s] = n
	}
	return n
}

// stack returns the frames of the site, and where the program called its Do.
func (t *Sites) stack(n Site) (frames []uintptr, do Site) {
	if n == 0 {
		return nil, 0
	}
	t.mu.Lock()
	s := t.stacks[n-1]
	t.mu.Unlock()
	depth := 0
	for depth < len(s.frames) && s.frames[depth] != 0 {
		depth++
	}
	return s.frames[:depth], s.do
}

// Caller returns the file and line of the innermost frame that belongs to the program. The stack of
// a goroutine of the prefetcher has no frame of the program. For this stack it returns the
// innermost frame outside package cgotorch.
func (t *Sites) Caller(n Site) string {
	frames, _ := t.stack(n)
	if at := In(frames, Own); at != "" {
		return at
	}
	return In(frames, func(f runtime.Frame) bool {
		return strings.HasPrefix(f.Function, module+"cgotorch") || strings.HasPrefix(f.Function, "runtime.") ||
			strings.HasPrefix(f.Function, "iter.")
	})
}

// CalledAt returns the file and line at which the program calls the function that runs the Do of
// the site, or "".
func (t *Sites) CalledAt(n Site) string {
	_, do := t.stack(n)
	frames, _ := t.stack(do)
	runs := ""
	return In(frames, func(f runtime.Frame) bool {
		if Own(f) || strings.HasPrefix(f.Function, "testing.") {
			return true
		}
		if runs == "" {
			runs = f.Function
		}
		return f.Function == runs
	})
}
