package main

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/must"
)

func TestLock(t *testing.T) {
	all, err := parseLock(lockText)
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for _, p := range all {
		names.WriteString(p.name + "/" + p.arch + " ")
		if p.file() == "" || strings.Contains(p.file(), "%") {
			t.Errorf("%s: the name of the file is %q", p.name, p.file())
		}
	}
	for _, want := range []string{"zig/any", "nasm/any", "libstdc++/amd64", "libstdc++/arm64", "libpng/any", "libpng-patches/any"} {
		if !strings.Contains(names.String(), want+" ") {
			t.Errorf("the lock has no %s", want)
		}
	}
	for _, c := range codecs {
		version := strings.TrimSuffix(strings.Fields(c.about)[1], ":")
		if i := slices.IndexFunc(all, func(p part) bool { return p.name == c.name }); i < 0 || !strings.Contains(all[i].file(), version) {
			t.Errorf("the list of contents says %s, and the lock has another version", c.about)
		}
	}
	for _, text := range []string{"zig any 12 tool http://x/y", "zig any " + strings.Repeat("0", 64) + " tool", "zig any " + strings.Repeat("0", 64) + " tool y"} {
		if _, err := parseLock("# first\n" + text); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: got %v, want an error that names line 2", text, err)
		}
	}
}

func TestTooNew(t *testing.T) {
	for version, want := range map[string]bool{
		"GLIBC_2.2.5": false, "GLIBC_2.28": false, "GLIBC_2.29": true, "GLIBC_2.34": true, "GLIBC_PRIVATE": true, "GLIBC_ABI_DT_RELR": true,
		"GLIBCXX_3.4": false, "GLIBCXX_3.4.9": false, "GLIBCXX_3.4.25": false, "GLIBCXX_3.4.26": true,
		"CXXABI_1.3.11": false, "CXXABI_1.3.13": true, "CXXABI_TM_1": true, "GCC_3.0": false, "LIBX_1": true,
	} {
		if got := tooNew(version); got != want {
			t.Errorf("tooNew(%s) = %v", version, got)
		}
	}
}

// The libraries of a clone are linked with those of this machine, so they are no release.
func TestCheck_RefusesTheClonesOwn(t *testing.T) {
	path := filepath.Join("..", "..", "build", "lib", "libcgotorch_decode.so")
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no build/lib: run make loader")
	}
	err := check(path, nil)
	if err == nil || !strings.Contains(err.Error(), "libjpeg") || !strings.Contains(err.Error(), "GLIBC_2.") {
		t.Errorf("got %v, want an error with libjpeg and versions of glibc", err)
	}
	if err := check(os.Args[0], nil); err == nil || !strings.Contains(err.Error(), "none of the libraries") {
		t.Errorf("a program: got %v", err)
	}
}

func TestWrongSymbol(t *testing.T) {
	ours, torch := regexp.MustCompile("^ctd_"), map[string]bool{"_ZN3c105ErrorE": true}
	undefined := func(name, version string, bind elf.SymBind) elf.Symbol {
		return elf.Symbol{Name: name, Version: version, Info: elf.ST_INFO(bind, elf.STT_FUNC)}
	}
	for _, c := range []struct {
		symbol elf.Symbol
		want   string
	}{
		{elf.Symbol{Name: "ctd_probe", Section: 1}, ""},
		{elf.Symbol{Name: "png_read", Section: 1}, "exports png_read"},
		{undefined("exp", "GLIBC_2.2.5", elf.STB_GLOBAL), ""},
		{undefined("exp", "GLIBC_2.29", elf.STB_GLOBAL), "exp of GLIBC_2.29"},
		{undefined("__gmon_start__", "", elf.STB_WEAK), ""},
		{undefined("_ZN3c105ErrorE", "", elf.STB_GLOBAL), ""},
		{undefined("_ZN3c105OtherE", "", elf.STB_GLOBAL), "LibTorch has no"},
		{undefined("_ZSt28__throw_bad_array_new_lengthv", "", elf.STB_GLOBAL), "gcc 8"},
		{undefined("_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv", "", elf.STB_GLOBAL), "gcc 8"},
	} {
		if got := wrongSymbol(c.symbol, ours, torch); got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
			t.Errorf("%s: got %q, want %q", c.symbol.Name, got, c.want)
		}
	}
}

func TestPack_Twice(t *testing.T) {
	sums := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		folder := filepath.Join(t.TempDir(), name)
		for file, text := range map[string]string{"libcgotorch.so": "elf", "CONTENTS.txt": "list", "licenses/LICENSE": "free"} {
			if err := write(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		to := filepath.Join(t.TempDir(), name+".tar.gz")
		if err := pack(folder, to); err != nil {
			t.Fatal(err)
		}
		sums[must.Get(install.Hash(to))(t)] = true
	}
	if len(sums) != 1 {
		t.Errorf("equal files give %d archives", len(sums))
	}
}
