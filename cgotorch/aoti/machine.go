package aoti

import (
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// A machine is what a package is compared with before it runs.
type machine struct {
	torch      string          // the version of LibTorch
	platform   string          // as Python names it: "linux"
	processor  string          // as Python names it: "x86_64"
	features   map[string]bool // of the processor, as Linux names them; nil if unknown
	device     string          // "cpu" or "cuda"
	capability int             // 10 * major + minor of a CUDA device
}

func thisMachine(d cgotorch.Device, capability int) machine {
	m := machine{torch: cgotorch.LibTorchVersion(), platform: runtime.GOOS, processor: runtime.GOARCH, device: "cpu", capability: capability}
	if name := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; name != "" {
		m.processor = name
	}
	if d.IsCUDA() {
		m.device = "cuda"
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.features = features(string(text))
	}
	return m
}

// features returns the features of the first processor in a text like /proc/cpuinfo.
func features(text string) map[string]bool {
	for line := range strings.Lines(text) {
		name, list, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name == "flags" || name == "Features" {
			all := map[string]bool{}
			for _, f := range strings.Fields(list) {
				all[f] = true
			}
			return all
		}
	}
	return nil
}

// needs lists the features of a processor that AOTInductor means by one word.
var needs = map[string][]string{
	"AVX2":   {"avx2", "fma"},
	"AVX512": {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"},
	"ASIMD":  {"asimd"},
	"NEON":   {"asimd"},
}

// compare fails if the package was compiled for another machine or PyTorch.
func (m *modelFiles) compare(here machine) error {
	say := func(text string, args ...any) error { return m.archive.Refuse(text, args...) }
	for _, is := range []struct{ key, what, here string }{
		{"AOTI_DEVICE_KEY", "device", here.device}, {"AOTI_PLATFORM", "platform", here.platform}, {"AOTI_MACHINE", "processor", here.processor},
	} {
		if got := m.metadata[is.key]; got == "" && is.key == "AOTI_DEVICE_KEY" {
			return m.archive.Bad("its metadata name no device (%s)", is.key)
		} else if got != "" && got != is.here {
			return say("it was compiled for the %s %.40q, and this is %q: compile it there", is.what, got, is.here)
		}
	}
	if got := m.torchVersion(); got != "" && release(got) != release(here.torch) {
		return say("PyTorch %.40s has compiled it, and this program has LibTorch %s: compile it with torch %s", got, here.torch, release(here.torch))
	}
	isa := m.metadata["AOTI_CPU_ISA"]
	for _, word := range strings.Fields(isa) {
		if word == "INVALID_VEC_ISA" || here.features == nil {
			break
		}
		list := needs[word]
		if list == nil {
			list = []string{strings.ToLower(word)}
		}
		for _, f := range list {
			if !here.features[f] {
				return say("it was compiled for a processor with %.60s, and this one has no %.40s: compile it on a machine like this one", isa, f)
			}
		}
	}
	return m.compareGPU(here)
}

// compareGPU fails if the model's kernels cannot run on this GPU. It compares the compute
// capabilities of the model and of the GPU. A kernel also runs on newer GPUs of its generation. A
// package with a .fatbin file also runs on newer generations.
func (m *modelFiles) compareGPU(here machine) error {
	text := m.metadata["AOTI_COMPUTE_CAPABILITY"]
	if here.device != "cuda" || text == "" {
		return nil
	}
	got, err := strconv.Atoi(text)
	if err != nil || got < 10 {
		return m.archive.Refuse("it was compiled for a GPU of the kind %.40q, and this one has the compute capability %d.%d", text, here.capability/10, here.capability%10)
	}
	several := false
	for name := range m.entries {
		several = several || path.Ext(name) == ".fatbin"
	}
	if here.capability < got || here.capability/10 != got/10 && !several {
		return m.archive.Refuse("it was compiled for a GPU of compute capability %d.%d, and this one has %d.%d: compile it on this machine, or on the older GPU with aot_inductor.emit_multi_arch_kernel",
			got/10, got%10, here.capability/10, here.capability%10)
	}
	return nil
}

// torchVersion returns the version of PyTorch that the package names, or "".
func (m *modelFiles) torchVersion() string {
	for key, value := range m.metadata {
		if strings.EqualFold(key, "torch_version") {
			return value
		}
	}
	return ""
}

// release returns the first two numbers of a version: "2.11" for "2.11.0+cpu".
func release(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}
