package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate_IsCurrent(t *testing.T) {
	const include = "../../csrc/include/"
	for folder, headers := range map[string][]string{
		"../../cgotorch/internal/ct": {include + "cgotorch.h"},
		"../ctd":                     {include + "cgotorch_decode.h", include + "cgotorch_inflate.h"},
	} {
		files, err := generate(filepath.Base(folder), headers)
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range files {
			if want, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(got) != string(want) {
				t.Errorf("%s/%s is not that of the headers (%v): run make generate", folder, name, err)
			}
		}
	}
}

func TestGenerate_Unknown(t *testing.T) {
	for declaration, text := range map[string]string{
		"int32_t ct_f(FILE* file) CT_NOEXCEPT;":    `no type "FILE*"`,
		"extern int ct_variable;":                  "no declaration that ctgen knows",
		"typedef struct ct_a { FILE* b; } ct_a;":   "ct_a: ctgen knows no type",
		"void ct_g(int32_t (*run)(void), long l);": "is no field and no parameter",
		"enum { CT_A, CT_B = 1 };":                 "CT_A has no value",
	} {
		header := filepath.Join(t.TempDir(), "header.h")
		whole := "#pragma GCC visibility push(default)\n" + declaration + "\n#pragma GCC visibility pop\n"
		if err := os.WriteFile(header, []byte(whole), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := generate("ct", []string{header}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error that says %q", declaration, err, text)
		}
	}
	if _, err := generate("ct", []string{"main.go"}); err == nil {
		t.Error("a text that is no header is taken")
	}
}
