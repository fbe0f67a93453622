package main

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A rule says what one of the libraries may export, and which libraries of LibTorch it needs.
type rule struct {
	name    string
	exports string // a regular expression
	torch   []string
}

var rules = []rule{
	{"libcgotorch.so", `^ct_`, []string{"libc10.so", "libtorch_cpu.so"}},
	{"libcgotorch_cuda.so", `^ct_`, nil},
	{"libcgotorch_decode.so", `^ctd_`, nil},
	{"libcgotorch_nocuda.so", `^(_ZN2at4cuda|aoti_torch_|torch_c10_cuda_)`, nil},
	{"libcgotorch_nopython.so", `^$`, nil},
}

// system are the libraries of the system that a library may need.
var system = []string{"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
	"libstdc++.so.6", "libgcc_s.so.1"}

// check fails if a library would not open on an old system, or shows more than its own functions.
// `torch` has the names of what LibTorch and CUDA export; without it they are not compared.
func check(path string, torch map[string]bool) error {
	i := slices.IndexFunc(rules, func(r rule) bool { return r.name == filepath.Base(path) })
	if i < 0 {
		return fmt.Errorf("%s is none of the libraries", path)
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer file.Close()
	var wrong []string
	needed, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, library := range needed {
		if !slices.Contains(system, library) && !slices.Contains(rules[i].torch, library) {
			wrong = append(wrong, "it needs "+library)
		}
	}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		if paths, _ := file.DynString(tag); len(paths) > 0 {
			wrong = append(wrong, "it searches "+strings.Join(paths, ":"))
		}
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	exports := regexp.MustCompile(rules[i].exports)
	for _, s := range symbols {
		if text := wrongSymbol(s, exports, torch); text != "" {
			wrong = append(wrong, text)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %s", path, strings.Join(wrong, "; "))
	}
	return nil
}

// wrongSymbol returns what is wrong with a symbol, or "".
func wrongSymbol(s elf.Symbol, exports *regexp.Regexp, torch map[string]bool) string {
	switch {
	case s.Section != elf.SHN_UNDEF:
		if !exports.MatchString(s.Name) {
			return "it exports " + s.Name
		}
	case s.Version != "":
		if tooNew(s.Version) {
			return "it wants " + s.Name + " of " + s.Version
		}
	case elf.ST_BIND(s.Info) == elf.STB_WEAK:
	case ofStd.MatchString(s.Name):
		return "no library of gcc 8 has " + s.Name
	case torch != nil && !torch[s.Name]:
		return "LibTorch has no " + s.Name
	}
	return ""
}

// ofStd matches the names of functions and data of libstdc++. Templates of LibTorch that have such
// types as arguments do not match.
var ofStd = regexp.MustCompile(`^_Z(N?K?R?St|NKSt|NKRSt|T[ISV]N?St|GVN?St)|^__cxa_|^__gxx_`)

// exportsOf returns the names that the libraries in a list export.
func exportsOf(paths []string) (map[string]bool, error) {
	all := map[string]bool{}
	for _, path := range paths {
		file, err := elf.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		symbols, err := file.DynamicSymbols()
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF {
				all[s.Name] = true
			}
		}
	}
	return all, nil
}
