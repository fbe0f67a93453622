package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"io"
	"iter"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// faulty is a data set whose samples come from a function.
type faulty struct {
	*Table
	sample func(i int) (Sample, error)
}

func (f faulty) Sample(i int) (Sample, error) { return f.sample(i) }

func csvText(text string, o CSVOptions) (Stream, error) {
	return NewCSV("t.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, o)
}

// loop reads an epoch of a new loader. It returns the error and the value of a panic.
func loop(l *Loader, err error) (got error, raised any) {
	if err != nil {
		return err, nil
	}
	defer l.Close()
	defer func() { raised = recover() }()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			return err, nil
		}
		b.Release()
	}
	return nil, nil
}

// A panic of a function of the program comes out of the consumer's loop, with its stack. Goexit
// gives an error. Neither ends the process, and all goroutines end.
func TestLoader_FunctionPanics(t *testing.T) {
	torchtest.CheckLeaks(t)
	table := numbered(t, 100)
	field := []Field{{Name: "x", DType: cgotorch.Float32}}
	sequence := func(fn func()) Stream {
		s := cgotorch.Must(NewSequence("made", field, func(context.Context) iter.Seq2[Sample, error] {
			return func(yield func(Sample, error) bool) {
				if yield(Sample{"x": 1.0}, nil) {
					fn()
				}
			}
		}))
		return s
	}
	opened := func(fn func()) Stream {
		first := true
		s := cgotorch.Must(NewCSV("t.csv", func() (io.ReadCloser, error) {
			if !first {
				fn()
			}
			first = false
			return io.NopCloser(strings.NewReader("x\n1\n")), nil
		}, CSVOptions{}))
		return s
	}
	for name, run := range map[string]func(fn func()) (*Loader, error){
		"Map": func(fn func()) (*Loader, error) {
			return NewLoader(table, Options{BatchSize: 2, Workers: 2, Map: func(s Sample) (Sample, error) { fn(); return s, nil }})
		},
		"Sample": func(fn func()) (*Loader, error) {
			return NewLoader(faulty{table, func(i int) (Sample, error) {
				if i == 7 {
					fn()
				}
				return table.Sample(i)
			}}, Options{BatchSize: 2})
		},
		"Sequence": func(fn func()) (*Loader, error) { return NewStreamLoader(sequence(fn), Options{BatchSize: 2}) },
		"open":     func(fn func()) (*Loader, error) { return NewStreamLoader(opened(fn), Options{BatchSize: 2}) },
	} {
		err, raised := loop(run(func() { panic("mine") }))
		text := fmt.Sprint(raised)
		if err != nil || !strings.HasPrefix(text, "mine\n") || !strings.Contains(text, "mistakes_test.go:") {
			t.Errorf("%s: error %v, raised %s; want the panic with its stack", name, err, text)
		}
		if err, raised = loop(run(runtime.Goexit)); raised != nil || err == nil || !strings.Contains(err.Error(), "runtime.Goexit") {
			t.Errorf("%s with Goexit: error %v, raised %v", name, err, raised)
		}
	}
	_, raised := loop(NewLoader(table, Options{Map: func(Sample) (Sample, error) { panic(io.EOF) }}))
	if err, ok := raised.(error); !ok || !errors.Is(err, io.EOF) {
		t.Errorf("raised %v, want an error that wraps EOF", raised)
	}
}

