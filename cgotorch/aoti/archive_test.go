package aoti

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// An entry is a file of an archive.
type entry struct{ name, text string }

func archiveOf(t testing.TB, method uint16, entries ...entry) []byte {
	t.Helper()
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for _, e := range entries {
		f, err := w.CreateHeader(&zip.FileHeader{Name: e.name, Method: method})
		if err == nil {
			_, err = f.Write([]byte(e.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

const at = "name/data/aotinductor/model/"

// packageOf returns the entries of a package whose library is `library`.
func packageOf(metadata, library string) []entry {
	return []entry{{"name/archive_format", "pt2"}, {at + "a.wrapper.so", library}, {at + "a.wrapper.cpp", source}, {at + "a.wrapper_metadata.json", metadata}}
}

func TestLoad_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	library, err := os.ReadFile(regexp.MustCompile(`/\S*/libcgotorch\.so`).FindString(string(maps)))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	const cpu = `{"AOTI_DEVICE_KEY": "cpu"}`
	for _, c := range []struct {
		name    string
		entries []entry
		method  uint16
		model   string
		kind    error
		text    string
	}{
		{"empty", nil, zip.Store, "", ErrFormat, "no entry data/aotinductor/MODEL/"},
		{"exported", []entry{{"name/models/model.json", "{}"}}, zip.Store, "", ErrUnsupported, "load it with package pt2"},
		{"two models", []entry{{"n/data/aotinductor/b/x", ""}, {"n/data/aotinductor/a/x", ""}}, zip.Store, "", nil, `Options.Model: ["a" "b"]`},
		{"another model", packageOf(cpu, ""), zip.Store, "other", nil, `no model "other"; it holds ["model"]`},
		{"twice", append(packageOf(cpu, ""), entry{at + "a.wrapper.so", ""}), zip.Store, "", ErrFormat, "is there twice"},
		{"source only", []entry{{at + "a.wrapper.cpp", source}, {at + "a.o", ""}}, zip.Store, "", ErrUnsupported, "starts no compiler"},
		{"no library", []entry{{at + "a.json", ""}}, zip.Store, "", ErrFormat, "has 0 compiled libraries"},
		{"two libraries", append(packageOf(cpu, ""), entry{at + "b.wrapper.so", ""}), zip.Store, "", ErrFormat, "has 2 compiled libraries"},
		{"no metadata", packageOf(cpu, "")[:3], zip.Store, "", ErrFormat, "a.wrapper_metadata.json is missing"},
		{"bad metadata", packageOf(`{"a": 1}`, ""), zip.Store, "", ErrFormat, "a.wrapper_metadata.json"},
		{"no source", []entry{{at + "a.so", ""}, {at + "a_metadata.json", cpu}}, zip.Store, "", ErrUnsupported, "it lacks a.cpp"},
		{"outside", append(packageOf(cpu, ""), entry{at + "../../../../x.so", ""}), zip.Store, "", ErrFormat, "leaves its folder"},
		{"compressed", packageOf(cpu, "")[:4], zip.Deflate, "", ErrUnsupported, "is compressed"},
		{"no device", packageOf(`{}`, ""), zip.Store, "", ErrFormat, "name no device"},
		{"another device", packageOf(`{"AOTI_DEVICE_KEY": "cuda"}`, ""), zip.Store, "", ErrUnsupported, `compiled for the device "cuda", and this is "cpu"`},
		{"another PyTorch", packageOf(`{"AOTI_DEVICE_KEY": "cpu", "torch_version": "2.1.2+cu121"}`, ""), zip.Store, "", ErrUnsupported, "PyTorch 2.1.2+cu121 has compiled it"},
		{"no ELF", packageOf(cpu, strings.Repeat("MZ", 100)), zip.Store, "", ErrFormat, "a.wrapper.so: bad magic number"},
		{"cut", packageOf(cpu, string(library[:len(library)/2])), zip.Store, "", ErrFormat, "a.wrapper.so"},
		{"another library", packageOf(cpu, string(library)), zip.Store, "", ErrUnsupported, " has compiled it: compile it with torch 2."},
		{"another processor", packageOf(cpu, string(self[:18])+"\xb7"+string(self[19:])), zip.Store, "", ErrUnsupported, "EM_AARCH64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			data := archiveOf(t, c.method, c.entries...)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				p, err := LoadFrom(x, bytes.NewReader(data), int64(len(data)), "file.pt2", Options{Model: c.model})
				if err == nil {
					p.Close()
					t.Fatal("no error")
				}
				if c.kind != nil && !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "aoti: file.pt2: ") || len(err.Error()) > 400 {
					t.Errorf("got %v, want %v with %q", err, c.kind, c.text)
				}
			})
			if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
				t.Errorf("left in the temporary folder: %v, %v", left, err)
			}
		})
	}
}

