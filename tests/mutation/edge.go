package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// edge is one wait, record or free of the library: what it orders, and which test fails without it.
type edge struct {
	name     string // unique, of letters, digits and dashes
	orders   string
	file, in string // where it stands; the function as a reader would look for it
	text     string // what is taken away: it stands in the file exactly once
	with     string // what takes its place
	folder   string // of the test's Go package; csrc for GoogleTest
	test     string // the test's name, or Suite.Name for GoogleTest
	device   device
}

// device is what the test needs in order to fail.
type device string

const (
	onCPU   device = "CPU"
	checked device = "CPU with the checker" // the test turns the stream checker on
	onGPU   device = "GPU"
)

func edges() []edge {
	return slices.Concat(prefetcherEdges(), modulesEdges(), imageloaderEdges(), coreEdges())
}

func (e edge) isGo() bool         { return strings.HasSuffix(e.file, ".go") }
func (e edge) isGoogleTest() bool { return e.folder == "csrc" }

// mutated is the text of the edge's file, in the tree at root, without the edge.
func (e edge) mutated(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, e.file))
	if err != nil {
		return "", err
	}
	source := string(data)
	if n := strings.Count(source, e.text); n != 1 || e.text == "" {
		return "", fmt.Errorf("%s: %s has this %d times, want once: %q", e.name, e.file, n, e.text)
	}
	if e.text == e.with {
		return "", fmt.Errorf("%s: nothing is taken away", e.name)
	}
	before, after, _ := strings.Cut(source, e.text)
	name := e.in[strings.LastIndexAny(e.in, ".:")+1:]
	if !strings.Contains(before+e.text, name+"(") {
		return "", fmt.Errorf("%s: %s has no %s before the text", e.name, e.file, e.in)
	}
	return before + e.with + after, nil
}

// hasTest fails unless the edge's test is there.
func (e edge) hasTest(root string) error {
	pattern, files := `func `+e.test+`\(t \*testing\.T\)`, "*_test.go"
	if e.isGoogleTest() {
		suite, name, _ := strings.Cut(e.test, ".")
		pattern, files = `TEST_F\(`+suite+`, `+name+`\)`, "*_test.cc"
	}
	paths, err := filepath.Glob(filepath.Join(root, e.folder, files))
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if regexp.MustCompile(pattern).Match(data) {
			return nil
		}
	}
	return fmt.Errorf("%s: %s has no test %s", e.name, e.folder, e.test)
}
