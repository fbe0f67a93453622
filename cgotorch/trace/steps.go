package trace

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Steps traces some steps of a program, such as those of a training, and writes them to a file. A
// nil Steps does nothing. One goroutine uses it.
type Steps struct {
	path     string
	file     *os.File // lies beside path until the trace is complete; nil after Finish
	from, to int      // the traced steps, counted from the first Begin
	next     int
	trace    *Trace // nil unless tracing is going on
}

// NewSteps returns a tracer of `count` steps after the first `from`. Memory is allocated and
// algorithms are chosen in a program's first steps, so they are left out. NewSteps creates a file
// beside `path` at once, so that a bad path fails early. It fails if `from` is below 0 or `count`
// below 1. The caller closes the Steps.
func NewSteps(path string, from, count int) (*Steps, error) {
	if from < 0 || count < 1 {
		return nil, fmt.Errorf("trace: %d steps after the first %d cannot be traced; trace at least one, after 0 or more", count, from)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("trace: %s is no file: name a file", path)
	}
	file, err := os.Create(path + ".new")
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return &Steps{path: path, file: file, from: from, to: from + count}, nil
}

// Begin begins a step of that name. The program calls `end` after the step. `last` says that the
// step is the last of the trace: call Finish then. Begin fails as [Start] does.
func (s *Steps) Begin(name string) (end func(), last bool, err error) {
	if s == nil || s.file == nil {
		return func() {}, false, nil
	}
	if s.next == s.from {
		if s.trace, err = Start(); err != nil {
			return nil, false, err
		}
	}
	s.next++
	if s.trace == nil {
		return func() {}, false, nil
	}
	return s.trace.Mark(name), s.next == s.to, nil
}

// Finish ends the trace, writes the file and returns a line about it. It waits for the device. If
// no step was traced, or Finish was called before, the line is empty. If Finish fails, it leaves no
// file.
func (s *Steps) Finish() (summary string, err error) {
	if s == nil || s.trace == nil {
		return "", nil
	}
	records, err := s.trace.Stop()
	file := s.file
	s.trace, s.file = nil, nil
	if err == nil {
		err = records.WriteChrome(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.path)
	}
	if err != nil {
		os.Remove(file.Name())
		return "", fmt.Errorf("trace: %w", err)
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	share, hidden, total := records.CopyHidden()
	what := fmt.Sprintf("copying hidden: %.1f %% (%.2f ms of %.2f ms)", 100*share, ms(hidden), ms(total))
	if len(records.Work) == 0 {
		what = "marks alone, as no CUDA device worked"
	} else if total == 0 {
		what = "no copying to hide"
	}
	return fmt.Sprintf("%s: %d steps, for ui.perfetto.dev; %s", s.path, len(records.Marks), what), nil
}

// Close ends a trace that Finish has not ended, and removes its file.
func (s *Steps) Close() error {
	if s == nil || s.file == nil {
		return nil
	}
	if s.trace != nil {
		_, _ = s.trace.Stop()
	}
	s.trace = nil
	err := errors.Join(s.file.Close(), os.Remove(s.file.Name()))
	s.file = nil
	return err
}
