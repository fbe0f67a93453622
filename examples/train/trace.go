package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// -trace traces at most traceSteps steps of the run's first epoch. It skips the first traceAfter
// steps. During these steps memory is allocated and algorithms are chosen. A short epoch is
// traced as a whole.
const (
	traceAfter = 10
	traceSteps = 20
)

// tracer writes a trace of some steps. A nil tracer does nothing.
type tracer struct {
	path     string
	file     *os.File // lies beside path until the trace is complete
	from, to int      // the traced steps, counted from the run's first step
	next     int
	trace    *trace.Trace // nil unless tracing is going on
	quiet    bool         // prints no summary, because the first rank does
	merge    func() error // waits for the traces of the other ranks; nil does nothing
}

// newTracer creates the file at once, because a bad path then fails early. An empty path means
// that there is no trace. `steps` is the number of steps in the run's first epoch.
func newTracer(path string, steps int) (*tracer, error) {
	if path == "" {
		return nil, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("-trace: %s is no file", path)
	}
	file, err := os.Create(path + ".new")
	if err != nil {
		return nil, fmt.Errorf("-trace: %w", err)
	}
	t := &tracer{path: path, file: file, from: traceAfter, to: traceAfter + traceSteps}
	if steps < t.to {
		t.from, t.to = 0, steps
	}
	return t, nil
}

// begin is called before each step. The caller calls the returned function `end` after the step.
func (t *tracer) begin(step int) (end func() error, err error) {
	if t == nil || t.file == nil {
		return func() error { return nil }, nil
	}
	if t.next == t.from {
		if t.trace, err = trace.Start(); err != nil {
			return nil, fmt.Errorf("-trace: %w", err)
		}
	}
	mark := func() {}
	if t.trace != nil {
		mark = t.trace.Mark(fmt.Sprintf("step %d", step))
	}
	return func() error {
		mark()
		if t.next++; t.next == t.to {
			return t.finish(true)
		}
		return nil
	}, nil
}

// finish writes the trace and prints a summary to standard error. `merge` says that the other ranks
// finish too, so that their traces become one. If finish cannot write the trace, it leaves no file.
// It waits for the device. It does nothing if no trace is going on.
func (t *tracer) finish(merge bool) error {
	if t == nil || t.trace == nil {
		return nil
	}
	records, err := t.trace.Stop()
	file := t.file
	t.trace, t.file = nil, nil
	if err == nil {
		err = records.WriteChrome(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), t.path)
	}
	if err != nil {
		os.Remove(file.Name())
		return fmt.Errorf("-trace: %w", err)
	}
	if merge && t.merge != nil {
		if err := t.merge(); err != nil {
			return err
		}
	}
	if t.quiet {
		return nil
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	share, hidden, total := records.CopyHidden()
	what := fmt.Sprintf("copying hidden: %.1f %% (%.2f ms of %.2f ms)", 100*share, ms(hidden), ms(total))
	if len(records.Work) == 0 {
		what = "marks alone, as no CUDA device worked"
	} else if total == 0 {
		what = "no copying to hide"
	}
	_, err = fmt.Fprintf(os.Stderr, "%s: %d steps, for ui.perfetto.dev; %s\n", t.path, len(records.Marks), what)
	return err
}

// close removes the temporary file of a run that has failed.
func (t *tracer) close() {
	if t == nil || t.file == nil {
		return
	}
	if t.trace != nil {
		_, _ = t.trace.Stop()
	}
	t.file.Close()
	os.Remove(t.file.Name())
}

// tracePath returns the file of this rank's trace. Where there are several ranks, mergeTraces makes
// one file of theirs.
func (t *trainer) tracePath() string {
	if t.Trace == "" || t.first() {
		return t.Trace
	}
	return rankTrace(t.Trace, t.group.Rank())
}

func rankTrace(path string, rank int) string { return fmt.Sprintf("%s.rank%d", path, rank) }

// mergeTraces puts the traces of the other ranks into that of the first one. It waits for the other
// ranks. Traces that lie on other machines stay there.
func (t *trainer) mergeTraces() error {
	if t.Trace == "" || t.group.World() == 1 {
		return nil
	}
	if _, err := t.group.Exchange(""); err != nil || !t.first() {
		return err
	}
	type file struct {
		Unit   string           `json:"displayTimeUnit"`
		Events []map[string]any `json:"traceEvents"`
	}
	var all file
	for rank := range t.group.World() {
		path := t.Trace
		if rank > 0 {
			path = rankTrace(t.Trace, rank)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var one file
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err != nil {
			return fmt.Errorf("-trace: %s: %w", path, err)
		}
		all.Unit = one.Unit
		for _, e := range one.Events {
			if process, ok := e["pid"].(float64); ok {
				e["pid"] = process + float64(1000*rank)
			}
			if arguments, ok := e["args"].(map[string]any); ok && e["name"] == "process_name" {
				arguments["name"] = fmt.Sprintf("rank %d: %v", rank, arguments["name"])
			}
			all.Events = append(all.Events, e)
		}
		if rank > 0 {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("-trace: %w", err)
			}
		}
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(t.Trace+".new", text, 0o666)
	}
	if err == nil {
		err = os.Rename(t.Trace+".new", t.Trace)
	}
	if err != nil {
		os.Remove(t.Trace + ".new")
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}
