package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var golden = flag.Bool("golden", false, "write testdata/operators.golden anew")

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestGenerate_Golden(t *testing.T) {
	l, err := parseList("list.txt", read(t, "testdata/list.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := generate(l, "schemas.txt", read(t, "testdata/schemas.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Errorf("got %d packages, want cgotorch and fft", len(got))
	}
	for pkg, path := range map[string]string{"": "testdata/operators.golden", "fft": "testdata/fft.golden"} {
		if *golden {
			if err := os.WriteFile(path, got[pkg], 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if want := read(t, path); string(got[pkg]) != want {
			t.Errorf("the output differs from %s; if that is right, run go test -golden. got\n%s", path, got[pkg])
		}
	}
}

// The committed files are the files that "make generate" writes.
func TestGenerate_UpToDate(t *testing.T) {
	l, err := parseList("operators.txt", read(t, "../../operators.txt"))
	if err != nil {
		t.Fatal(err)
	}
	sources, err := generate(l, "schemas.txt", read(t, "schemas.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for pkg, source := range sources {
		if path := filepath.Join("../..", pkg, "operators_gen.go"); string(source) != read(t, path) {
			t.Errorf("%s is not what operators.txt and schemas.txt give: run make generate", path)
		}
	}
	table := filepath.Join(t.TempDir(), "operators.json")
	if err := writeDescriptions("../../operators.txt", "schemas.txt", table); err != nil {
		t.Fatal(err)
	}
	if path := "../../pt2/gosource/operators.json"; read(t, table) != read(t, path) {
		t.Errorf("%s is not what operators.txt and schemas.txt give: run make generate", path)
	}
}

func TestGenerate_Errors(t *testing.T) {
	const schemas = `t::add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
t::add_(Tensor(a!) self) -> Tensor(a!)
t::add.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
t::equal(Tensor self) -> bool
t::zeros(SymInt[] size, *, Device? device=None) -> Tensor
t::odd(Tensor self, Generator? g=None, complex c=1j, Tensor[]? l=None) -> Tensor
t::many(Tensor self) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
t::mix(Tensor self) -> (Tensor, int)
t::mode(Tensor self, int dim, bool on=True, bool off=False, int n=2, int zero=0, Tensor[] list=[]) -> Tensor
t::none(Tensor self, int[]? dim) -> Tensor
t::loss(Tensor self, int reduction=2) -> Tensor
t::keyword(Tensor range) -> Tensor
t::given(Tensor? weight=[], Layout? layout=None) -> Tensor
`
	tests := []struct{ line, want string }{
		{"Add(self, others) t::add # adds.", `l.txt:1: Add: t::add has no argument others: it is t::add(Tensor self,`},
		{"Add(self) t::add # adds.", "argument other of t::add has no default: it must be named"},
		{"Add(self, other, self) t::add # adds.", "argument self is named twice"},
		{"Add(self, other; other) t::add # adds.", "argument other is named twice"},
		{"Add(self, other) t::sub # adds.", "no schema of t::sub in s.txt"},
		{"Add(self, other) t::add # adds", "must end in a full stop"},
		{"Add(self, other) t::add", "must end in a full stop"},
		{"Add(self, other) t::add # adds.\nAdd(self, other) t::add # adds.", "l.txt:2: Add: defined at line 1 already"},
		{"## package a: A.\nAdd(self, other) t::add # adds.\nAdd(self, other) t::add # adds.", "l.txt:3: Add: defined at line 2 already"},
		{"Add(self) t::add_ # adds.", "its name must end in InPlace"},
		{"AddInPlace(self, out) t::add.out # adds.", "its name must end in Out"},
		{"AddInPlace(self, other) t::add # adds.", "its name cannot end in InPlace"},
		{"Add(self=input, other=input) t::add # adds.", "the parameter name input cannot be used"},
		{"Add(self=x, other) t::add # adds.", "the parameter name x cannot be used"},
		{"Key(range) t::keyword # is a keyword.", "the parameter name range cannot be used"},
		{"Equal(self) t::equal # reports.", `must say "waits for the device"`},
		{"Zeros(size, device) t::zeros # makes.", "device is filled from the Exec"},
		{"Odd(self, g) t::odd # odd.", "g has the type Generator?, which is not supported"},
		{"Odd(self, c) t::odd # odd.", "c has the type complex, which is not supported"},
		{"Odd(self, l) t::odd # odd.", "l has the type Tensor[]?, which is not supported"},
		{"Many(self) t::many # many.", "t::many returns (Tensor, Tensor, Tensor, Tensor, Tensor), which is not supported"},
		{"Mix(self) t::mix # mixes.", "t::mix returns (Tensor, int), which is not supported"},
		{"Mode(self; dim) t::mode # m.", "option dim of t::mode has no default"},
		{"Mode(self, dim; !n=NoN) t::mode # m.", "!n: only a bool that defaults to true"},
		{"Mode(self, dim; !off=On) t::mode # m.", "!off: only a bool that defaults to true"},
		{"Mode(self, dim; ~on) t::mode # m.", "~on: only a number whose default is not 0"},
		{"Mode(self, dim; ~zero) t::mode # m.", "~zero: only a number whose default is not 0"},
		{"Mode(self, dim; on=on) t::mode # m.", "the field name on cannot be used"},
		{"Mode(self, dim; on=A, n=A) t::mode # m.", "the field name A cannot be used"},
		{"Mode(self, dim; n) t::mode # m.", "option N has no description: add a line @N or @ModeOptions.N"},
		{"Mode(self, dim; n:x) t::mode # m.", "n has the type int and cannot be x"},
		{"Mode(self, dim;; n:1.5) t::mode # m.", "n has the type int and cannot be 1.5"},
		{"Mode(self, dim;; on:True) t::mode # m.", "on has the type bool and cannot be True"},
		{"Mode(self, dim;; list:[]) t::mode # m.", "list has the type Tensor[] and cannot be []"},
		{"Mode(self, *dim) t::mode # m.", "*dim: only a list of dimensions behind a tensor can stand for all"},
		{"Zeros(*size) t::zeros # m.", "*size: only a list of dimensions behind a tensor can stand for all"},
		{"Mode(self, dim...) t::mode # m.", "dim has the type int and cannot be variadic"},
		{"None(self, dim...) t::none # n.", "dim has the type int[]? and cannot be variadic"},
		{"Given(; weight) t::given # g.", "option weight has the default [], which is not supported"},
		{"Given(; layout) t::given # g.", "layout has the type Layout?, which is not supported"},
		{"Given(;; layout:1) t::given # g.", "layout has the type Layout?, which is not supported"},
		{"Loss(self; reduction) t::loss # l.", "the zero value of Reduction is the mean, 1"},
		{"Mode(self, dim; O{n}) t::mode # m.\nMode2(self, dim; O{n:3}) t::mode # m.\n@N n", "O has other fields, types or defaults than at line 1"},
		{"Mode(self, dim) t::mode # m.\n@N n", "l.txt:2: @N describes no option"},
		{"Mode(self, dim) t::mode # m.\n@N n\n@M m", "l.txt:3: @M describes no option"},
	}
	for _, test := range tests {
		l, err := parseList("l.txt", test.line)
		if err != nil {
			t.Errorf("%q: %v", test.line, err)
			continue
		}
		used, err := keepSchemas(l, "s.txt", schemas)
		if err != nil {
			used = "" // one test has no schema
		}
		if _, err = generate(l, "s.txt", used); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.line, err, test.want)
		}
	}
}

// A schema that no line of the list needs is an error.
func TestGenerate_UnusedSchema(t *testing.T) {
	l, err := parseList("l.txt", "Abs(self) t::abs # returns.")
	if err != nil {
		t.Fatal(err)
	}
	const schemas = "t::abs(Tensor self) -> Tensor\nt::exp(Tensor self) -> Tensor\n"
	if _, err = generate(l, "s.txt", schemas); err == nil || !strings.Contains(err.Error(), "s.txt: t::exp is not in the list") {
		t.Errorf("got %v, want t::exp named", err)
	}
}

func TestRun_Update(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.WriteFile(path(name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("list", "Exp(self) t::exp # returns.\nAbs(self) t::abs # returns.\nAbs2(self) t::abs # returns.\n")
	write("dump", "t::exp(Tensor self) -> Tensor\nt::log(Tensor self) -> Tensor\nt::abs(Tensor self) -> Tensor\n")
	if err := run(path("list"), path("schemas"), path("out"), path("dump")); err != nil {
		t.Fatal(err)
	}
	want := "t::abs(Tensor self) -> Tensor\nt::exp(Tensor self) -> Tensor\n"
	if got := read(t, path("schemas")); got != want {
		t.Errorf("schemas: got %q, want %q", got, want)
	}
	if got := read(t, path("out")); !strings.HasPrefix(got, "// Code generated by opgen; DO NOT EDIT.\n") {
		t.Errorf("first line of the output: got %.60q", got)
	}
	write("dump", "t::exp(Tensor self) -> Tensor\n")
	err := run(path("list"), path("schemas"), path("out"), path("dump"))
	if err == nil || !strings.Contains(err.Error(), "list:2: Abs: LibTorch has no operator t::abs") {
		t.Errorf("a missing operator: got %v", err)
	}
	if got := read(t, path("schemas")); got != want {
		t.Errorf("a failed update changed the schemas to %q", got)
	}
	if err := run(path("none"), path("schemas"), path("out"), ""); err == nil || !strings.HasPrefix(err.Error(), "opgen: ") {
		t.Errorf("a missing list: got %v", err)
	}
}
