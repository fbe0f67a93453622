package trace_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// ranks stands for a group. agreed has the number of calls of Agree of each rank.
type ranks struct {
	rank, world int
	agreed      *[]int
}

func (r ranks) Rank() int  { return r.rank }
func (r ranks) World() int { return r.world }
func (r ranks) Err() error { return errors.New("a rank is lost") }

func (r ranks) Agree(yes bool) bool {
	*r.agreed = append(*r.agreed, r.rank)
	return yes
}

// Steps traces the steps after the first ones. The first rank makes one file of the ranks' traces.
// The last rank is on another machine.
func TestSteps(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "trace.json")
	var said []string
	var agreed []int
	for _, rank := range []int{1, 0} { // rank 0 comes last, as after Agree
		s, err := trace.NewSteps(path, trace.StepsOptions{From: 2, Count: 3, Ranks: ranks{rank, 3, &agreed}, Log: func(text string) { said = append(said, text) }})
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		for step := range 6 {
			if err := s.Do(fmt.Sprint("step ", step), func() error { made++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); made != 6 || err != nil {
			t.Errorf("%d steps, want 6; %v", made, err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "3 steps") || !slices.Equal(agreed, []int{1, 0}) {
		t.Errorf("said %q, and ranks %v have agreed", said, agreed)
	}
	text, err := os.ReadFile(path)
	for _, want := range []string{`"rank 0: `, `"rank 1: `, `"step 4"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%v: the trace has no %s", err, want)
		}
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 || strings.Contains(string(text), `"step 5"`) {
		t.Errorf("%d files, want one, without step 5", len(entries))
	}
}

// After a step that fails Close writes what there is, and waits for no other rank.
func TestSteps_Failed(t *testing.T) {
	folder := t.TempDir()
	var agreed []int
	s, err := trace.NewSteps(filepath.Join(folder, "trace.json"), trace.StepsOptions{Count: 9, Ranks: ranks{1, 2, &agreed}})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := s.Do("step", func() error { return broken }); !errors.Is(err, broken) || s.Close() != nil || s.Close() != nil {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "trace.json.rank1"))
	if !strings.Contains(string(text), `"step"`) || len(agreed) > 0 {
		t.Errorf("%v: %d calls of Agree, and the trace is %.200s", err, len(agreed), text)
	}
}

// Of too few steps all are traced, and nothing without a path.
func TestSteps_Few(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "trace.json"), ""} {
		said := ""
		s, err := trace.NewSteps(path, trace.StepsOptions{From: 2, Count: 3, Steps: 4, Log: func(text string) { said = text }})
		for step := range 4 {
			err = errors.Join(err, s.Do(fmt.Sprint("step ", step), func() error { return nil }))
		}
		if err != nil || strings.Contains(said, "4 steps") != (path != "") {
			t.Errorf("%q: %q, %v", path, said, err)
		}
		s.Close()
	}
}

// A trace without steps leaves no file.
func TestSteps_None(t *testing.T) {
	folder := t.TempDir()
	if _, err := trace.NewSteps(folder, trace.StepsOptions{Count: 1}); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a folder: %v", err)
	}
	for _, bad := range []trace.StepsOptions{{From: -1, Count: 3}, {}, {From: 2, Count: -1}} {
		if _, err := trace.NewSteps(filepath.Join(folder, "bad.json"), bad); err == nil || !strings.Contains(err.Error(), "cannot be traced") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	s, err := trace.NewSteps(filepath.Join(folder, "trace.json"), trace.StepsOptions{From: 1, Count: 9})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Do("step", func() error { return nil })
	if short := s.Close(); err != nil || short == nil || !strings.Contains(short.Error(), "1 steps") {
		t.Errorf("a trace that is too short: %v, %v", err, short)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 0 || s.Close() != nil {
		t.Errorf("%d files are left", len(entries))
	}
	var none *trace.Steps
	if err := none.Do("step", func() error { return nil }); err != nil || none.Close() != nil {
		t.Errorf("a nil Steps: %v", err)
	}
}
