package trace_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// Steps traces the steps after the first ones. Merge makes one file of two ranks' traces.
func TestSteps(t *testing.T) {
	folder := t.TempDir()
	paths := []string{filepath.Join(folder, "trace.json"), filepath.Join(folder, "trace.json.rank1"), filepath.Join(folder, "elsewhere")}
	for _, path := range paths[:2] {
		s, err := trace.NewSteps(path, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		var traced []int
		for step := range 6 {
			end, last, err := s.Begin(fmt.Sprint("step ", step))
			if err != nil {
				t.Fatal(err)
			}
			if end(); last {
				traced = append(traced, step)
				if summary, err := s.Finish(); err != nil || !strings.Contains(summary, "3 steps") {
					t.Errorf("%q, %v", summary, err)
				}
			}
		}
		if summary, err := s.Finish(); summary != "" || err != nil || !slices.Equal(traced, []int{4}) {
			t.Errorf("a second Finish: %q, %v; the last steps are %v", summary, err, traced)
		}
		s.Close()
	}
	if err := trace.Merge(paths); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(paths[0])
	for _, want := range []string{`"rank 0: `, `"rank 1: `, `"step 4"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%v: the trace has no %s", err, want)
		}
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 {
		t.Errorf("%d files, want one", len(entries))
	}
}

// A trace that does not come to its end leaves no file.
func TestSteps_Close(t *testing.T) {
	folder := t.TempDir()
	if _, err := trace.NewSteps(folder, 0, 1); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a folder: %v", err)
	}
	for _, bad := range [][2]int{{-1, 3}, {0, 0}, {2, -1}} {
		if _, err := trace.NewSteps(filepath.Join(folder, "bad.json"), bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "cannot be traced") {
			t.Errorf("steps %v: %v", bad, err)
		}
	}
	s, err := trace.NewSteps(filepath.Join(folder, "trace.json"), 0, 9)
	if err != nil {
		t.Fatal(err)
	}
	end, _, err := s.Begin("step")
	if err != nil {
		t.Fatal(err)
	}
	end()
	s.Close()
	if entries, _ := os.ReadDir(folder); len(entries) != 0 || s.Close() != nil {
		t.Errorf("%d files are left", len(entries))
	}
	var none *trace.Steps
	if end, last, err := none.Begin("step"); last || err != nil || none.Close() != nil {
		t.Errorf("a nil Steps: %v, %v", last, err)
	} else {
		end()
	}
}

// Without a file there is nothing to merge, and no file is made.
func TestMerge_None(t *testing.T) {
	folder := t.TempDir()
	for _, paths := range [][]string{nil, {filepath.Join(folder, "a"), filepath.Join(folder, "b")}} {
		if err := trace.Merge(paths); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v", paths, err)
		}
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 0 {
		t.Errorf("%d files, want none", len(entries))
	}
}
