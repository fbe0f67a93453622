package main

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

const root = "../.."

func TestMarks_OfTheTree(t *testing.T) {
	all, err := load(root)
	must.Check(t, err)
	if len(all) < 234 {
		t.Errorf("%d edges, want at least 234: an edge goes with its statement alone", len(all))
	}
	for _, e := range all {
		if !e.isGo() {
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), e.file, e.mutated(), 0); err != nil {
			t.Errorf("without %s: %v", e.name, err)
		}
	}
}

// In each body, the signs ‹ and › enclose the statements of edge a. A case with err has no such
// signs.
func TestMarked(t *testing.T) {
	for _, test := range []struct{ name, file, body, err string }{
		{"Trailing", "a.go", "‹x.Wait(e)› //edge:a TestA\ny()", ""},
		{"Above", "a.go", "//edge:a TestA checked\n\t‹x.Wait(e)› // here\ny()", ""},
		{"AboveOthers", "a.go", "//edge:a TestA\n//edge:b TestB gpu\n// Text.\n‹x.Wait(e)›", ""},
		{"If", "a.go", "‹if x := y(); x { //edge:a TestA\nz()\n} else {\nz()\n}›\ny()", ""},
		{"InsideIf", "a.go", "if x {\n‹z()› //edge:a TestA\n}", ""},
		{"Defer", "a.go", "‹defer func() { //edge:a TestA\n<-c\n}()›", ""},
		{"Closure", "a.go", "x.AtEnd(func() {\n‹y()› //edge:a TestA\n})", ""},
		{"SelectCase", "a.go", "select {\n‹case <-c: //edge:a TestA\nx()›\ndefault:\n}", ""},
		{"SwitchCase", "a.go", "switch x {\n‹case 1: //edge:a TestA\nx()›\n}", ""},
		{"Element", "a.go", "x := []T{\n‹{1},› //edge:a TestA\n{2},\n}", ""},
		{"Field", "a.go", "x := T{\n‹b: 1,› //edge:a TestA\n}", ""},
		{"Also", "a.go", "‹mu.Lock()› //edge:a TestA\n‹defer mu.Unlock()› //edge:a also", ""},
		{"Quoted", "a.go", "‹x(`//edge:b`)› //edge:a TestA", ""},
		{"AlsoAlone", "a.go", "mu.Lock() //edge:a also", "no statement before"},
		{"NoTest", "a.go", "x() //edge:a", `a.go:3: "//edge:a" is not`},
		{"Blank", "a.go", "x() // edge:a TestA", "is not"},
		{"OtherDevice", "a.go", "x() //edge:a TestA GPU", "is not"},
		{"OtherName", "a.go", "x() //edge:A TestA", "is not"},
		{"Nothing", "a.go", "//edge:a TestA\n\nx()", "no statement begins"},
		{"MiddleOfOne", "a.go", "x(1,\n2) //edge:a TestA", "no statement begins"},
		{"Trailing", "a.cc", "a();\n‹wait(x, *y);›  //edge:a Suite.Name gpu\nb();", ""},
		{"Above", "a.cc", "  //edge:a TestA\n  // Text.\n  ‹wait(x);›  // here\n", ""},
		{"Lambda", "a.cc", "‹auto f = [&](int i) {  //edge:a TestA\n  if (i) return; b(); };›\nf();", ""},
		{"Braces", "a.cc", "‹kept.push_back({a, std::pair{1, 2}});›  //edge:a TestA\nb();", ""},
		{"If", "a.cc", "‹if constexpr (a(b)) c();›  //edge:a TestA\nd();", ""},
		{"IfAttribute", "a.cc", "‹if (a) [[unlikely]] c();›  //edge:a TestA\nd();", ""},
		{"IfElse", "a.cc", "‹if (a) {  //edge:a TestA\n  b();\n} else if (c) d(); else { e(); }›\nf();", ""},
		{"InsideElse", "a.cc", "if (a) { b(); } else {\n  ‹c();›  //edge:a TestA\n}", ""},
		{"For", "a.cc", "‹for (int i = 0; i < n; ++i) wait(x[i]);›  //edge:a TestA\nb();", ""},
		{"Do", "a.cc", "‹do { a(); } while (b);›  //edge:a TestA\nc();", ""},
		{"Try", "a.cc", "‹try {  //edge:a TestA\n  a();\n} catch (E& e) { b(); } catch (...) {}›\nc();", ""},
		{"String", "a.cc", `‹a("\";", ';', '\'', "{");›  //edge:a TestA` + "\nb();", ""},
		{"RawString", "a.cc", "‹a(R\"x(\";)\" {//edge:b)x\", 1'000);›  //edge:a TestA\nb();", ""},
		{"Comment", "a.cc", "‹a(/* ; } */ b,  //edge:a TestA\n  // it's ;\n  c);›\nd();", ""},
		{"Preprocessor", "a.cc", "#define X it's \\\n  { ;\n‹a();›  //edge:a TestA\n", ""},
		{"BodyWithoutItsIf", "a.cc", "if (a)\n  b();  //edge:a TestA\nc();", "no statement begins"},
		{"MiddleOfOne", "a.cc", "a(b,\n  c);  //edge:a TestA", "no statement begins"},
		{"NoEnd", "a.cc", "a(b  //edge:a TestA", "does not end"},
	} {
		t.Run(test.file+"/"+test.name, func(t *testing.T) {
			before, after, function := "package p\nfunc (t *T[K]) f() {\n", "\n}\n", "T[K].f"
			if test.file == "a.cc" {
				before, after, function = "namespace n {\nvoid S::f(int x) const {\n", "\n}\n}\n", "S::f"
			}
			var want []string
			for _, part := range strings.Split(test.body, "‹")[1:] {
				statement, _, _ := strings.Cut(part, "›")
				want = append(want, statement)
			}
			text := before + strings.NewReplacer("‹", "", "›", "").Replace(test.body) + after
			all, err := marked(test.file, text)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			must.Do(t, err)
			var got []string
			for _, s := range all[0].statements {
				got = append(got, text[s.start:s.end])
			}
			if !slices.Equal(got, want) || all[0].name != "a" || all[0].function != function {
				t.Errorf("edge %s in %s is %q, want %q", all[0].name, all[0].function, got, want)
			}
		})
	}
}

