// Package docs tests the pages in docs against the source.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root = "../.."
	page = root + "/docs/book/errors.md"
)

// covered are the packages whose errors the page has, in its order. Packages without a program that
// meets their errors, such as those below internal, are in neither list.
var covered = []string{
	"cgotorch", "cgotorch/nn", "cgotorch/optim", "cgotorch/data", "cgotorch/images", "cgotorch/vision", "cgotorch/checkpoint",
	"prefetcher", "imageloader", "imageloader/decode",
}

// uncovered are the public packages whose errors the page does not have yet.
var uncovered = []string{
	"cgotorch/data/parquet", "cgotorch/metric", "cgotorch/pt2", "cgotorch/pth", "cgotorch/safetensors", "cgotorch/text",
	"cgotorch/text/tokenizer", "cgotorch/trace", "imageloader/cifar", "imageloader/idx", "prefetcher/weights",
}

// parts are texts that are only parts of others, or that no mistake of a program causes.
var parts = map[string]string{
	"an embedded field":   "part of the error of nn.Check",
	"an unexported field": "part of the error of nn.Check",
	`export it, or give it the tag state:"-" if it is not the module's`:     "part of the error of nn.Check",
	`give the field a name, or the tag state:"-" if it is not the module's`: "part of the error of nn.Check",
	"a map has no order, so use a slice, or a struct with a field for each": "part of the error of nn.Check",
	"the Exec's device, …":           "part of the error of an argument",
	"Config":                         "stands before another error",
	"Loader":                         "stands before another error",
	"checkpoint":                     "stands before another error",
	"metadata …":                     "stands before another error",
	"tensor …":                       "stands before another error",
	"imageloader":                    "stands before another error",
	"imageloader: Options":           "stands before another error",
	"imageloader: Options.…":         "stands before another error",
	"imageloader: Options.ClassFile": "stands before another error",
	"imageloader: closing":           "stands before another error",
	"after member … (…)":             "stands before another error",
	"… (tried … times)":              "stands behind another error",
	"; remove it, or let some be skipped with Options.MaxSkipRate": "stands behind another error",
	"decode":                            "stands before another error",
	"CapturedOptions.Eager asks for it": "no error: why a function runs eagerly",
	"the CPU has no graphs":             "no error: why a function runs eagerly",
	"(passed over: …)":                  "stands behind another error",
	", and Options.MaxSkipRate is …":    "stands behind another error",
	`; Options.Split "" takes all`:      "stands behind another error",
	"; there are images of no split, CLASS/FILE, in the directories …": "stands behind another error",
	"; there are the splits …":                                         "stands behind another error",
	"… …member … (…)":                                                  "stands behind another error",
	"a map":                                                            "part of the error of nn.Check",
	"optim":                                                            "stands before another error",
	"data":                                                             "stands before another error",
	"data: Pin":                                                        "stands before another error",
	"data: …: row …":                                                   "stands before the error of a Sequence",
	", or a quote is not closed":                                       "part of the error of a long row",
	"data: Epoch":                                                      "stands before another error",
	"data: field …":                                                    "stands before another error",
	"data: sample …":                                                   "stands before another error",
	"data: … rows":                                                     "stands before another error",
	"… (batch … of epoch …)":                                           "stands behind another error",
	"prefetcher":                                                       "stands before another error",
	"prefetcher: Epoch":                                                "stands before another error",
	"prefetcher: Options.…":                                            "stands before another error",
	"prefetcher: copying …":                                            "stands before another error",
	"optim: ema":                                                       "stands before another error",
	"optim: scaler":                                                    "stands before another error",
	"optim: lbfgs: the optimizer":                                      "stands before ErrClosed",
	"lbfgs: the optimizer or a parameter":                              "stands before ErrClosed",
	"the averages":                                                     "stands before ErrClosed",
	"the optimizer":                                                    "stands before ErrClosed",
	"the scaler":                                                       "stands before ErrClosed",
	"…: the optimizer":                                                 "stands before ErrClosed",
	"parameter …":                                                      "stands before another error",
	"… of parameter …":                                                 "stands before another error",
}

