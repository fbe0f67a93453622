// Package rules tests rules that hold for the whole tree.
package rules

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

const root = "../.."

const module = "github.com/streamtorch/streamtorch"

func TestHeaders_AreC11(t *testing.T) {
	headers, err := filepath.Glob(root + "/csrc/include/*.h")
	if err != nil || len(headers) == 0 {
		t.Fatalf("headers in csrc/include: %v, %v", headers, err)
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	for _, header := range headers {
		args := append(strings.Fields(compiler)[1:], "-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror",
			"-fsyntax-only", "-x", "c", header)
		if out, err := exec.Command(strings.Fields(compiler)[0], args...).CombinedOutput(); err != nil {
			t.Errorf("%s is not C11: %v\n%s", header, err, out)
		}
	}
}

func TestLibraries_ExportOnlyTheirPrefix(t *testing.T) {
	for _, test := range []struct{ library, prefix string }{
		{"libcgotorch.so", "ct_"},
		{"libcgotorch_cuda.so", "ct_"},
		{"libcgotorch_decode.so", "ctd_"},
	} {
		path := filepath.Join(root, "build/lib", test.library)
		if _, err := os.Stat(path); err != nil {
			if test.library == "libcgotorch_cuda.so" {
				t.Logf("%s: not built, so not checked", test.library) // a LibTorch without CUDA has no such library
				continue
			}
			t.Fatal(err)
		}
		out, err := exec.Command("nm", "-D", "--defined-only", path).Output()
		if err != nil {
			t.Fatalf("nm %s: %v", path, err)
		}
		symbols := 0
		for line := range strings.Lines(string(out)) {
			name := strings.Fields(line)[2]
			symbols++
			if !strings.HasPrefix(name, test.prefix) {
				t.Errorf("%s exports %s, want only names that begin with %s", test.library, name, test.prefix)
			}
		}
		if symbols == 0 {
			t.Errorf("%s exports nothing", test.library)
		}
	}
}

// libcgotorch.so is linked with two libraries of LibTorch, and the other libraries with none.
// libcgotorch_cuda.so and libcgotorch_decode.so are not linked with CUDA.
func TestLibraries_NeedOnly(t *testing.T) {
	system := `libstdc\+\+|libgcc_s|libc|libm|libdl|libpthread|librt|ld-linux-(x86-64|aarch64)`
	for _, test := range []struct{ library, allowed string }{
		{"libcgotorch.so", `libc10|libtorch_cpu|libcudart|libcupti|` + system},
		{"libcgotorch_cuda.so", system},
		{"libcgotorch_decode.so", `libjpeg|libpng16|libz|` + system},
		{"libcgotorch_nopython.so", system},
		{"libcgotorch_nocuda.so", system},
	} {
		out, err := exec.Command("readelf", "-d", filepath.Join(root, "build/lib", test.library)).Output()
		if err != nil {
			if test.library == "libcgotorch_cuda.so" {
				continue
			}
			t.Fatalf("readelf %s: %v", test.library, err)
		}
		allowed := regexp.MustCompile(`^(` + test.allowed + `)\.so`)
		for _, needed := range regexp.MustCompile(`NEEDED.*\[(.*)\]`).FindAllSubmatch(out, -1) {
			if !allowed.Match(needed[1]) {
				t.Errorf("%s is linked with %s", test.library, needed[1])
			}
		}
	}
}

// libcgotorch_cuda.so is opened beside the core, which exports none of its C++ names. So it can use
// none of them.
func TestLibraries_ShareNoNames(t *testing.T) {
	path := filepath.Join(root, "build/lib/libcgotorch_cuda.so")
	if _, err := os.Stat(path); err != nil {
		t.Skip("a LibTorch without CUDA has no such library: ", err)
	}
	out := must.Get(exec.Command("nm", "-D", "--undefined-only", path).Output())(t)
	if name := regexp.MustCompile(`\b_ZN?K?2ct\w*`).Find(out); name != nil {
		t.Errorf("libcgotorch_cuda.so needs %s of the core", name)
	}
}

// source is a parsed Go file. path is relative to the root.
type source struct {
	path string
	file *ast.File
	text []byte
}

// sources parses every Go file of the module.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	must.Do(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (name == "build" || name == "gpu-bundle" || name == "testdata" || name == "runs" ||
				strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		all = append(all, source{relative, file, text})
		return err
	}))
	return all
}

