package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// commentedFile is a source file that is not generated. path is relative to the root.
type commentedFile struct {
	path      string
	lines     []commentLine
	sentences []sentence // of exported doc comments; none for tests and for C++
}

func (f commentedFile) folder() string { return filepath.ToSlash(filepath.Dir(f.path)) }

type commentLine struct {
	number int
	text   string // from "//" to the end of the line; inside /* */ from the first non-blank on
}

type sentence struct {
	line, words int
	start       string // the first words of the sentence
}

// commentedFiles reads all Go and C++ files of the tree, except generated ones.
func commentedFiles(t *testing.T) []commentedFile {
	t.Helper()
	var all []commentedFile
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (slices.Contains([]string{"build", "gpu-bundle", "testdata", "runs"}, name) ||
				strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		extension := filepath.Ext(name)
		if !slices.Contains([]string{".go", ".cc", ".cpp", ".cu", ".cuh", ".c", ".h", ".hpp"}, extension) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || generatedMark.Match(text) {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := commentedFile{path: filepath.ToSlash(relative)}
		if extension != ".go" {
			f.lines = cComments(string(text))
			all = append(all, f)
			return nil
		}
		f.lines, f.sentences, err = goComments(path, text)
		all = append(all, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	generatedMark = regexp.MustCompile(`(?m)^(//|/\*) Code generated .* DO NOT EDIT`)
	// A directive, such as go:generate or edge:NAME, cannot be broken into several lines.
	directive = regexp.MustCompile(`^//([a-z]+:[^ ]|(export|line|nolint)\b)`)
)

// width returns the number of columns of a line. A tab fills up to a multiple of 4.
func width(line string) int {
	columns := 0
	for _, r := range strings.TrimRightFunc(line, unicode.IsSpace) {
		if r == '\t' {
			columns += 4 - columns%4
		} else {
			columns++
		}
	}
	return columns
}

// splitComment splits a comment into lines, without directives. The comment begins at line
// `number`.
func splitComment(text string, number int) []commentLine {
	var lines []commentLine
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimLeftFunc(line, unicode.IsSpace); line != "" && !directive.MatchString(line) {
			lines = append(lines, commentLine{number + i, line})
		}
	}
	return lines
}

// goComments returns the lines of comment of a Go file. It also returns the sentences of the
// file's exported doc comments. The C code above import "C" is no comment.
func goComments(path string, text []byte) ([]commentLine, []sentence, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	code := map[*ast.CommentGroup]bool{}
	for _, decl := range file.Decls {
		if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, spec := range g.Specs {
				if s := spec.(*ast.ImportSpec); s.Path.Value == `"C"` {
					code[g.Doc], code[s.Doc] = true, true
				}
			}
		}
	}
	var lines []commentLine
	for _, group := range file.Comments {
		if code[group] {
			continue
		}
		for _, comment := range group.List {
			lines = append(lines, splitComment(comment.Text, files.Position(comment.Pos()).Line)...)
		}
	}
	if strings.HasSuffix(path, "_test.go") {
		return lines, nil, nil
	}
	var sentences []sentence
	for _, group := range exportedDocs(file) {
		var doc []commentLine // the lines without the signs of a comment; blank lines are kept
		for _, comment := range group.List {
			number := files.Position(comment.Pos()).Line
			if directive.MatchString(comment.Text) {
				continue
			}
			if line, ok := strings.CutPrefix(comment.Text, "//"); ok {
				doc = append(doc, commentLine{number, strings.TrimPrefix(line, " ")})
				continue
			}
			for i, line := range strings.Split(strings.TrimSuffix(comment.Text[2:], "*/"), "\n") {
				doc = append(doc, commentLine{number + i, strings.TrimPrefix(line, " ")})
			}
		}
		sentences = append(sentences, splitSentences(doc)...)
	}
	return lines, sentences, nil
}

// exportedDocs returns the package comment and the doc comments of all exported names of a file.
// A doc comment stands above its name, or after it on the same line.
func exportedDocs(file *ast.File) []*ast.CommentGroup {
	groups := []*ast.CommentGroup{}
	add := func(docs ...*ast.CommentGroup) {
		for _, doc := range docs {
			if doc != nil && !slices.Contains(groups, doc) {
				groups = append(groups, doc)
			}
		}
	}
	exported := func(names []*ast.Ident) bool { return slices.ContainsFunc(names, (*ast.Ident).IsExported) }
	members := func(typ ast.Expr) { // adds the comments of the fields and methods in a type
		ast.Inspect(typ, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if ok && (exported(field.Names) || len(field.Names) == 0 && ast.IsExported(receiverName(field.Type))) {
				add(field.Doc, field.Comment)
			}
			return !ok || exported(field.Names)
		})
	}
	add(file.Doc)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiverName(d.Recv.List[0].Type))) {
				add(d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						add(d.Doc, s.Doc, s.Comment)
						members(s.Type)
					}
				case *ast.ValueSpec:
					if exported(s.Names) {
						add(d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	return groups
}

// receiverName returns the name of a type without pointer, package and type arguments.
func receiverName(typ ast.Expr) string {
	switch e := typ.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.IndexListExpr:
		return receiverName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	listItem     = regexp.MustCompile(`^\s+([-*+•]|[0-9]+[.)])\s+(.*)`)
	linkTarget   = regexp.MustCompile(`^\[[^\]]+\]: \S+$`)
	link         = regexp.MustCompile(`\[[^\]]*\]`)
	abbreviation = regexp.MustCompile(`(?i)(^|[(\["'])(e\.g|i\.e|etc|vs|cf|approx|resp)\.$`)
)

// splitSentences counts the words of each sentence of a doc comment. A sentence ends at '.', '?'
// or '!'. It also ends at a blank line, a list item, a heading and a code block. A code block has
// no sentences. A text in brackets, such as [Exec], is one word. A sign that has neither letters
// nor digits is no word.
func splitSentences(doc []commentLine) []sentence {
	var (
		all     []sentence
		current sentence
		inList  bool
	)
	end := func() {
		if current.words > 0 {
			all = append(all, current)
		}
		current = sentence{}
	}
	add := func(line commentLine) {
		if linkTarget.MatchString(line.text) {
			return
		}
		text := link.ReplaceAllStringFunc(line.text, func(s string) string { return strings.Join(strings.Fields(s), "_") })
		for _, token := range strings.Fields(text) {
			if !strings.ContainsFunc(token, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				continue
			}
			if current.words++; current.words == 1 {
				current.line = line.number
			}
			if current.words <= 6 {
				current.start += token + " "
			}
			bare := strings.TrimRight(token, `)]"'”’`+"`")
			last, _ := utf8.DecodeLastRuneInString(bare)
			if strings.ContainsRune(".?!", last) && !strings.HasSuffix(bare, "...") && !abbreviation.MatchString(bare) {
				end()
			}
		}
	}
	for _, line := range doc {
		item := listItem.FindStringSubmatch(line.text)
		indented := strings.HasPrefix(line.text, " ") || strings.HasPrefix(line.text, "\t")
		switch {
		case strings.TrimSpace(line.text) == "":
			end()
		case item != nil:
			end()
			inList = true
			add(commentLine{line.number, item[2]})
		case strings.HasPrefix(line.text, "# "):
			end()
			add(line)
			end()
		case indented && !inList:
			end()
		case !indented && inList:
			end()
			inList = false
			add(line)
		default:
			add(line)
		}
	}
	end()
	return all
}

// cComments returns the lines of comment of a C or C++ file.
func cComments(text string) []commentLine {
	var lines []commentLine
	number := 1
	take := func(n int) string { // returns the next n bytes and moves on
		taken := text[:n]
		text = text[n:]
		number += strings.Count(taken, "\n")
		return taken
	}
	upTo := func(end string, skip int) int { // returns the number of bytes up to and with `end`
		if i := strings.Index(text[skip:], end); i >= 0 {
			return skip + i + len(end)
		}
		return len(text)
	}
	word := "" // the letters and digits just before text, such as the R of R" and the 1 of 1'000
	for text != "" {
		switch c := text[0]; {
		case strings.HasPrefix(text, "//"):
			at := number
			lines = append(lines, splitComment(take(upTo("\n", 0)), at)...)
		case strings.HasPrefix(text, "/*"):
			at := number
			lines = append(lines, splitComment(take(upTo("*/", 2)), at)...)
		case c == '"' && strings.HasSuffix(word, "R"):
			open := strings.IndexByte(text, '(')
			if open < 0 {
				return lines
			}
			take(upTo(")"+text[1:open]+`"`, open))
		case c == '"' || c == '\'' && (word == "" || !unicode.IsDigit(rune(word[0]))):
			n := 1
			for n < len(text) && text[n] != c {
				if text[n] == '\\' {
					n++
				}
				n++
			}
			take(min(n+1, len(text)))
		default:
			take(1)
			if c == '_' || c == '\'' || unicode.IsLetter(rune(c)) || unicode.IsDigit(rune(c)) {
				word += string(rune(c))
				continue
			}
		}
		word = ""
	}
	return lines
}

func TestWords_Counters(t *testing.T) {
	const in = `// Package p counts, e.g. files such as a.go, in 0.5 s. Does it… wait? Yes; no: one
// sentence.
// # Heading
//   - first item
//     goes on
//   - second item. New sentence
//
// As in:
//
//	code is. no sentence.
//
// See [the link of words] - end
package p

//go:embed something
import "C"

// T is exported.
type T struct {
	A, b int // field [Exec.Do]
	c    int // not counted
	// D is embedded.
	D interface {
		M() // method
	}
}

func (t *t) Exported() {}

// F is
// exported.
func F[A any](t *T) {} // not doc
`
	_, sentences, err := goComments("in.go", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, s := range sentences {
		got += fmt.Sprintf("%d:%d ", s.line, s.words)
	}
	const want = "1:11 1:3 1:4 3:1 4:4 6:2 6:2 8:2 12:3 18:3 20:2 22:3 24:1 30:3 "
	if got != want {
		t.Errorf("sentences of a Go file, as line:words\n got %s\nwant %s", got, want)
	}

	lines := cComments("int a = 1'000; // one\n" + `char c = '\'', *s = "// no", *r = R"x( // no " )x"; /* two` + "\n\n   three */\n" + `f("\\") // four`)
	got = ""
	for _, line := range lines {
		got += fmt.Sprintf("%d:%s|", line.number, line.text)
	}
	if want := "1:// one|2:/* two|4:three */|5:// four|"; got != want {
		t.Errorf("comments of a C++ file\n got %s\nwant %s", got, want)
	}
	if got := width("// ä\tx \t"); got != 9 {
		t.Errorf("width is %d, want 9", got)
	}
}