// makers are the functions that make errors, or parts of them, of the texts in their arguments.
var makers = regexp.MustCompile(`^(Errorf|lose|refuse.*|fail|bad|badMember|unreadable)$`)

// reasons are the names of variables and fields that hold texts of errors.
var reasons = regexp.MustCompile(`^(Message|Reason|reason|fault|why|bad)$`)

// extracted returns the texts of the errors of one package. Of LibTorch's messages it has the cells
// too, which are in the source.
func extracted(t *testing.T, dir string) map[string]entry {
	t.Helper()
	texts := map[string]entry{}
	add := func(format string, sentinel bool) {
		if text := shown(format); sentinel || words(text) >= 4 {
			texts[text] = entry{text: text}
		}
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", dir, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_gen.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl: // the guards return the reasons why they refuse
				if n.Body != nil && (strings.HasPrefix(n.Name.Name, "guard") || n.Name.Name == "CheckNormalization") {
					ast.Inspect(n.Body, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
							if s, ok := literal(r.Results[0]); ok && s != "" {
								add(s, false)
							}
						}
						return true
					})
				}
			case *ast.CallExpr:
				name, from := nameOf(n.Fun)
				if sentinel := name == "New" && from == "errors"; sentinel || makers.MatchString(name) {
					for _, arg := range n.Args {
						if s, ok := literal(arg); ok && strings.Contains(s, " ") {
							add(s, sentinel)
						}
					}
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if name, _ := nameOf(to); reasons.MatchString(name) && len(n.Rhs) == len(n.Lhs) {
						if s, ok := literal(n.Rhs[i]); ok {
							add(s, false)
						}
					}
				}
			case *ast.KeyValueExpr:
				if k, ok := n.Key.(*ast.Ident); ok && (k.Name == "Message" || k.Name == "Reason") {
					if s, ok := literal(n.Value); ok {
						add(s, false)
					}
				}
			case *ast.CompositeLit: // the cures of LibTorch's messages
				if n.Type == nil && len(n.Elts) == 3 && filepath.Base(path) == "cure.go" {
					part, _ := literal(n.Elts[0])
					cure, ok := literal(n.Elts[2])
					if name, _ := nameOf(n.Elts[2]); !ok {
						cure = constants(file)[name]
					}
					text := shown("…" + strings.ReplaceAll(part, "...", "…") + "…")
					texts[text] = entry{text, "LibTorch refuses the arguments", cure}
				}
			}
			return true
		})
	}
	return texts
}

// constants returns the constant texts of a file by their names.
func constants(file *ast.File) map[string]string {
	texts := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
			for i, name := range spec.Names {
				texts[name.Name], _ = literal(spec.Values[i])
			}
		}
		return true
	})
	return texts
}

func nameOf(function ast.Expr) (name, from string) {
	switch f := function.(type) {
	case *ast.Ident:
		return f.Name, ""
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			from = x.Name
		}
		return f.Sel.Name, from
	}
	return "", ""
}

// literal returns a text in the source. What is not literal becomes three dots.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		a, first := literal(e.X)
		b, second := literal(e.Y)
		if !first {
			a = "…"
		}
		if !second {
			b = "…"
		}
		return a + b, e.Op == token.ADD && (first || second)
	case *ast.CallExpr:
		if name, _ := nameOf(e.Fun); name == "Sprintf" {
			return literal(e.Args[0])
		}
	}
	return "", false
}

var verb = regexp.MustCompile(`%[-+#0-9.*\[\]]*[a-zA-Z]`)

// shown returns a format as the page shows it.
func shown(format string) string {
	text := strings.ReplaceAll(verb.ReplaceAllString(format, "…"), "%%", "%")
	for strings.HasSuffix(text, ": …") {
		text = strings.TrimSuffix(text, ": …")
	}
	return strings.Join(strings.Fields(text), " ")
}

// The function `words` returns the number of letters of a text, without its package.
func words(text string) int {
	_, rest, found := strings.Cut(text, ": ")
	if !found || strings.Contains(text[:len(text)-len(rest)], " ") && !strings.HasPrefix(text, "…") {
		rest = text
	}
	n := 0
	for _, r := range rest {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			n++
		}
	}
	return n
}