// A library is taken with the functions of LibTorch's own release alone.
func TestForeign(t *testing.T) {
	of := func(minor int) map[string]bool {
		has := make(map[string]bool)
		for _, names := range [][]string{called, known, slices.Collect(maps.Keys(since))} {
			for _, name := range names {
				if since[name] <= minor {
					has[name] = true
				}
			}
		}
		return has
	}
	later := of(15)
	later["AOTInductorModelContainerOfTomorrow"] = true
	for _, c := range []struct {
		has   map[string]bool
		here  int
		name  string
		newer bool
	}{
		{of(9), 9, "", false}, {of(10), 10, "", false}, {of(11), 11, "", false}, {of(13), 13, "", false}, {of(15), 15, "", false},
		{of(9), 11, "AOTInductorModelContainerGetConstantsBlobSize", false},
		{of(10), 9, "AOTInductorModelContainerGetConstantsBlobSize", true},
		{of(13), 11, "AOTInductorModelContainerExtractConstantsMapEntries", true},
		{of(14), 13, "AOTInductorModelContainerCreateWithExternalConstants", true},
		{of(15), 14, "AOTInductorModelContainerGetStreamAffinityModelIndexForTesting", true},
		{later, 15, "AOTInductorModelContainerOfTomorrow", true},
	} {
		if name, newer := foreign(c.has, fmt.Sprintf("2.%d", c.here)); name != c.name || newer != c.newer {
			t.Errorf("%d functions with LibTorch 2.%d: %q, newer %v, want %q, newer %v", len(c.has), c.here, name, newer, c.name, c.newer)
		}
	}
}

func TestLoad_NoArchive(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		for _, text := range []string{"", "PK", strings.Repeat("x", 1000)} {
			if _, err := LoadFrom(x, strings.NewReader(text), int64(len(text)), "file", Options{}); !errors.Is(err, ErrFormat) {
				t.Errorf("%.10q: got %v, want %v", text, err, ErrFormat)
			}
		}
		if _, err := Load(x, t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("a folder: got %v", err)
		}
		if _, err := Load(x, "missing", Options{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a missing file: got %v", err)
		}
	})
}

func TestMachine_Compare(t *testing.T) {
	old := features("processor: 0\nflags\t\t: fpu avx2 fma\nflags: avx512f\n")
	modern := features("flags: avx2 fma avx512f avx512dq avx512vl avx512bw avx512_vnni")
	here := machine{torch: "2.11.0+cpu", platform: "linux", processor: "x86_64", features: old, device: "cpu"}
	with := func(change func(*machine)) machine { m := here; change(&m); return m }
	gpu := with(func(m *machine) { m.device, m.capability = "cuda", 90 })
	for _, c := range []struct {
		name     string
		here     machine
		metadata map[string]string
		file     string
		text     string
	}{
		{"equal", here, map[string]string{"AOTI_PLATFORM": "linux", "AOTI_MACHINE": "x86_64", "AOTI_CPU_ISA": "AVX2", "TORCH_VERSION": "2.11.1"}, "", ""},
		{"no vector instructions", here, map[string]string{"AOTI_CPU_ISA": "INVALID_VEC_ISA"}, "", ""},
		{"platform", here, map[string]string{"AOTI_PLATFORM": "win32"}, "", `platform "win32"`},
		{"processor", here, map[string]string{"AOTI_MACHINE": "aarch64"}, "", `processor "aarch64"`},
		{"AVX512 on AVX2", here, map[string]string{"AOTI_CPU_ISA": "AVX512"}, "", "this one has no avx512f"},
		{"AVX512", with(func(m *machine) { m.features = modern }), map[string]string{"AOTI_CPU_ISA": "AVX512 AVX512_VNNI"}, "", ""},
		{"AMX", with(func(m *machine) { m.features = modern }), map[string]string{"AOTI_CPU_ISA": "AVX512 AVX512_VNNI AMX_TILE"}, "", "this one has no amx_tile"},
		{"unknown features", with(func(m *machine) { m.features = nil }), map[string]string{"AOTI_CPU_ISA": "AVX512"}, "", ""},
		{"newer PyTorch", here, map[string]string{"torch_version": "2.12.0"}, "", "PyTorch 2.12.0 has compiled it, and this program has LibTorch 2.11.0"},
		{"another device", here, map[string]string{"AOTI_DEVICE_KEY": "xpu"}, "", `device "xpu"`},
		{"equal GPU", gpu, map[string]string{"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90"}, "", ""},
		{"older GPU", gpu, map[string]string{"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "80"}, "k.cubin", "compute capability 8.0, and this one has 9.0"},
		{"older GPU, kernels of several kinds", gpu, map[string]string{"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "80"}, "k.fatbin", ""},
		{"newer GPU", gpu, map[string]string{"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "100"}, "k.fatbin", "compute capability 10.0"},
		{"AMD", gpu, map[string]string{"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "gfx942"}, "", `"gfx942"`},
	} {
		if c.metadata["AOTI_DEVICE_KEY"] == "" {
			c.metadata["AOTI_DEVICE_KEY"] = "cpu"
		}
		opened := &torchzip.Archive{Kind: torchzip.Kind{Package: "aoti", Format: ErrFormat, Unsupported: ErrUnsupported}, Name: "file"}
		m := &modelFiles{archive: &archive{opened}, metadata: c.metadata, entries: map[string]string{c.file: "entry"}}
		err := m.compare(c.here)
		if c.text == "" && err != nil || c.text != "" && (!errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.text)
		}
	}
}