func TestPackages_HaveDocComment(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		documented[dir] = documented[dir] || s.file.Doc != nil
	}
	for dir, has := range documented {
		if !has {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// cgoRooms are the folders that may import "C". Two of them are the Go layers of the C headers, and
// internal/library opens the libraries.
// bench/handwritten is a hand-written wrapper to compare with. tests/streams/ambient changes
// state that the library does not know of.
var cgoRooms = []string{"cgotorch/internal/ct", "internal/ctd", "internal/library", "bench/handwritten", "tests/streams/ambient"}

// Only files called cgo.go have flags for cgo, and only cgoRooms import "C".
func TestCgo_StaysInItsRoom(t *testing.T) {
	flags := regexp.MustCompile(`(?m)^(//)?\s*#cgo .*FLAGS`)
	for _, s := range sources(t) {
		room := slices.Contains(cgoRooms, filepath.ToSlash(filepath.Dir(s.path)))
		for _, spec := range s.file.Imports {
			if spec.Path.Value == `"C"` && !room {
				t.Errorf(`%s says import "C", and only %v may`, s.path, cgoRooms)
			}
		}
		if flags.Match(s.text) && filepath.Base(s.path) != "cgo.go" {
			t.Errorf("%s has #cgo flags, and only cgo.go may", s.path)
		}
	}
}

// roomsBelow says which other rooms a room may import.
var roomsBelow = map[string][]string{
	"internal":           {},
	"internal/torchtest": {"internal", "cgotorch"},
	"cgotorch":           {"internal"},
	// Models lie above what copies their weights.
	"cgotorch/text": {"internal", "cgotorch", "prefetcher"},
	"imageloader":   {"internal", "imageloader/internal/archive"},
	// The reading of an archive knows no batch and no decoder.
	"imageloader/internal/archive": {"internal"},
	"prefetcher":                   {"internal", "cgotorch", "imageloader"},
	"csrc":                         {}, // the sources, for what compiles them
	"internal/install":             {"internal", "csrc"},
	"internal/release":             {"internal", "internal/install", "csrc"},
	"examples":                     {"cgotorch", "cgotorch/text", "imageloader", "prefetcher"}, // users copy them, and cannot import internal
}

// roomOf returns the longest name in roomsBelow that is path or a folder above it. If there is
// none, it returns "".
func roomOf(path string) string {
	longest := ""
	for room := range roomsBelow {
		if (path == room || strings.HasPrefix(path, room+"/")) && len(room) > len(longest) {
			longest = room
		}
	}
	return longest
}

// A room imports only the rooms below it. imageloader and cgotorch do not import each other.
// internal/torchtest serves the tests of rooms that import cgotorch, and the rest of internal all
// tests.
func TestImports_PointOneWay(t *testing.T) {
	for _, s := range sources(t) {
		from := roomOf(filepath.ToSlash(s.path))
		if from == "" {
			continue
		}
		for _, spec := range s.file.Imports {
			imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if !ours {
				continue
			}
			to := roomOf(imported)
			right := to == from || to != "" && slices.Contains(roomsBelow[from], to)
			isTest := strings.HasSuffix(s.path, "_test.go")
			if to == "internal/torchtest" {
				right = isTest && (from == "cgotorch" || slices.Contains(roomsBelow[from], "cgotorch"))
			}
			right = right || isTest && to == "internal"
			if !right {
				t.Errorf("%s imports %s: the arrow points the wrong way", s.path, imported)
			}
		}
	}
}

// goList runs go list in the root. It returns the lines sorted, without duplicates.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return slices.Compact(lines)
}

// make test-loader works on a machine without LibTorch. The packages that it tests must therefore
// not depend on the half with LibTorch, not even indirectly.
func TestImports_LoaderNeedsNoLibTorch(t *testing.T) {
	packages := goList(t, "-test", "-deps", "-f", "{{if not .ForTest}}{{.ImportPath}}{{end}}",
		"./imageloader/...", "./internal/arena", "./internal/filelock", "./internal/inflate", "./internal/panics", "./internal/pickle", "./internal/replace", "./internal/ring", "./internal/signature", "./internal/pythonjson", "./examples/inspect")
	mine := regexp.MustCompile(`^(imageloader(/.*)?|internal/(arena|ctd|filelock|inflate|library|replace|ring|filetest|leaktest|must|panics|pickle|pythonjson|signature|together)|examples/inspect)(\.test)?$`)
	for _, path := range packages {
		if inModule, ours := strings.CutPrefix(path, module+"/"); ours && !mine.MatchString(inModule) {
			t.Errorf("the loader needs %s", path)
		}
	}
	if !slices.Contains(packages, module+"/imageloader/decode") {
		t.Errorf("go list names %d packages, and decode is not among them", len(packages))
	}
}

// A program that imports the library gets only these modules. It does not get modules that only
// examples and benchmarks need. Only programs that read Parquet get the modules for it.
func TestImports_ModulesOfTheLibrary(t *testing.T) {
	const parquet = "cgotorch/data/parquet"
	packages := map[string][]string{parquet: {"./" + parquet}}
	for _, path := range goList(t, "./cgotorch/...", "./imageloader/...", "./prefetcher/...") {
		room, _, _ := strings.Cut(strings.TrimPrefix(path, module+"/"), "/")
		if path != module+"/"+parquet {
			packages[room] = append(packages[room], path)
		}
	}
	for room, want := range map[string][]string{
		"cgotorch": {"github.com/rivo/uniseg", "golang.org/x/text"},
		parquet: {
			"github.com/andybalholm/brotli", "github.com/apache/arrow-go/v18", "github.com/apache/thrift", "github.com/cespare/xxhash/v2", "github.com/goccy/go-json",
			"github.com/golang/snappy", "github.com/google/flatbuffers", "github.com/google/uuid", "github.com/klauspost/compress", "github.com/klauspost/cpuid/v2",
			"github.com/pierrec/lz4/v4", "github.com/zeebo/xxh3", "golang.org/x/exp", "golang.org/x/sync", "golang.org/x/sys", "golang.org/x/xerrors",
		},
		"imageloader": {"github.com/klauspost/compress", "golang.org/x/image"},
		"prefetcher":  {"github.com/klauspost/compress", "golang.org/x/image"},
	} {
		modules := goList(t, append([]string{"-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, packages[room]...)...)
		modules = slices.DeleteFunc(modules, func(m string) bool { return m == module })
		if !slices.Equal(modules, want) {
			t.Errorf("%s needs the modules %v, want %v", room, modules, want)
		}
	}
}

// Each folder of csrc includes only files of the folders below it. decode and inflate include
// nothing that needs LibTorch. decode shares three texts with CUDA, which need none. kernels and
// the features include files of core. core includes only a few headers of features.
func TestIncludes_PointOneWay(t *testing.T) {
	below := map[string][]string{
		"core":        {"check/checker.h", "cuda/backend.h", "graph/capture.h", "witness/trace.h", "witness/watch.h"},
		"check":       {"core/", "witness/watch.h"},
		"witness":     {"core/", "check/checker.h"},
		"graph":       {"core/", "check/checker.h", "cuda/backend.h"},
		"kernels":     {"core/"},
		"aoti":        {"core/", "graph/capture.h"},
		"parallel":    {"core/", "graph/", "kernels/cast.h", "kernels/sleep.h", "check/checker.h"},
		"distributed": {"core/", "kernels/cast.h", "kernels/foreach.h", "parallel/overlap.h"},
		"cuda":        {"core/", "kernels/floats.h", "witness/trace.h"},
		"decode":      {"inflate/", "kernels/both_devices.h", "kernels/jpeg_pixels.h", "kernels/resample.h"},
		"inflate":     {"decode/status.h"},
		"absent":      {},
	}
	include := regexp.MustCompile(`(?m)^#include "([^"]+)"`)
	for folder, allowed := range below {
		files, err := filepath.Glob(filepath.Join(root, "csrc", folder, "*.*"))
		if err != nil || len(files) == 0 {
			t.Errorf("csrc/%s: no files, %v", folder, err)
		}
		for _, file := range files {
			text := must.Get(os.ReadFile(file))(t)
			for _, match := range include.FindAllStringSubmatch(string(text), -1) {
				name := match[1]
				mayTest := strings.HasSuffix(name, "_test.h") && strings.Contains(file, "_test.")
				right := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
				if !strings.Contains(name, "/") || right(folder+"/") || right("include/") || mayTest || slices.ContainsFunc(allowed, right) {
					continue
				}
				t.Errorf("csrc/%s/%s includes %s: the arrow points the wrong way", folder, filepath.Base(file), name)
			}
		}
	}
	folders := must.Get(filepath.Glob(filepath.Join(root, "csrc/*/*.cc")))(t)
	for _, file := range folders {
		if folder := filepath.Base(filepath.Dir(file)); below[folder] == nil {
			t.Errorf("csrc/%s is in no room of this test", folder)
		}
	}
}

func TestFiles_HaveNouns(t *testing.T) {
	banned := regexp.MustCompile(`(^|_)(utils?|helpers?|common|misc)(_test)?\.(go|cc|h|py|sh)$`)
	for _, path := range tracked(t) {
		if banned.MatchString(filepath.Base(path)) {
			t.Errorf("%s: name the file for what is in it", path)
		}
	}
}

// tracked returns the files that git knows or would add. Outside of a clone it skips the test.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("not a git clone: %v", err)
	}
	return strings.Fields(string(out))
}

// Each public package has an Example with an output, which go doc shows and go test runs.
func TestPackages_HaveExample(t *testing.T) {
	has := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(s.path))
		room, _, _ := strings.Cut(dir, "/")
		if !slices.Contains([]string{"cgotorch", "imageloader", "prefetcher"}, room) || slices.Contains(strings.Split(dir, "/"), "internal") {
			continue
		}
		has[dir] = has[dir]
		for _, example := range doc.Examples(s.file) {
			has[dir] = has[dir] || strings.HasSuffix(s.path, "_test.go") && example.Output != ""
		}
	}
	for dir, example := range has {
		if !example {
			t.Errorf("%s has no Example with an output: add a short one in example_test.go", dir)
		}
	}
}