func TestLoader_Mistakes(t *testing.T) {
	torchtest.CheckLeaks(t)
	text := func(text string, o CSVOptions, l Options) error {
		c, err := csvText(text, o)
		if err != nil {
			return err
		}
		err, _ = loop(NewStreamLoader(c, l))
		return err
	}
	table := func(n int, o Options) error {
		err, _ := loop(NewLoader(numbered(t, n), o))
		return err
	}
	x := []Field{{Name: "x", DType: cgotorch.Float32}}
	for name, test := range map[string]struct {
		err  error
		want string // "" for no error
	}{
		"no samples":                     {table(0, Options{}), "the data set has no samples"},
		"DropLast leaves none":           {table(10, Options{BatchSize: 16, DropLast: true}), "10 samples, fewer than the BatchSize 16"},
		"DropLast leaves none of a rank": {table(10, Options{BatchSize: 6, DropLast: true, World: 2}), "5 samples, fewer than the BatchSize 6"},
		"DropLast leaves one":            {table(10, Options{BatchSize: 10, DropLast: true}), ""},
		"DropRest leaves none":           {table(3, Options{World: 8, DropRest: true}), "fewer samples than the 8 ranks"},
		"header only":                    {text("a,b\n", CSVOptions{}, Options{}), "t.csv has no samples"},
		"DropLast of a stream":           {text("a,b\n1,2\n", CSVOptions{}, Options{DropLast: true, BatchSize: 2}), "t.csv has 1 samples, fewer than the BatchSize 2"},
		"DropRest of a stream":           {text("a,b\n1,2\n", CSVOptions{}, Options{DropRest: true, World: 2}), "t.csv has fewer samples than the 2 ranks"},
		"header of numbers":              {text("1,2.5\n3,4\n", CSVOptions{}, Options{}), `the first row, "1", "2.5", has only numbers: set CSVOptions.NoHeader`},
		"header of numbers, named":       {text("1,2.5\n3,4\n", CSVOptions{Names: []string{"1", "2.5"}}, Options{}), ""},
		"header of numbers, fields":      {text("1,x\n3,4\n", CSVOptions{Fields: []Field{{Name: "1", DType: cgotorch.Float32}}}, Options{}), ""},
		"one name of a number":           {text("1,x\n3,4\n", CSVOptions{}, Options{}), ""},
		"column":                         {text("a,b,c,d,e,f,g\n1,2,3,4,5,6,7\n", CSVOptions{Fields: x}, Options{}), `no column "x"; it has "a", "b", "c", "d", "e" and 2 more`},
		"Workers":                        {table(3, Options{Workers: 1025}), "Options.Workers is 1025; it must be 0 to 1024"},
	} {
		switch {
		case test.want == "" && test.err != nil:
			t.Errorf("%s: %v", name, test.err)
		case test.want == "":
		case test.err == nil || !strings.Contains(test.err.Error(), test.want) || !errors.Is(test.err, ErrInvalidOptions):
			t.Errorf("%s: error %v, want %q", name, test.err, test.want)
		case len(test.err.Error()) > 400:
			t.Errorf("%s: %d characters: %v", name, len(test.err.Error()), test.err)
		}
	}
	for _, fn := range map[string]func() error{
		"NewLoader":       func() error { _, err := NewLoader(nil, Options{}); return err },
		"NewStreamLoader": func() error { _, err := NewStreamLoader(nil, Options{}); return err },
		"NewSequence":     func() error { _, err := NewSequence("made", x, nil); return err },
		"NewCSV":          func() error { _, err := NewCSV("t.csv", nil, CSVOptions{}); return err },
		"NewJSONLines":    func() error { _, err := NewJSONLines("t.jsonl", nil, JSONLinesOptions{Fields: x}); return err },
	} {
		torchtest.WantError(t, fn(), ErrInvalidOptions, "is nil")
	}
}

// After a restore to the end of an epoch, the epoch without batches is no error.
func TestLoader_Epoch_EmptyAfterRestore(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, set := range sources(t, 6) {
		l := open(t, set, Options{BatchSize: 3, DropLast: true})
		_, _, states := readEpoch(t, l)
		must.Do(t, l.Restore(states[1]))
		if lines, _, _ := readEpoch(t, l); len(lines) != 0 {
			t.Errorf("%s: %d batches", name, len(lines))
		}
	}
}

// A consumer that holds all batches for long is told of once.
func TestLoader_Epoch_HeldBatches(t *testing.T) {
	torchtest.CheckLeaks(t)
	var lines bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	defer slog.SetDefault(before)
	e := &epoch{loader: open(t, numbered(t, 10), Options{})}
	for _, waited := range []time.Duration{time.Second, tellHeld, 2 * tellHeld} {
		must.Do(t, e.lookForHeld(waited))
		if got, want := strings.Count(lines.String(), "holds all its batches"), min(1, int(waited/tellHeld)); got != want {
			t.Errorf("after %v: %d lines, want %d", waited, got, want)
		}
	}
}
