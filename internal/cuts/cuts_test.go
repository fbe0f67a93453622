package cuts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

const source = `package p

// cut: twice
var a = 1 // cut: no mark

// end: twice
// T is a type.
type T struct{ a int }

// M is a method.
func (t *T) M() {
	// cut: twice
	if true {
		// cut: inner
		a++
		// end: inner
	}
	// end: twice
}

func ExampleT() {

	a = 2
	// Output: 2
}
func ExampleT_second() {
	// cut: printed
	a = 2
	// end: printed

	// Output:
	// 2
}

// cut: open
// end: shut
`

func write(t *testing.T, text string) (root string) {
	t.Helper()
	root = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(root, "p.go"), []byte(text), 0o666))
	return root
}

func TestCut(t *testing.T) {
	path := filepath.Join(write(t, source), "p.go")
	for name, want := range map[string]string{
		"twice":    "var a = 1 // cut: no mark\n\n// …\n\nif true {\n\ta++\n}\n",
		"inner":    "a++\n",
		"T":        "// T is a type.\ntype T struct{ a int }\n",
		"printed":  "a = 2\n// Output:\n// 2\n",
		"ExampleT": "a = 2\n// Output: 2\n",
		"T.M":      "// M is a method.\nfunc (t *T) M() {\n\tif true {\n\t\ta++\n\t}\n}\n",
	} {
		if got, err := Cut(path, name); err != nil || got != want {
			t.Errorf("cut %s is %q, %v; want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"open": `no line "// end: open"`,
		"shut": "line 36: cut shut ends before it begins",
		"M":    "no declaration has this name",
	} {
		if got, err := Cut(path, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cut %s is %q, %v; want an error that says %q", name, got, err, want)
		}
	}
}

func TestRewrite(t *testing.T) {
	root := write(t, source)
	in := "# Title\n\n<!-- cut: p.go inner -->\n```go\nold\nold\n```\n\nText.\n\n```go\nfree\n```\n"
	want := "# Title\n\n<!-- cut: p.go inner -->\n```go\na++\n```\n\nText.\n\n```go\nfree\n```\n"
	got, err := Rewrite(root, in)
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if again, err := Rewrite(root, got); err != nil || again != got {
		t.Errorf("a second Rewrite gives %q, %v", again, err)
	}
	for name, c := range map[string]struct{ in, want string }{
		"no block":       {"<!-- cut: p.go inner -->\n\nText.\n", "line 1: no block of Go code"},
		"shell block":    {"\n<!-- cut: p.go inner -->\n```sh\n```\n", "line 2: no block of Go code"},
		"no end":         {"<!-- cut: p.go inner -->\n```go\na++\n", "line 1: no block of Go code"},
		"no file":        {"<!-- cut: q.go inner -->\n```go\n```\n", "q.go"},
		"no such piece":  {"<!-- cut: p.go outer -->\n```go\n```\n", "// cut: outer"},
		"last line ends": {"<!-- cut: p.go inner -->", "no block of Go code"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Rewrite(root, c.in); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v; want an error that says %q", got, err, c.want)
			}
		})
	}
}
