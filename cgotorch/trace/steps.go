package trace

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Steps traces some steps of a program, such as those of a training, and writes them to a file. A
// nil Steps traces nothing. One goroutine uses it.
type Steps struct {
	o     StepsOptions
	path  string   // of the trace of all ranks
	file  *os.File // lies beside the own path until the trace is complete; nil after that
	next  int      // number of the next step, counted from the first Do
	trace *Trace   // nil unless tracing is going on
}

// StepsOptions choose the steps.
type StepsOptions struct {
	// Count steps are traced, after the first From. Memory is allocated and algorithms are chosen in
	// a program's first steps, so they are left out.
	From, Count int

	// Steps is the number of steps that there will be. If it is too small, all of them are traced. 0
	// means that there are enough.
	Steps int

	// Ranks are the processes whose traces become one file, such as a *distributed.Group. All of them
	// make the same steps. Agree waits for all ranks and returns false if one is lost, and Err then
	// says why. nil means that this process is alone.
	Ranks interface {
		Rank() int
		World() int
		Agree(yes bool) bool
		Err() error
	}

	Log func(text string) // called with a line about the trace, on the first rank alone; may be nil
}

// NewSteps returns a tracer that writes to `path`, or nil if `path` is empty. It creates a file
// beside `path` at once, so that a bad path fails early. It fails if From is below 0 or Count below
// 1. The caller closes the Steps.
func NewSteps(path string, o StepsOptions) (*Steps, error) {
	if path == "" {
		return nil, nil
	}
	if o.From < 0 || o.Count < 1 {
		return nil, fmt.Errorf("trace: %d steps after the first %d cannot be traced; trace at least one, after 0 or more", o.Count, o.From)
	}
	if o.Steps > 0 && o.Steps < o.From+o.Count {
		o.From, o.Count = 0, o.Steps
	}
	s := &Steps{o: o, path: path}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("trace: %s is no file: name a file", path)
	}
	var err error
	if s.file, err = os.Create(s.pathOf(s.rank()) + ".new"); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return s, nil
}

// rank returns the number of this process.
func (s *Steps) rank() int {
	if s.o.Ranks == nil {
		return 0
	}
	return s.o.Ranks.Rank()
}

// pathOf returns the path of a rank's own trace. That of the first rank becomes the file of all.
func (s *Steps) pathOf(rank int) string {
	if rank == 0 {
		return s.path
	}
	return fmt.Sprintf("%s.rank%d", s.path, rank)
}

// Do runs a step, and returns its error. If the step is traced, the trace has a mark of that name.
// After the last traced step Do writes the file, and waits for the device and for all ranks. The
// first rank then makes one file of their traces, as far as their files are on its machine.
func (s *Steps) Do(name string, step func() error) error {
	if s == nil || s.file == nil {
		return step()
	}
	if s.next == s.o.From {
		var err error
		if s.trace, err = Start(); err != nil {
			return err
		}
	}
	s.next++
	if s.trace == nil {
		return step()
	}
	end := s.trace.Mark(name)
	err := step()
	end()
	if err == nil && s.next == s.o.From+s.o.Count {
		err = s.finish()
	}
	return err
}

// finish writes the trace of all ranks.
func (s *Steps) finish() error {
	summary, err := s.write()
	if err != nil {
		return err
	}
	if r := s.o.Ranks; r != nil && r.World() > 1 {
		if !r.Agree(true) { // all files are there
			return r.Err()
		}
		if s.rank() == 0 {
			err = s.merge()
		}
	}
	if err == nil {
		s.say(summary)
	}
	return err
}

func (s *Steps) say(summary string) {
	if s.o.Log != nil && s.rank() == 0 {
		s.o.Log(summary)
	}
}

// write ends the trace, writes this rank's file and returns a line about it. If it fails, it leaves
// no file.
func (s *Steps) write() (summary string, err error) {
	records, err := s.trace.Stop()
	file := s.file
	s.trace, s.file = nil, nil
	if err == nil {
		err = records.WriteChrome(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.pathOf(s.rank()))
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

// Close ends a trace that is not complete, and writes the steps that it has. It waits for no other
// rank, because the program may have failed. It fails if no step was traced. A second Close does
// nothing.
func (s *Steps) Close() error {
	if s == nil || s.file == nil {
		return nil
	}
	if s.trace != nil {
		summary, err := s.write()
		if err == nil {
			s.say(summary)
		}
		return err
	}
	err := errors.Join(s.file.Close(), os.Remove(s.file.Name()))
	s.file = nil
	return errors.Join(err, fmt.Errorf("trace: there are %d steps, and the trace begins after the first %d", s.next, s.o.From))
}
