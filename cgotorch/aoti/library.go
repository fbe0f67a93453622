package aoti

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// These are the functions by which a library is called. A library that lacks one of LibTorch's
// release was compiled by an older PyTorch.
var called = []string{
	"AOTInductorModelContainerCreateWithDevice", "AOTInductorModelContainerDelete",
	"AOTInductorModelContainerExtractConstantsMap", "AOTInductorModelContainerFreeInactiveConstantBuffer",
	"AOTInductorModelContainerGetCallSpec", "AOTInductorModelContainerGetConstantDtype",
	"AOTInductorModelContainerGetConstantFromFolded", "AOTInductorModelContainerGetConstantName",
	"AOTInductorModelContainerGetConstantOriginalFQN", "AOTInductorModelContainerGetConstantsBlobSize",
	"AOTInductorModelContainerGetNumConstants", "AOTInductorModelContainerGetNumInputs",
	"AOTInductorModelContainerGetNumOutputs", "AOTInductorModelContainerRun",
	"AOTInductorModelContainerRunConstantFolding", "AOTInductorModelContainerRunSingleThreaded",
	"AOTInductorModelContainerSwapConstantBuffer", "AOTInductorModelContainerUpdateConstantBuffer",
	"AOTInductorModelContainerUpdateInactiveConstantBuffer",
	"AOTInductorModelContainerUpdateUserManagedConstantBuffer", "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs",
	"AOTInductorModelUpdateConstantsFromBlob",
}

// known are further functions. A library with other ones, or with one that LibTorch's release does
// not have yet, was compiled by a newer PyTorch.
var known = []string{
	"AOTInductorModelContainerCreate", "AOTInductorModelContainerGetConstantDataSize", "AOTInductorModelContainerGetConstantType",
	"AOTInductorModelContainerGetInputName", "AOTInductorModelContainerGetOutputName", "AOTInductorModelUpdateConstantsMap",
}

// since has the minor number of the first PyTorch 2 that has a function. PyTorch 2.9 has all other
// functions.
var since = map[string]int{
	"AOTInductorModelContainerGetConstantsBlobSize": 10, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs": 10,
	"AOTInductorModelUpdateConstantsFromBlob": 10,

	"AOTInductorModelContainerExtractConstantsMapEntries": 13, "AOTInductorModelContainerUpdateConstantBufferFromCpu": 13,
	"AOTInductorModelContainerUpdateConstantBufferFromCpuPairs": 13, "AOTInductorModelContainerUpdateConstantBufferPairs": 13,
	"AOTInductorModelContainerUpdateInactiveConstantBufferPairs": 13, "AOTInductorModelUpdateConstantsMapV2": 13,

	"AOTInductorModelContainerCreateWithExternalConstants": 14, "AOTInductorModelContainerDidCallLoadConstants": 14,

	"AOTInductorModelContainerGetStreamAffinityModelIndexForTesting": 15, "AOTInductorModelContainerSetUseStreamAffinity": 15,
}

// foreign compares the functions `has` of a library with those of the release `of`, such as 2.11.
// It returns a function by which the library is of another release. newer says that the library has
// the function and should not have it. name is empty if the library may be of the same release.
func foreign(has map[string]bool, of string) (name string, newer bool) {
	minor, err := strconv.Atoi(strings.TrimPrefix(of, "2."))
	if err != nil {
		return "", false
	}
	for _, name := range called {
		if !has[name] && since[name] <= minor {
			return name, false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if first, later := since[name]; later && first > minor || !later && !slices.Contains(called, name) && !slices.Contains(known, name) {
			return name, true
		}
	}
	return "", false
}

// A library is what the ELF file of a package tells about itself.
type library struct {
	draws bool // it uses functions that draw random numbers
	// `wrapper` is the offset of an entry that names libtorch.so, and `other` is the value that names
	// another library. wrapper is 0 if there is no such entry.
	wrapper int64
	other   uint64
}

var drawing = regexp.MustCompile(`^aoti_torch_.*(rand|bernoulli|normal|exponential|geometric|cauchy|multinomial|philox|dropout)`)

// inspect looks into the shared library, which is not opened. It fails if another release of
// PyTorch than that of `torch` has compiled the library, or for another processor.
func (m *modelFiles) inspect(torch string) (*library, error) {
	section, err := m.section(m.library)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(section)
	if err != nil {
		return nil, m.archive.Bad("%.200s: %w", m.library, err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if want := machines[runtime.GOARCH]; file.Machine != want || file.Type != elf.ET_DYN || file.Class != elf.ELFCLASS64 {
		return nil, m.archive.Refuse("its library %.200s is %v of %v, and this program needs a shared library of %v", m.library, file.Type, file.Machine, want)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, m.archive.Bad("%.200s: %w", m.library, err)
	}
	l := &library{}
	has := map[string]bool{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			l.draws = l.draws || drawing.MatchString(s.Name)
		} else if strings.HasPrefix(s.Name, "AOTInductorModelContainer") || strings.HasPrefix(s.Name, "AOTInductorModelUpdate") {
			has[s.Name] = true
		}
	}
	of := release(torch)
	switch name, newer := foreign(has, of); {
	case newer:
		return nil, m.archive.Refuse("its library has a function %.100s, so a PyTorch newer than %s has compiled it: compile it with torch %s", name, of, of)
	case name != "":
		return nil, m.archive.Refuse("its library has no function %s, so a PyTorch older than %s has compiled it: compile it with torch %s", name, of, of)
	}
	return l, m.findWrapper(l, file)
}

// findWrapper finds the entry for libtorch.so among the libraries that the library needs.
// libtorch.so has no functions. It only brings the CPU and the CUDA library of LibTorch, and so
// would load CUDA on a machine that has none. The library names the ones that it needs itself, so
// the entry may name one of these.
func (m *modelFiles) findWrapper(l *library, file *elf.File) error {
	table := file.SectionByType(elf.SHT_DYNAMIC)
	if table == nil || table.FileSize > 1<<20 || int(table.Link) >= len(file.Sections) {
		return m.archive.Bad("%.200s has no table of needed libraries", m.library)
	}
	entries, err := table.Data()
	if err != nil {
		return m.archive.Bad("%.200s: %w", m.library, err)
	}
	names, err := file.Sections[table.Link].Data()
	if err != nil {
		return m.archive.Bad("%.200s: %w", m.library, err)
	}
	for at := 0; at+16 <= len(entries); at += 16 {
		if elf.DynTag(binary.LittleEndian.Uint64(entries[at:])) != elf.DT_NEEDED {
			continue
		}
		value := binary.LittleEndian.Uint64(entries[at+8:])
		if value >= uint64(len(names)) {
			return m.archive.Bad("%.200s needs a library without a name", m.library)
		}
		name, _, _ := bytes.Cut(names[value:], []byte{0})
		if string(name) == "libtorch.so" {
			l.wrapper = int64(table.Offset) + int64(at) + 8
		} else {
			l.other = value
		}
	}
	if l.other == 0 {
		l.wrapper = 0
	}
	return nil
}

// unwrap changes the extracted library so that it does not need libtorch.so.
func (l *library) unwrap(path string) error {
	if l.wrapper == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("aoti: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, l.other), l.wrapper); err != nil && err != io.EOF {
		return fmt.Errorf("aoti: %w", err)
	}
	return nil
}
