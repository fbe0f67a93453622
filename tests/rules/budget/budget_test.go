package budget

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// figures counts a module of a few files.
func figures(t *testing.T, files map[string]string) map[string]Figure {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.com/m\n\ngo 1.24\n"
	for name, text := range files {
		file := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.Do(t, os.WriteFile(file, []byte(text), 0o644))
	}
	tree := must.Get(Load(dir))(t)
	all := must.Get(tree.Figures())(t)
	by := map[string]Figure{}
	for _, f := range all {
		by[f.Name] = f
	}
	return by
}

func wantCounts(t *testing.T, got map[string]Figure, want map[string]int) {
	t.Helper()
	for name, count := range want {
		if got[name].Count != count || got[name].Name == "" {
			t.Errorf("%s: %d, want %d: %v", name, got[name].Count, count, got[name].What)
		}
	}
}

// Four fields count as four, wherever they are put.
func TestFields_NestingDoesNotHelp(t *testing.T) {
	const four = "struct { mu sync.Mutex; n int; list []int; by map[string]int }"
	for shape, text := range map[string]string{
		"flat":             "type scope " + four,
		"embedded":         "type care " + four + "; type scope struct { care }",
		"two levels":       "type care " + four + "; type inner struct { care care }; type scope struct { inner inner }",
		"without a name":   "type scope struct { care " + four + " }",
		"of another name":  "type care " + four + "; type same = care; type scope struct { care same }",
		"array":            "type care " + four + "; type scope struct { care [1]care }",
		"pointer":          "type care " + four + "; type scope struct { care *care }",
		"atomic pointer":   "type care " + four + "; type scope struct { care atomic.Pointer[care] }",
		"embedded pointer": "type care " + four + "; type scope struct { *care }",
		"list":             "type care " + four + "; type list struct { care; next *list }; type scope struct { list list }; var _ = scope{}.list.next.n",
	} {
		source := "package cgotorch\n\nimport (\"sync\"; \"sync/atomic\")\n\nvar _ sync.Mutex\nvar _ atomic.Int64\ntype Exec struct { s *scope }\n" + text + "\n"
		want := 4
		if shape == "list" {
			want = 5 // with `next`
		}
		t.Run(shape, func(t *testing.T) {
			wantCounts(t, figures(t, map[string]string{"cgotorch/scope.go": source}), map[string]int{"fields of scope": want})
		})
	}
}

// What several own counts as one, as do the types of other packages.
func TestFields_SharedCountAsOne(t *testing.T) {
	got := figures(t, map[string]string{
		"cgotorch/scope.go": `package cgotorch

import ("sync"; "example.com/m/cgotorch/internal/ct")

type Stream struct { a, b, c int; s *scope }
type shared struct { a, b int }
type scope struct { stream *Stream; shared *shared; mu sync.Mutex; c ct.Exec; _ int }
type Exec struct { s *scope; shared *shared }
`,
		"cgotorch/internal/ct/ct.go": "package ct\n\ntype Exec struct { A, B int }\n",
	})
	wantCounts(t, got, map[string]int{"fields of scope": 4, "fields of Exec": 2})
}

const core = "package cgotorch\n\ntype scope struct{}\ntype Exec struct{}\n"

