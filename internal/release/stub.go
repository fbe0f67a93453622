package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// newest are the newest versions of symbols that the libraries may need. glibc's is that of
// LibTorch itself; those of libstdc++ are of gcc 8.
var newest = map[string]string{"GLIBC": "2.28", "GLIBCXX": "3.4.25", "CXXABI": "1.3.11", "GCC": "8.0.0"}

// tooNew tells whether a version of symbols, such as GLIBC_2.34, is newer than `newest` allows. A
// version of another form, such as GLIBC_PRIVATE, is too new as well.
func tooNew(version string) bool {
	family, number, _ := strings.Cut(version, "_")
	limit, known := newest[family]
	return !known || compare(number, limit) > 0
}

// compare compares two versions, such as 3.4.9 and 3.4.25.
func compare(a, b string) int {
	number := func(text string) []int {
		var all []int
		for _, part := range strings.Split(text, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				n = 1 << 30
			}
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(number(a), number(b))
}

// stub writes a library with the symbols of another one that are not too new. The linker takes the
// newest version of each symbol that such a library has.
func (t *toolchain) stub(real, folder string) (string, error) {
	text, soname, versions, err := stubSource(real)
	if err != nil {
		return "", fmt.Errorf("%s: %w", real, err)
	}
	source, script := filepath.Join(folder, soname+".s"), filepath.Join(folder, soname+".map")
	if err := write(source, []byte(text), 0o666); err != nil {
		return "", err
	}
	var scripts strings.Builder
	for _, version := range versions {
		fmt.Fprintf(&scripts, "%s {};\n", version)
	}
	if err := write(script, []byte(scripts.String()), 0o666); err != nil {
		return "", err
	}
	to := filepath.Join(folder, soname)
	return to, run(folder, t.cc, "-shared", "-nostdlib", "-o", to, source, "-Wl,-soname,"+soname, "-Wl,--version-script="+script)
}

// stubSource returns the assembly source of a stub, its name, and the versions that it defines.
func stubSource(real string) (text, soname string, versions []string, err error) {
	file, err := elf.Open(real)
	if err != nil {
		return "", "", nil, err
	}
	defer file.Close()
	names, err := file.DynString(elf.DT_SONAME)
	if err != nil {
		return "", "", nil, err
	}
	if len(names) != 1 {
		return "", "", nil, errors.New("it has no SONAME")
	}
	best, err := newestSymbols(file)
	if err != nil {
		return "", "", nil, err
	}
	used := map[string]bool{}
	var out strings.Builder
	for n, name := range sortedKeys(best) {
		symbol := best[name]
		section, kind := ".text", "function"
		switch elf.ST_TYPE(symbol.Info) {
		case elf.STT_OBJECT:
			section, kind = ".data", "object"
		case elf.STT_TLS:
			section, kind = `.tdata,"awT",%progbits`, "tls_object"
		}
		used[symbol.Version] = true
		fmt.Fprintf(&out, ".section %s\n.globl s%d\n.type s%d,%%%s\ns%d: .quad 0\n.size s%d,8\n.symver s%d,%s@@%s,remove\n",
			section, n, n, kind, n, n, n, name, symbol.Version)
	}
	return out.String(), names[0], sortedKeys(used), nil
}

// newestSymbols returns the newest symbol of each name that is not too new.
func newestSymbols(file *elf.File) (map[string]elf.Symbol, error) {
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	best := map[string]elf.Symbol{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS || s.Version == "" || tooNew(s.Version) {
			continue
		}
		if old, ok := best[s.Name]; !ok || compare(number(old.Version), number(s.Version)) < 0 {
			best[s.Name] = s
		}
	}
	return best, nil
}

// number returns the number of a version of symbols.
func number(version string) string {
	_, n, _ := strings.Cut(version, "_")
	return n
}

// sortedKeys returns the keys of a map in their order.
func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
