package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// A document with a cut that does not exist stays as it is. The others are written.
func TestUpdate_OneBadDocument(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) string {
		t.Helper()
		path = filepath.Join(root, path)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.Do(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	write("p.go", "package p\n\nfunc F() {}\n")
	bad := write("docs/a.md", "<!-- cut: p.go G -->\n```go\nold\n```\n")
	good := write("docs/book/b.md", "<!-- cut: p.go F -->\n```go\nold\n```\n")

	if err := update(root); err == nil || !strings.Contains(err.Error(), "docs/a.md: line 1:") {
		t.Errorf("update returned %v, want an error that names the document and the line", err)
	}
	for path, want := range map[string]string{bad: "old", good: "func F() {}"} {
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), "\n"+want+"\n") {
			t.Errorf("%s is %q, %v; want the code %q", path, got, err, want)
		}
	}
}
