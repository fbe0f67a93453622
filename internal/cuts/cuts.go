// Package cuts copies pieces of tested Go files into documents, so that the code in a document is
// code that compiles and runs.
package cuts

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	place = regexp.MustCompile(`^<!-- cut: (\S+) (\S+) -->$`)
	begin = regexp.MustCompile(`^\s*// cut: (\S+)$`)
	end   = regexp.MustCompile(`^\s*// end: (\S+)$`)
)

// Documents returns the paths of all documents in the folder docs of root.
func Documents(root string) ([]string, error) {
	var all []string
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		all = append(all, paths...)
	}
	return all, nil
}

// Rewrite returns a document with the code of its cuts. A cut is a block of Go code after a comment
// of this form. Its code becomes the piece NAME of the file PATH, which is relative to root:
//
//	<!-- cut: PATH NAME -->
//
// Rewrite fails if there is no such piece, or if no block of Go code follows the comment.
func Rewrite(root, document string) (string, error) {
	lines := strings.SplitAfter(document, "\n")
	var out strings.Builder
	for i := 0; i < len(lines); i++ {
		out.WriteString(lines[i])
		match := place.FindStringSubmatch(strings.TrimSuffix(lines[i], "\n"))
		if match == nil {
			continue
		}
		piece, err := Cut(filepath.Join(root, match[1]), match[2])
		if err != nil {
			return "", fmt.Errorf("line %d: %w", i+1, err)
		}
		open := i + 1
		last := open + 1
		for last < len(lines) && lines[last] != "```\n" {
			last++
		}
		if last >= len(lines) || lines[open] != "```go\n" {
			return "", fmt.Errorf("line %d: no block of Go code follows the cut: write a line ```go and a line ``` below it", i+1)
		}
		out.WriteString(lines[open] + piece + lines[last])
		i = last
	}
	return out.String(), nil
}

// Cut returns the piece of a Go file that has the name. The piece is the lines between the comment
// "// cut: NAME" and the comment "// end: NAME". An "// Output:" that follows belongs to the piece.
// If there are several such pairs, a line "// …" is between their lines. If there is none, the
// piece is the declaration of the function, the method (as TYPE.METHOD) or the type of this name.
// Of an Example the piece is the body alone. Cut removes the indentation that all lines share, and
// the comments that mark pieces.
func Cut(path, name string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	parts, err := marked(strings.Split(string(text), "\n"), name)
	if err == nil && parts == nil {
		parts, err = declared(string(text), name)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return strings.Join(parts, "\n// …\n\n"), nil
}

// marked returns the parts of the piece that comments mark.
func marked(lines []string, name string) ([]string, error) {
	var parts []string
	first := -1
	for i, line := range lines {
		if match := begin.FindStringSubmatch(line); match != nil && match[1] == name {
			if first >= 0 {
				return nil, fmt.Errorf("line %d: cut %s begins inside itself", i+1, name)
			}
			first = i + 1
		}
		if match := end.FindStringSubmatch(line); match != nil && match[1] == name {
			if first < 0 {
				return nil, fmt.Errorf("line %d: cut %s ends before it begins", i+1, name)
			}
			parts = append(parts, dedent(slices.Concat(lines[first:i], output(lines[i+1:]))))
			first = -1
		}
	}
	if first >= 0 {
		return nil, fmt.Errorf("cut %s has no line \"// end: %s\"", name, name)
	}
	return parts, nil
}

// output returns the comment "// Output:" if it is the next thing in the lines.
func output(lines []string) []string {
	from := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) != "" })
	if from < 0 || !strings.HasPrefix(strings.TrimSpace(lines[from]), "// Output:") {
		return nil
	}
	to := from
	for to < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[to]), "//") {
		to++
	}
	return lines[from:to]
}

// declared returns the declaration of the name, as the only part.
func declared(text, name string) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range file.Decls {
		var doc *ast.CommentGroup
		from, to := decl.Pos(), decl.End()
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if nameOf(d) != name {
				continue
			}
			if strings.HasPrefix(name, "Example") {
				from, to = d.Body.Lbrace+1, d.Body.Rbrace
			} else {
				doc = d.Doc
			}
		case *ast.GenDecl:
			spec, ok := d.Specs[0].(*ast.TypeSpec)
			if len(d.Specs) != 1 || !ok || spec.Name.Name != name {
				continue
			}
			doc = d.Doc
		}
		if doc != nil {
			from = doc.Pos()
		}
		piece := strings.Trim(text[files.Position(from).Offset:files.Position(to).Offset], "\n")
		return []string{dedent(strings.Split(piece, "\n"))}, nil
	}
	return nil, errors.New("no lines are marked \"// cut: " + name + "\", and no declaration has this name")
}

func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if of, ok := typ.(*ast.Ident); ok {
		return of.Name + "." + d.Name.Name
	}
	return ""
}

// dedent joins lines without the tabs that all of them begin with, and without comments that mark
// pieces. It leaves out blank lines at both ends.
func dedent(lines []string) string {
	tabs := -1
	for _, line := range lines {
		if own := len(line) - len(strings.TrimLeft(line, "\t")); strings.TrimSpace(line) != "" && (tabs < 0 || own < tabs) {
			tabs = own
		}
	}
	var out strings.Builder
	for _, line := range lines {
		if !begin.MatchString(line) && !end.MatchString(line) {
			out.WriteString(strings.TrimRight(line[min(max(tabs, 0), len(line)):], "\t ") + "\n")
		}
	}
	return strings.Trim(out.String(), "\n") + "\n"
}