func TestVariables(t *testing.T) {
	for text, want := range map[string]int{
		"var n int":                                          0, // nobody writes it
		"var n int; func f() { n++ }":                        1,
		"var n int; func init() { n = 3 }":                   0,
		"var n, m = 1, 2; func f() { n, m = m, n }":          2,
		"var n int; func f() *int { return &n }":             1,
		"var mu sync.Mutex; func f() { mu.Lock() }":          1,
		"var ErrX = errors.New(`x`); var ErrY = ErrX":        0,
		"var r = regexp.MustCompile(`x`)":                    0,
		"var once = sync.OnceValue(func() int { return 1 })": 1,
		"type kind struct { a, b int }; var k = &kind{1, 2}; var all = [2]kind{}; func f() *kind { return &all[1] }": 0,
		"var f = func() {}":                                                                                         0,
		"var table = map[string]int{`a`: 1}":                                                                        0,
		"var table = map[string]int{}; func f() { table[`a`] = 1 }":                                                 1,
		"var table = map[string]int{}; func f() { delete(table, `a`) }":                                             1,
		"var all struct { sync.Mutex; n int; in struct { a, b int } }; func f() { all.in.a = 1 }":                   4,
		"type in struct { a, b int }; var all = &struct { n int; in *in }{}; func f() { all.n++ }":                  1,
		"type state struct { a, b, c int }; var all = &state{}; func f(s *state) { s.b++ }":                         3,
		"type state struct { a, b, c int }; var all atomic.Pointer[state]; func f() { all.Load().a = 1 }":           3,
		"type state struct { a, b, c int }; func (s *state) see() { s.a++ }; var all state; func f() { all.see() }": 3,
	} {
		source := "package other\n\nimport (\"errors\"; \"regexp\"; \"sync\"; \"sync/atomic\")\n\nvar _, _ = errors.New, regexp.MustCompile\nvar _ sync.Mutex\nvar _ atomic.Int64\n" + text + "\n"
		t.Run(text, func(t *testing.T) {
			wantCounts(t, figures(t, map[string]string{"cgotorch/core.go": core, "internal/other/other.go": source}), map[string]int{"variables of other packages": want})
		})
	}
}

// Functions that another package sets count one by one, also in one struct that a call stores.
func TestHoles(t *testing.T) {
	for seam, set := range map[string]string{
		"var A, B, C func()":                                                                                  "seam.A, seam.B, seam.C = f, f, f",
		"var All struct { A, B func(); C any }":                                                               "seam.All.A, seam.All.B, seam.All.C = f, f, 1",
		"type Funcs struct { A, B func(); C any }; var All Funcs":                                             "seam.All = seam.Funcs{f, f, 1}",
		"type Funcs struct { A, B func(); C any }; var all Funcs; func Set(f Funcs) { all = f }":              "seam.Set(seam.Funcs{f, f, 1})",
		"var a, b func(); var c any; func Set(f, g func(), h any) { a, b = f, g; c = h }":                     "seam.Set(f, f, 1)",
		"type Funcs struct { A, B, C func() }; var all struct { in Funcs }; func Set(f Funcs) { all.in = f }": "seam.Set(seam.Funcs{f, f, f})",
	} {
		t.Run(seam, func(t *testing.T) {
			wantCounts(t, figures(t, map[string]string{
				"cgotorch/core.go":               core + "func f() {}\n",
				"cgotorch/seam.go":               "package cgotorch\n\nimport \"example.com/m/cgotorch/internal/seam\"\n\nfunc init() { " + set + " }\n",
				"cgotorch/internal/seam/seam.go": "package seam\n\n" + seam + "\n",
			}), map[string]int{"set from outside": 3, "init functions": 1})
		})
	}
}

func TestArrowsAndNames(t *testing.T) {
	got := figures(t, map[string]string{
		"cgotorch/scope.go":     core + "func (x *Exec) Use() { feature() }\n",
		"cgotorch/captured.go":  "package cgotorch\n\nfunc feature() { var x Exec; x.Use() }\n",
		"cgotorch/leaf.go":      "package cgotorch\n\nvar X, y = feature, 1\n\nfunc (hidden) Told() {}\n\ntype hidden struct{}\n",
		"cgotorch/gen.go":       "// Code generated by hand. DO NOT EDIT.\n\npackage cgotorch\n\nfunc (x *Exec) Made() { feature() }\n",
		"cgotorch/nn/nn.go":     "package nn\n\ntype Module interface { Forward() }\n\nfunc Long() {" + strings.Repeat("\n", 60) + "}\n",
		"cgotorch/nn/a_test.go": "package nn\n\nfunc Test() {}\n",
	})
	wantCounts(t, got, map[string]int{
		"uses from core to features": 1, "files in the knot": 2, "percent of the root in the knot": 100 * 8 / 15,
		"names of the root by hand": 3, "names of the root": 4, "names of the library by hand": 5, "names of the library": 6,
		"lines of the root": 15, "lines of the product": 15 + 65, "lines of tests": 3, "long functions": 1, "long files": 0,
	})
}
