package main

import (
	"os"
	"strings"
	"testing"
)

func TestGenerate_IsCurrent(t *testing.T) {
	header, err := os.ReadFile("../../../csrc/include/cgotorch.h")
	if err != nil {
		t.Fatal(err)
	}
	got, err := generate(string(header))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../ct/ct_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("cgotorch/internal/ct/ct_gen.go is not that of the header: run make generate")
	}
}

func TestGenerate_Unknown(t *testing.T) {
	for declaration, text := range map[string]string{
		"int32_t ct_f(FILE* file) CT_NOEXCEPT;":    `no type "FILE*"`,
		"extern int ct_variable;":                  "no declaration that ctgen knows",
		"typedef struct ct_a { FILE* b; } ct_a;":   `ct_a.b`,
		"void ct_g(int32_t (*run)(void), long l);": "ct_g has a parameter",
	} {
		_, err := generate("#pragma GCC visibility push(default)\n" + declaration + "\n#pragma GCC visibility pop\n")
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error that says %q", declaration, err, text)
		}
	}
	if _, err := generate("no header"); err == nil {
		t.Error("a text that is no header is taken")
	}
}
