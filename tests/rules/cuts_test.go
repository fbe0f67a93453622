package rules

import (
	"go/doc"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/cuts"
)

// The Go code of the documents is the code of the files that it is cut from.
func TestCuts_AreCurrent(t *testing.T) {
	paths, err := cuts.Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := cuts.Rewrite(root, string(text))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got, now := strings.Split(string(text), "\n"), strings.Split(want, "\n")
		for i := range min(len(got), len(now)) {
			if got[i] != now[i] {
				t.Errorf("%s:%d is %q, and the file that it is cut from has %q: run make docs", path, i+1, got[i], now[i])
				break
			}
		}
	}
}

// Each block of Go code in the book is a cut of a file that go test compiles.
func TestCuts_AllCodeOfTheBook(t *testing.T) {
	blocks := 0
	for _, path := range chapters(t) {
		for _, b := range codeBlocks(t, path) {
			if b.language != "go" {
				continue
			}
			blocks++
			if !strings.HasPrefix(b.mark, "cut: ") {
				t.Errorf("%s: the code is no cut of a tested file: write <!-- cut: FILE.go NAME --> above it", b.at())
			}
		}
	}
	if blocks == 0 {
		t.Error("the book has no Go code")
	}
}

// Each Example of the book has an output. Otherwise go test would not run it. A comment right above
// "// Output:" is enough to hide the output.
func TestCuts_ExamplesRun(t *testing.T) {
	examples := 0
	for _, s := range sources(t) {
		if filepath.ToSlash(filepath.Dir(s.path)) != "docs/book" {
			continue
		}
		for _, example := range doc.Examples(s.file) {
			examples++
			if example.Output == "" {
				t.Errorf("%s: Example%s has no output, so nothing runs it", s.path, example.Name)
			}
		}
	}
	if examples == 0 {
		t.Error("docs/book has no Example")
	}
}

// chapters returns the paths of the book's documents.
func chapters(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs/book/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		if paths[i], err = filepath.Rel(root, path); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}
