package rules

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

const maxDocumentColumns = 120

var numbered = regexp.MustCompile(`/[0-9][0-9]-[a-z-]+\.md$`)

// README and the numbered chapters of the book fit the width of a terminal. Code of a chapter has
// the columns of its file.
func TestDocuments_Columns(t *testing.T) {
	paths := []string{"README.md"}
	for _, path := range chapters(t) {
		if numbered.MatchString(path) {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		inCode := false
		for i, line := range strings.Split(document(t, path), "\n") {
			if strings.HasPrefix(line, "```") && numbered.MatchString(path) {
				inCode = !inCode
			}
			if columns := width(line); !inCode && columns > maxDocumentColumns {
				t.Errorf("%s:%d: %d columns, want at most %d", path, i+1, columns, maxDocumentColumns)
			}
		}
	}
}

// The package comment of cgotorch and the guide give the one rule in the same words.
func TestDocuments_OneRule(t *testing.T) {
	const rule = "Work is enqueued only by a call that names its stream. Such a call takes an Exec or a Stream, " +
		"is a method of Stream, or is a method of an object that was given its stream when it was made."
	for _, path := range []string{"docs/guide.md", "cgotorch/doc.go"} {
		text := strings.NewReplacer("//", "", "[", "", "]", "").Replace(document(t, path))
		if !strings.Contains(strings.Join(strings.Fields(text), " "), rule) {
			t.Errorf("%s does not say: %s", path, rule)
		}
	}
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	blockOfCode  = regexp.MustCompile("(?ms)^```.*?^```$")
	inlineCode   = regexp.MustCompile("``.*?``|`[^`\n]*`")
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	quotedFile   = regexp.MustCompile("`([a-zA-Z0-9_./-]+\\.(?:go|cc|h|sh|txt|md))`")
)

// Every relative link leads to a file, and to a heading of that file. Every quoted name of a file
// is the end of a path in the tree.
func TestDocuments_Links(t *testing.T) {
	files := tracked(t)
	paths := []string{"README.md", "docs/guide.md", "docs/operators.md", "docs/side-by-side.md", "docs/several-hosts.md", "docs/from-pytorch.md", "docs/from-gotorch.md", "docs/versions.md",
		"CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"}
	for _, path := range append(paths, chapters(t)...) {
		text := inlineCode.ReplaceAllString(blockOfCode.ReplaceAllString(document(t, path), ""), "")
		for _, match := range markdownLink.FindAllStringSubmatch(text, -1) {
			target, section, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := filepath.Join(filepath.Dir(path), target)
			if target == "" {
				file = path
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: link to %s: %v", path, match[1], err)
				continue
			}
			if section != "" && !slices.Contains(anchors(document(t, file)), section) {
				t.Errorf("%s: link to %s: the file has no such heading", path, match[1])
			}
		}
		if path == "CHANGELOG.md" {
			continue // the document names files that do not exist any more
		}
		for _, match := range quotedFile.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix("/"+file, "/"+match[1]) }) {
				t.Errorf("%s: there is no file %s", path, match[1])
			}
		}
	}
}

