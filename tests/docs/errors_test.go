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
	book = root + "/docs/book/"
)

// errorPages are the pages of errors, with the packages of each in its order. Packages without a
// program that meets their errors, such as most of those below internal, are on none.
var errorPages = []struct {
	file, about string
	packages    []string
}{
	{"errors-tensors.md", "tensors, operators, streams and traces", []string{"cgotorch", "cgotorch/images", "cgotorch/trace"}},
	{"errors-models.md", "layers, training, models, serving and tokens", []string{
		"cgotorch/nn", "cgotorch/optim", "cgotorch/distributed", "cgotorch/metric", "cgotorch/vision", "cgotorch/serve", "cgotorch/serve/oip", "cgotorch/text", "cgotorch/text/tokenizer",
	}},
	{"errors-files.md", "files of weights and of programs, and weights in host memory", []string{
		"cgotorch/checkpoint", "cgotorch/safetensors", "cgotorch/pth", "cgotorch/pt2", "cgotorch/aoti", "cgotorch/internal/torchzip", "prefetcher/weights",
	}},
	{"errors-data.md", "images, tables and other data, and their way to the device", []string{
		"imageloader", "imageloader/decode", "imageloader/cifar", "imageloader/idx", "cgotorch/data", "cgotorch/data/parquet", "prefetcher",
	}},
}

// covered returns the packages of all pages.
func covered() (dirs []string) {
	for _, p := range errorPages {
		dirs = append(dirs, p.packages...)
	}
	return dirs
}

// parts are texts that are only parts of others, or that no mistake of a program causes.
var parts = map[string]string{
	"an embedded field":   "part of the error of nn.Check",
	"an unexported field": "part of the error of nn.Check",
	`export it, or give it the tag state:"-" if it is not the module's`:     "part of the error of nn.Check",
	`give the field a name, or the tag state:"-" if it is not the module's`: "part of the error of nn.Check",
	"a map has no order, so use a slice, or a struct with a field for each": "part of the error of nn.Check",
	"the Exec's device, …":           "part of the error of an argument",
	"after …":                        "part of the error of a rank that is missing",
	"distributed":                    "stands before another error",
	"no answer for …":                "part of the error of a store that does not answer",
	"rank … of …":                    "stands before another error",
	"… within …":                     "part of the error of a rank that is late",
	"distributed: NewSharded":        "stands before another error",
	"distributed: sharded …":         "stands before another error",
	"it is …, and … is …":            "part of the error of parameters that differ",
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
	"state …":                        "stands before another error",
	"it has … ranks at image … of …": "part of the error of State.Ranks",
	"all images are sent":            "no error: it ends the loader's pass through an archive",
	"after member … (…)":             "stands before another error",
	"… (tried … times)":              "stands behind another error",
	"; remove it, or let some be skipped with Options.MaxSkipRate":                                                "stands behind another error",
	"; CSVOptions.EmptyNaN, set in each reader of the file, makes NaN of an empty cell in a floating-point field": "stands behind another error",
	"decode":                            "stands before another error",
	"CapturedOptions.Eager asks for it": "no error: why a function runs eagerly",
	"the CPU has no graphs":             "no error: why a function runs eagerly",
	"(passed over: …)…":                 "stands behind another error",
	", and Options.MaxSkipRate is …":    "stands behind another error",
	`; Options.Split "." takes all`:     "stands behind another error",
	"; there are images of no split, CLASS/FILE, in the directories …": "stands behind another error",
	"; there are the splits …":                                         "stands behind another error",
	"… …member … (…)":                                                  "stands behind another error",
	"a map":                                                            "part of the error of nn.Check",
	"optim":                                                            "stands before another error",
	"data":                                                             "stands before another error",
	"data: Pin":                                                        "stands before another error",
	"data: …: row …":                                                   "stands before the error of a Sequence",
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
	"text":                                                             "stands before another error",
	"tokenizer":                                                        "stands before another error",
	"safetensors":                                                      "stands before another error",
	"safetensors: …: tensor …":                                         "stands before another error",
	"the header is …":                                                  "stands before another error",
	"pth: tensor …":                                                    "stands before another error",
	"pth: …: tensor …":                                                 "stands before another error",
	"byte … of the pickle":                                             "stands before another error",
	"data.pkl":                                                         "stands before another error",
	"it has … bytes":                                                   "stands before another error",
	"argument …":                                                       "stands before another error",
	"input … of the program":                                           "stands before another error",
	"input … of …":                                                     "stands before another error",
	"output … of …":                                                    "stands before another error",
	"node … (…)":                                                       "stands before another error",
	"the arguments":                                                    "stands before another error",
	"the results":                                                      "stands before another error",
	"the entry …":                                                      "stands before another error",
	"the expression …":                                                 "stands before another error",
	"the input …":                                                      "stands before another error",
	"the parameter …":                                                  "stands before another error",
	"the tensor … in …":                                                "stands before another error",
	"…: the input …":                                                   "stands before another error",
	"pt2: operators.json":                                              "stands before another error",
	"serve: New":                                                       "stands before another error",
	"serve: input … …":                                                 "stands before another error",
	"aoti":                                                             "stands before another error",
	"input …":                                                          "stands before another error",
	"input … is …":                                                     "stands before another error",
	"…_metadata.json":                                                  "stands before another error",
	"weights":                                                          "stands before another error",
	"weights: CacheOptions.…":                                          "stands before another error",
	"weights: unit …":                                                  "stands before another error",
	"weights: the store":                                               "stands before another error",
	"weights: routes":                                                  "stands before another error",
	"unit …, and what is like it":                                      "stands before another error",
	"weights: unit … cannot be used":                                   "stands before another error",
	"cifar":                                                            "stands before another error",
	"instruction … at byte …":                                          "stands before another error",
	"trace: WriteChrome":                                               "stands before another error",
	"the header":                                                       "stands before another error",
	"the sizes":                                                        "stands before another error",
	"; the forward is at …":                                            "stands behind another error",
	"its label, in …":                                                  "stands before another error",
	"Samples":                                                          "stands before another error",
	"serve: New: result …, …, …, …":                                    "stands before another error",
	"oip: infer with …":                                                "stands before another error",
	"oip: metadata of …":                                               "stands before another error",
	"the answer's output …":                                            "stands before another error",
	"has no JSON form":                                                 "part of the error of an answer",
	"a condition of the model":                                         "part of the error of an assertion",
	", or a quote is not closed; …":                                    "part of the error of a long row",
	"; JSONLinesOptions.NullNaN makes NaN of null":                                                                      "stands behind another error",
	"; the first rows decided on …, and CSVOptions.Fields can give the column another dtype, or Text":                   "stands behind another error",
	"…; Options.Labels says where labels are from, such as LabelsFromDirectories":                                       "stands behind another error",
	"… (in a batch of … entries, to compare an entry alone and among others; Options.Samples has other entries for it)": "stands behind another error",
	"text: and … more": "stands behind other errors",
}

