package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// -trace traces at most traceTokens tokens, counted over all answers. It skips the first
// traceAfter tokens. During these tokens memory is allocated and algorithms are chosen.
const (
	traceAfter  = 4
	traceTokens = 60
)

// tracer writes a trace of some tokens. A nil tracer does nothing.
type tracer struct {
	path  string
	file  *os.File // lies beside path until the trace is complete
	next  int
	trace *trace.Trace // nil unless tracing is going on
}

// newTracer creates the file at once, because a bad path then fails early. An empty path means
// that there is no trace.
func newTracer(path string) (*tracer, error) {
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
	return &tracer{path: path, file: file}, nil
}

// begin is called before each token. The caller calls the returned function `end` after the
// token.
func (t *tracer) begin() (end func() error, err error) {
	if t == nil || t.file == nil {
		return func() error { return nil }, nil
	}
	if t.next == traceAfter {
		if t.trace, err = trace.Start(); err != nil {
			return nil, fmt.Errorf("-trace: %w", err)
		}
	}
	mark := func() {}
	if t.trace != nil {
		mark = t.trace.Mark(fmt.Sprintf("token %d", t.next))
	}
	return func() error {
		mark()
		if t.next++; t.next == traceAfter+traceTokens {
			return t.write()
		}
		return nil
	}, nil
}

// finish writes the trace, unless it has been written already.
func (t *tracer) finish() error {
	if t == nil || t.file == nil {
		return nil
	}
	if t.trace == nil {
		return fmt.Errorf("-trace: the answers have %d tokens, and the trace begins behind the first %d", t.next, traceAfter)
	}
	return t.write()
}

// write writes the trace and prints a summary to standard error. If it cannot write the trace, it
// leaves no file. write waits for the device.
func (t *tracer) write() error {
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
	share, hidden, total := records.CopyHidden()
	what := fmt.Sprintf("copying behind kernels: %.1f %% (%s of %s)", 100*share, ms(hidden), ms(total))
	if len(records.Work) == 0 {
		what = "marks alone, as no CUDA device worked"
	} else if total == 0 {
		what = "no copying to hide"
	}
	_, err = fmt.Fprintf(os.Stderr, "%s: %d tokens, for ui.perfetto.dev; %s\n", t.path, len(records.Marks), what)
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