func TestTests_Find(t *testing.T) {
	tests := tests{}
	for _, file := range []string{"a/x_test.go", "b/x_test.go"} {
		tests.add(file, "func TestX(t *testing.T) {}\n")
	}
	tests.add("b/y_test.go", "func TestY(t *testing.T) {}\n")
	tests.add("c/z_test.cc", "TEST_F(Suite, Name) {}\n")
	for _, test := range []struct {
		file, name string
		device     device
		want       string // or a part of the error
	}{
		{"a/x.go", "TestX", onCPU, "a.TestX"},
		{"a/x.go", "TestY", onCPU, "b.TestY"},
		{"c/x.cc", "TestY", onCPU, "b.TestY"},
		{"c/x.cc", "TestX", onCPU, "a and b"},
		{"c/x.cc", "b.TestX", onCPU, "b.TestX"},
		{"c/x.cc", "c.TestX", onCPU, "no test"},
		{"a/x.go", "TestZ", onCPU, "no test"},
		{"c/x.cc", "Suite.Name", onGPU, ".Suite.Name"},
		{"c/x.cc", "Suite.Name", onCPU, "a bundle alone"},
		{"c/x.cc", "Suite.Other", onGPU, "no test"},
	} {
		e := edge{file: test.file, test: test.name, device: test.device}
		err := tests.find(&e)
		if got := e.folder + "." + e.test; err == nil && got != test.want || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s in %s: got %s, %v, want %s", test.name, test.file, got, err, test.want)
		}
	}
}

func TestRepaired(t *testing.T) {
	const mutant = "package p\n\nimport \"fmt\"\n\nfunc f() {\n\tfor h := range g() {\n\t\t\n\t}\n}\n"
	at := strings.Index(mutant, "\n\t}")
	for _, test := range []struct{ compiler, want string }{
		{"./a.go:6:6: declared and not used: h\n", strings.Replace(mutant, "\t\t\n", "\t\t_ = h; \n", 1)},
		{"./a.go:3:8: \"fmt\" imported and not used\n", strings.Replace(mutant, `"fmt"`, `_ "fmt"`, 1)},
		{"./a.go:6:13: undefined: g\n", mutant},
	} {
		if got := repaired(mutant, at, test.compiler); got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", test.compiler, got, test.want)
		}
	}
}
