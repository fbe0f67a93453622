package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// edge is a wait, a record or a free of the library, and the test that fails without it.
type edge struct {
	name       string
	file, text string // the file's path from the root of the tree, and its content
	line       int    // the line of the first statement
	function   string
	statements []span // the marked statements; the first may be replaced, and the others are removed
	folder     string // the folder of the test's Go package; empty for GoogleTest
	test       string // the test's name, or Suite.Name for GoogleTest
	device     device
}

// span is a part of a file's text.
type span struct{ start, end int }

// device says on which machine the test fails.
type device string

const (
	onCPU   device = "CPU"
	checked device = "CPU with the checker" // a CPU is enough if the test turns the stream checker on
	onGPU   device = "GPU"
)

var devices = map[string]device{"": onCPU, "checked": checked, "gpu": onGPU}

func (e edge) isGo() bool         { return strings.HasSuffix(e.file, ".go") }
func (e edge) isGoogleTest() bool { return e.folder == "" }

// comment is a comment of a source file. The field `at` is its offset.
type comment struct {
	at   int
	text string
}

// source is a file with its comments and a way to find its statements.
type source struct {
	text     string
	comments []comment
	// statement returns the end of the statement that begins at the offset `start`. It also returns
	// the name of the function that contains the statement.
	statement func(start int) (end int, function string, err error)
}

var (
	anyMark = regexp.MustCompile(`^//\s*edge\s*:`)
	oneMark = regexp.MustCompile(`^//edge:([a-z0-9-]+) (also|([\w./]+)(?: (checked|gpu))?)$`)
)

// load reads the marks in the Go and C++ files of the tree at `root`. git lists the files.
func load(root string) ([]edge, error) {
	files, err := output("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.go", "*.cc", "*.cu", "*.h")
	if err != nil {
		return nil, err
	}
	var all []edge
	var errs []error
	tests := tests{}
	for file := range strings.Lines(files) {
		file = strings.TrimSpace(file)
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // git still lists a file that was removed from the tree
		}
		tests.add(file, string(text))
		found, err := marked(file, string(text))
		all, errs = append(all, found...), append(errs, err)
	}
	names := map[string]bool{}
	for i := range all {
		e := &all[i]
		if names[e.name] {
			errs = append(errs, fmt.Errorf("%s:%d: another edge is called %s", e.file, e.line, e.name))
		}
		names[e.name] = true
		if err := tests.find(e); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", e.file, e.line, e.name, err))
		}
	}
	for name := range replacements {
		if !names[name] {
			errs = append(errs, fmt.Errorf("replacements.go: no edge is called %s", name))
		}
	}
	return all, errors.Join(errs...)
}

// marked returns the edges of a file. The folders of their tests are not set yet.
func marked(file, text string) (all []edge, err error) {
	if !strings.Contains(text, "edge") {
		return nil, nil
	}
	var s *source
	if strings.HasSuffix(file, ".go") {
		s, err = goSource(text)
	} else {
		s = ccSource(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for _, c := range s.comments {
		if !anyMark.MatchString(c.text) {
			continue
		}
		line := strings.Count(text[:c.at], "\n") + 1
		mark := oneMark.FindStringSubmatch(c.text)
		if mark == nil {
			errs = append(errs, fmt.Errorf("%s:%d: %q is not //edge:NAME TEST [checked|gpu]", file, line, c.text))
			continue
		}
		start := s.begin(c.at)
		end, function, err := s.statement(start)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", file, line, mark[1], err))
			continue
		}
		if mark[2] != "also" {
			all = append(all, edge{name: mark[1], file: file, text: text, line: strings.Count(text[:start], "\n") + 1, function: function,
				statements: []span{{start, end}}, test: mark[3], device: devices[mark[4]]})
			continue
		}
		i := slices.IndexFunc(all, func(e edge) bool { return e.name == mark[1] && e.function == function })
		if i < 0 || all[i].statements[len(all[i].statements)-1].end > start {
			errs = append(errs, fmt.Errorf("%s:%d: no statement before, in this function, is of edge %s", file, line, mark[1]))
			continue
		}
		all[i].statements = append(all[i].statements, span{start, end})
	}
	return all, errors.Join(errs...)
}

// begin returns the offset of the statement that a mark belongs to. The statement begins on the
// line of the mark. If the mark stands alone on its line, the statement begins below the comments
// that follow.
func (s *source) begin(mark int) int {
	lines := s.text[strings.LastIndex(s.text[:mark], "\n")+1:]
	start := len(s.text) - len(lines)
	for {
		code := strings.TrimLeft(lines, " \t")
		end := strings.Index(lines, "\n")
		if !strings.HasPrefix(code, "//") || end < 0 {
			return start + len(lines) - len(code)
		}
		start, lines = start+end+1, lines[end+1:]
	}
}

// mutated returns the content of the edge's file without the edge.
func (e edge) mutated() string {
	text := e.text
	for i, s := range slices.Backward(e.statements) {
		with := ""
		if i == 0 {
			with = strings.ReplaceAll(replacements[e.name], "$", text[s.start:s.end])
		}
		text = text[:s.start] + with + text[s.end:]
	}
	return text
}

// tests holds, for each name of a test, the folders that have a test of this name. The folder of a
// GoogleTest is "".
type tests map[string][]string

var (
	goTest = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	ccTest = regexp.MustCompile(`(?m)^TEST(?:_F|_P)?\((\w+), (\w+)\)`)
)

func (t tests) add(file, text string) {
	switch {
	case strings.HasSuffix(file, "_test.go"):
		for _, found := range goTest.FindAllStringSubmatch(text, -1) {
			t[found[1]] = append(t[found[1]], path.Dir(file))
		}
	case strings.HasSuffix(file, "_test.cc"):
		for _, found := range ccTest.FindAllStringSubmatch(text, -1) {
			t[found[1]+"."+found[2]] = []string{""}
		}
	}
}

// find sets the folder of the edge's test. If the mark names a folder, find takes this folder.
// Otherwise it takes the folder of the edge's file, if that folder has the test. Otherwise it
// takes the only folder that has the test.
func (t tests) find(e *edge) error {
	folders := t[e.test]
	if dot := strings.LastIndex(e.test, "."); dot >= 0 && folders == nil {
		if !slices.Contains(t[e.test[dot+1:]], e.test[:dot]) {
			return fmt.Errorf("no test is %s", e.test)
		}
		e.folder, e.test = e.test[:dot], e.test[dot+1:]
		return nil
	}
	switch own := path.Dir(e.file); {
	case slices.Contains(folders, own):
		e.folder = own
	case len(folders) == 1:
		e.folder = folders[0]
	case len(folders) == 0:
		return fmt.Errorf("no test is called %s", e.test)
	default:
		return fmt.Errorf("%s is in %s: write FOLDER.%[1]s", e.test, strings.Join(folders, " and "))
	}
	if e.isGoogleTest() && e.device != onGPU {
		return fmt.Errorf("%s is a GoogleTest, which a bundle alone runs: its device is gpu", e.test)
	}
	return nil
}