// anchors returns the names that links use for the headings of a document.
func anchors(text string) []string {
	var all []string
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(match[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// block is a block of code in a document. mark is the HTML comment before the block.
type block struct {
	path, language, mark, text string
	line                       int
}

func (b block) at() string { return fmt.Sprintf("%s:%d", b.path, b.line) }

// codeBlocks returns the blocks of Go code and of shell commands in a document.
func codeBlocks(t *testing.T, path string) []block {
	t.Helper()
	var all []block
	mark := ""
	var open *block
	for i, line := range strings.Split(document(t, path), "\n") {
		switch {
		case open != nil && line == "```":
			if slices.Contains([]string{"go", "sh"}, open.language) {
				all = append(all, *open)
			} else if open.language != "" {
				t.Errorf("%s: this test knows no %q", open.at(), open.language)
			}
			open, mark = nil, ""
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			open = &block{path: path, language: strings.TrimPrefix(line, "```"), mark: mark, line: i + 1}
		case strings.HasPrefix(line, "<!-- ") && strings.HasSuffix(line, " -->"):
			mark = strings.TrimSuffix(strings.TrimPrefix(line, "<!-- "), " -->")
		case line != "":
			mark = ""
		}
	}
	return all
}

// A block of commands has a comment before it. The comment names the test that runs the commands,
// or the reason why no test runs them:
//
//	<!-- run by: TestName -->
//	<!-- not run: REASON -->
//
// The test runs commands that have no such comment. A make target in any command must be in the
// Makefile, a path in the repository must exist, and a flag must be one of the program's. The same
// holds for commands inside a sentence.
func TestDocuments_Commands(t *testing.T) {
	for _, path := range append([]string{"README.md", "docs/guide.md", "CONTRIBUTING.md"}, chapters(t)...) {
		for _, match := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(document(t, path), -1) {
			if !strings.HasPrefix(filepath.Base(path), "errors") { // their code is texts of errors
				checkCommand(t, path, match[1])
			}
		}
		for _, b := range codeBlocks(t, path) {
			if b.language != "sh" {
				continue
			}
			for line := range strings.Lines(b.text) {
				command, _, _ := strings.Cut(line, " #")
				checkCommand(t, b.at(), command)
			}
			by, isRun := strings.CutPrefix(b.mark, "run by: ")
			_, isNot := strings.CutPrefix(b.mark, "not run: ")
			switch {
			case isNot:
			case isRun:
				if out, err := exec.Command("git", "-C", root, "grep", "-qE", `^func `+by+`\(`, "--", "*_test.go").CombinedOutput(); err != nil {
					t.Errorf("%s: there is no test %s: %v %s", b.at(), by, err, out)
				}
			case b.mark != "":
				t.Errorf("%s: unknown mark %q", b.at(), b.mark)
			default:
				cmd := exec.Command("bash", "-euc", b.text)
				cmd.Dir = root
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", b.at(), err, out)
				}
			}
		}
	}
}

var (
	makeTarget  = regexp.MustCompile(`\bmake ([a-z][a-z-]*)(?: ARGS="([^"]*)")?`)
	program     = regexp.MustCompile(`\b(?:go run (?:-\S+ )*\./|build/bin/)(\S+)([^|>]*)`)
	programFlag = regexp.MustCompile(`(?:^| )-([a-z][a-z0-9-]*)`)
)

// checkCommand fails the test if a command names a target, a path of the repository or a flag that
// does not exist.
func checkCommand(t *testing.T, at, command string) {
	t.Helper()
	for _, match := range makeTarget.FindAllStringSubmatch(command, -1) {
		if !regexp.MustCompile(`(?m)^` + match[1] + `:`).MatchString(document(t, "Makefile")) {
			t.Errorf("%s: there is no target %s", at, match[1])
		}
		if match[1] == "train" {
			checkFlags(t, at, "examples/train", match[2])
		}
	}
	for _, match := range program.FindAllStringSubmatch(command, -1) {
		for _, folder := range []string{match[1], "cmd/" + match[1], "examples/" + match[1]} {
			if sources, _ := filepath.Glob(filepath.Join(root, folder, "*.go")); sources != nil {
				checkFlags(t, at, folder, match[2])
			}
		}
	}
	for word := range strings.FieldsFuncSeq(command, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`;=()", r) }) {
		path := strings.TrimSuffix(strings.TrimPrefix(word, "./"), "...")
		first, _, isPath := strings.Cut(path, "/")
		if isPath && slices.Contains([]string{"bench", "cgotorch", "cmd", "csrc", "docs", "examples", "imageloader", "internal", "prefetcher", "tests"}, first) {
			if found, err := filepath.Glob(filepath.Join(root, path)); err != nil || found == nil {
				t.Errorf("%s: there is no %s", at, path)
			}
		}
	}
}

// checkFlags fails the test if the program in the folder does not define a flag in args.
func checkFlags(t *testing.T, at, folder, args string) {
	t.Helper()
	text := ""
	sources := must.Get(filepath.Glob(filepath.Join(root, folder, "*.go")))(t)
	for _, source := range sources {
		code := must.Get(os.ReadFile(source))(t)
		text += string(code)
	}
	for _, name := range programFlag.FindAllStringSubmatch(args, -1) {
		if !regexp.MustCompile(`\.\w+\((&[\w.]+, )?"` + name[1] + `", `).MatchString(text) { // as in flag.Int("epochs", …)
			t.Errorf("%s: %s has no flag -%s", at, folder, name[1])
		}
	}
}

// Each block of Go code compiles as the body of a function. The comment before the block declares
// the function:
//
//	<!-- in: func(x *cgotorch.Exec) error -->
func TestDocuments_Code(t *testing.T) {
	packages := []string{
		"context", "fmt", module + "/cgotorch", module + "/cgotorch/nn", module + "/cgotorch/optim", module + "/cgotorch/vision",
		module + "/imageloader", module + "/imageloader/decode", module + "/prefetcher", module + "/prefetcher/weights",
	}
	folder, files := t.TempDir(), []string{}
	for _, path := range []string{"README.md", "docs/guide.md", "CONTRIBUTING.md"} {
		for _, b := range codeBlocks(t, path) {
			if b.language != "go" {
				continue
			}
			if strings.HasPrefix(b.mark, "not run: ") {
				continue
			}
			signature, ok := strings.CutPrefix(b.mark, "in: func")
			if !ok {
				t.Errorf("%s: no comment says the function that this is the body of", b.at())
				continue
			}
			var source strings.Builder
			source.WriteString("package snippet\n\nimport (\n")
			for _, p := range packages {
				if regexp.MustCompile(`\b` + filepath.Base(p) + `\.`).MatchString(signature + b.text) {
					fmt.Fprintf(&source, "\t%q\n", p)
				}
			}
			fmt.Fprintf(&source, ")\n\nfunc snippet%d%s {\n%s", len(files), signature, b.text)
			if !regexp.MustCompile(`(?m)^return `).MatchString(b.text) {
				source.WriteString("return nil\n")
			}
			source.WriteString("}\n")
			files = append(files, filepath.Join(folder, fmt.Sprintf("%s_%d.go", strings.TrimSuffix(filepath.Base(path), ".md"), b.line)))
			must.Do(t, os.WriteFile(files[len(files)-1], []byte(source.String()), 0o666))
		}
	}
	cmd := exec.Command("go", append([]string{"build"}, files...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the files have the names and lines of the documents' blocks: %v\n%s", err, out)
	}
}

func document(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(root, path)))(t)
	return string(text)
}