// makers are the functions that make errors, or parts of them, of the texts in their arguments.
var makers = regexp.MustCompile(`^(Errorf|lose|refuse.*|fail|bad|badMember|unreadable|Bad|Refuse|say|wrong)$`)

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
				if k, ok := n.Key.(*ast.Ident); ok && reasons.MatchString(k.Name) {
					if s, ok := literal(n.Value); ok {
						add(s, false)
					}
				}
			case *ast.CompositeLit: // the cures of LibTorch's messages, and kinds of files
				if name, _ := nameOf(n.Type); name == "FileKind" && len(n.Elts) == 3 {
					kind, _ := literal(n.Elts[0])
					for i, e := range n.Elts[1:] {
						advice, ok := literal(e)
						if of, _ := nameOf(e); !ok {
							advice = constants(file)[of]
						}
						if i == 0 && advice == "" {
							advice = constants(file)["saveAnew"]
						}
						if advice != "" {
							add(kind+": "+advice, false)
						}
					}
				}
				if n.Type == nil && len(n.Elts) == 3 && filepath.Base(path) == "cure.go" {
					part, ok := literal(n.Elts[0])
					if name, _ := nameOf(n.Elts[0]); !ok {
						part = constants(file)[name]
					}
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

var verb = regexp.MustCompile(`% x|%[-+#0-9.*\[\]]*[a-zA-Z]`)

// shown returns a format as the page shows it.
func shown(format string) string {
	text := strings.ReplaceAll(verb.ReplaceAllString(format, "…"), "%%", "%")
	for strings.HasSuffix(text, ": …") {
		text = strings.TrimSuffix(text, ": …")
	}
	return strings.Join(strings.Fields(text), " ")
}

// words returns the number of letters of a text, without its package.
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
var says = regexp.MustCompile(`[;:,] (so )?(only |first )?(use|give|call|check|set|make|take|close|Close|Clone|keep|lower|export|change|leave|copy|run|add|convert|put|look|drop|release|divide|name|want|it must|they must|Record|record|write|fuse|try|encode|decode|split|capture|read|raise|end|yield|start|open|train|install|rebuild|compare|wait|stop|load|unpack|download|get|compile|package|let|Release|send|choose|say|save|trace|test|dump|hold|sum|only|there are …)\b`)

type entry struct{ text, cause, cure string }

// rowsOf reads the tables of the pages, by package.
func rowsOf(t *testing.T) map[string][]entry {
	t.Helper()
	rows, dir := map[string][]entry{}, ""
	for _, p := range errorPages {
		text, err := os.ReadFile(book + p.file)
		if err != nil && !*update {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "## Package "); ok {
				dir = name
			}
			cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
			if dir == "" || len(cells) != 5 || !strings.Contains(cells[1], "`") {
				continue
			}
			for i := range cells {
				cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
			}
			for _, text := range strings.Split(cells[1], "<br>") {
				rows[dir] = append(rows[dir], entry{strings.TrimSpace(strings.Trim(text, "`")), cells[2], cells[3]})
			}
		}
	}
	return rows
}

