// Package docs tests the pages in docs against the source.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

const (
	root       = "../.."
	errorsPage = root + "/docs/book/errors.md"
)

// Each row of the page of errors has a cause and a cure. All parts of each of its texts stand in
// one file of the package, so no row outlives its message.
func TestErrors_Page(t *testing.T) {
	page := must.Get(os.ReadFile(errorsPage))(t)
	rows, dir := 0, ""
	var files []string
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## Package "); ok {
			dir, files = name, stringsOf(t, name)
		}
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		if len(cells) != 3 || strings.TrimRight(cells[1], " ") == "" || strings.Trim(cells[2], " |") == "" {
			t.Errorf("%s: no cause or no cure: %s", dir, line)
		}
		for _, text := range strings.Split(strings.TrimPrefix(cells[0], "| "), "<br>") {
			parts := strings.Split(strings.Trim(text, "` "), "…")
			if !slices.ContainsFunc(files, func(file string) bool { return hasAll(file, parts) }) {
				t.Errorf("%s has no error of the text %s: correct the row, or take it out", dir, text)
			}
		}
	}
	if rows < 100 {
		t.Errorf("only %d rows", rows)
	}
}

func hasAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// stringsOf returns the literal strings of each file of a package and of its internal packages, one
// behind the other.
func stringsOf(t *testing.T, dir string) (files []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	inside, _ := filepath.Glob(filepath.Join(root, dir, "internal", "*", "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no files, %v", dir, err)
	}
	paths = append(paths, inside...)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := must.Get(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		var texts []string
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
				text := must.Get(strconv.Unquote(s.Value))(t)
				texts = append(texts, text)
			}
			return true
		})
		files = append(files, strings.Join(texts, ""))
	}
	return files
}