// says matches texts that say themselves what to do.
var says = regexp.MustCompile(`[;:,] (so )?(only |first )?(use|give|call|set|make|take|close|Close|Clone|keep|lower|export|change|leave|copy|run|add|convert|put|look|drop|release|divide|name|want|it must|they must|Record|record|write|fuse|try|encode|decode|split|capture|read|raise|end|yield|start|open|train|install|rebuild|compare|wait|there are …)\b`)

type entry struct{ text, cause, cure string }

// rowsOf reads the tables of the page, by package.
func rowsOf(t *testing.T) map[string][]entry {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows, dir := map[string][]entry{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## Package "); ok {
			dir = name
		}
		if cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|"); dir != "" && len(cells) == 5 && strings.Contains(cells[1], "`") {
			for i := range cells {
				cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
			}
			rows[dir] = append(rows[dir], entry{strings.TrimSpace(strings.Trim(cells[1], "`")), cells[2], cells[3]})
		}
	}
	return rows
}

const head = `# Errors

These are the texts of the errors that the library makes, by package. Three dots stand for what differs. An empty cell
means that the text says it. A text may be a part of a longer one, behind the operator, the shapes and the line of the
program.

An error of package cgotorch reads ` + "`cgotorch: OPERATOR(SHAPES) at FILE:LINE: TEXT`" + `. Test its kind with
` + "`errors.Is(err, cgotorch.ErrOutOfMemory)`" + ` and the like, not its text.

A panic in a function that you gave to a loader or a prefetcher is raised again in your loop, with the first stack in
its text. If the function calls runtime.Goexit, as t.Fatal does, the loop ends with an error that says so.

The texts of the C++ core are not on this page, and of LibTorch's only those to which the library adds a cure. These
packages are not on it yet: %s.

After a change of a text, ` + "`go test ./tests/docs -run Errors -update`" + ` writes this page anew. It keeps the cells.
`

// written returns the page for the texts of the source, with the cells of the rows.
func written(t *testing.T, rows map[string][]entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, head, strings.Join(uncovered, ",\n"))
	for _, dir := range covered {
		fmt.Fprintf(&b, "\n## Package %s\n\n| text | cause | cure |\n| --- | --- | --- |\n", dir)
		texts := extracted(t, dir)
		for _, text := range slices.Sorted(maps.Keys(texts)) {
			if parts[text] != "" {
				continue
			}
			r := texts[text]
			if i := slices.IndexFunc(rows[dir], func(r entry) bool { return r.text == text }); i >= 0 && r.cure == "" {
				r = rows[dir][i]
			}
			quote := "`"
			if strings.Contains(text, "`") {
				quote = "``"
			}
			cells := []string{quote + strings.ReplaceAll(text, "|", `\|`) + quote, strings.ReplaceAll(r.cause, "|", `\|`), strings.ReplaceAll(r.cure, "|", `\|`)}
			fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		}
	}
	return b.String()
}

// Each text of an error of the covered packages is in the page, with a cause and a cure, and the
// page has no others.
func TestErrors_Page(t *testing.T) {
	rows := rowsOf(t)
	want := written(t, rows)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		rows = rowsOf(t)
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("docs/book/errors.md is not as the source has it: run go test ./tests/docs -run Errors -update, and fill in what is new")
	}
	for _, dir := range covered {
		for _, r := range rows[dir] {
			if r.cure == "" && !says.MatchString(r.text) {
				t.Errorf("docs/book/errors.md: %s: %q has no cure", dir, r.text)
			}
		}
	}
}

// Each public package with errors is covered, or the page says that it is not.
func TestErrors_Packages(t *testing.T) {
	for _, top := range []string{"cgotorch", "imageloader", "prefetcher"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if entry.Name() == "internal" || entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) == 0 {
				return nil
			}
			dir, err := filepath.Rel(root, path)
			listed := slices.Contains(covered, dir) || slices.Contains(uncovered, dir)
			if n := len(extracted(t, dir)); n > 0 != listed {
				t.Errorf("%s has %d texts of errors, and listed is %v", dir, n, listed)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