const head = `# Errors

These pages list the texts of the errors that the library makes, with causes and cures. Three dots stand for what
differs. An empty cell means that the text says it. Texts of one cause and one cure share a row. A text may be a part
of a longer one, behind the operator, the shapes and the line of the program.

An error of package cgotorch reads ` + "`cgotorch: OPERATOR(SHAPES) at FILE:LINE: TEXT`" + `. Test its kind with
` + "`errors.Is(err, cgotorch.ErrOutOfMemory)`" + ` and the like, not its text.

A panic in a function that you gave to a loader or a prefetcher is raised again in your loop, with the first stack in
its text. If the function calls runtime.Goexit, as t.Fatal does, the loop ends with an error that says so.

| page | errors of | packages |
| --- | --- | --- |
%s
The texts of the C++ core are on no page, and of LibTorch's only those to which the library adds a cure.

After a change of a text, ` + "`go test ./tests/docs -run Errors -update`" + ` writes these pages anew. It keeps the cells.
`

// quoted returns a text as it stands in a cell.
func quoted(text string) string {
	quote := "`"
	if strings.Contains(text, "`") {
		quote = "``"
	}
	return quote + strings.ReplaceAll(text, "|", `\|`) + quote
}

// errorTable returns the table of a package, with the cells of the rows. A row has all texts with
// one cause and one cure. It stands where the first of them stands.
func errorTable(t *testing.T, dir string, rows []entry) string {
	type cells struct{ cause, cure string }
	shared := map[cells][]string{}
	var order []entry
	texts := extracted(t, dir)
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		if parts[text] != "" {
			continue
		}
		r := texts[text]
		if i := slices.IndexFunc(rows, func(r entry) bool { return r.text == text }); i >= 0 && r.cure == "" {
			r = rows[i]
		}
		of := cells{r.cause, r.cure}
		if r.cure == "" || shared[of] == nil {
			order = append(order, r)
		}
		shared[of] = append(shared[of], quoted(text))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Package %s\n\n| text | cause | cure |\n| --- | --- | --- |\n", dir)
	for _, r := range order {
		text := quoted(r.text)
		if r.cure != "" {
			text = strings.Join(shared[cells{r.cause, r.cure}], "<br>")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", text, strings.ReplaceAll(r.cause, "|", `\|`), strings.ReplaceAll(r.cure, "|", `\|`))
	}
	return b.String()
}

// written returns the pages by their files, for the texts of the source and the cells of the rows.
func written(t *testing.T, rows map[string][]entry) map[string]string {
	pages, index := map[string]string{}, ""
	for _, p := range errorPages {
		text := "# Errors of " + p.about + "\n\n[errors.md](errors.md) says how to read this page.\n"
		for _, dir := range p.packages {
			text += errorTable(t, dir, rows[dir])
		}
		pages[p.file] = text
		index += fmt.Sprintf("| [%s](%s) | %s | %s |\n", p.file, p.file, p.about, strings.Join(p.packages, ", "))
	}
	pages["errors.md"] = fmt.Sprintf(head, index)
	return pages
}

// Each text of an error of the packages is on their page, with a cause and a cure, and the pages
// have no others.
func TestErrors_Pages(t *testing.T) {
	rows := rowsOf(t)
	for file, want := range written(t, rows) {
		if *update {
			if err := os.WriteFile(book+file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(book + file); err != nil || string(have) != want {
			t.Errorf("docs/book/%s is not as the source has it (%v): run go test ./tests/docs -run Errors -update, and fill in what is new", file, err)
		}
	}
	for _, dir := range covered() {
		for _, r := range rowsOf(t)[dir] {
			if r.cure == "" && !says.MatchString(r.text) {
				t.Errorf("%s: %q has no cure", dir, r.text)
			}
		}
	}
}

// Each public package with errors is on a page.
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
			listed := slices.Contains(covered(), dir)
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
