package rules

import (
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
