package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// pure is a program that uses all packages that need none of the libraries. Its argument is the
// folder of the clone.
const pure = `package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/imageloader/cifar"
	"github.com/streamtorch/streamtorch/imageloader/idx"
)

func get[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func main() {
	clone, made := os.Args[1], get(os.MkdirTemp("", ""))
	defer os.RemoveAll(made)
	tokens := get(tokenizer.Open(filepath.Join(clone, "cgotorch/text/tokenizer/testdata/t5.json")))
	fmt.Println(tokens.Size())

	weights := get(pth.Open(filepath.Join(clone, "cgotorch/pth/testdata/state.pth")))
	defer weights.Close()
	var tensors []safetensors.Tensor
	for _, t := range weights.Tensors() {
		tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: get(weights.Read(t.Name))})
	}
	copied := filepath.Join(made, "w.safetensors")
	get(0, safetensors.WriteFile(copied, tensors, nil))
	file := get(safetensors.Open(copied))
	defer file.Close()
	fmt.Println(len(file.Tensors()) == len(tensors))

	image := append([]byte{0, 0, 8, 1, 0, 0, 0, 2}, 5, 6)
	get(0, os.WriteFile(filepath.Join(made, "a"), image, 0o666))
	fmt.Println(get(idx.Read(filepath.Join(made, "a"))).Data)
	for _, name := range []string{"train", "test"} {
		get(0, os.WriteFile(filepath.Join(made, name+".bin"), make([]byte, 2+3*32*32), 0o666))
	}
	fmt.Println(len(get(cifar.Read(made, true)).Labels))
}
`

// The packages that need none of the libraries, and no cgo, are those of the book's table. A
// program that uses them all compiles for other systems, and runs without cgo.
func TestPure_Packages(t *testing.T) {
	clone := must.Get(filepath.Abs("../.."))(t)
	list := execute(t, clone, nil, "go", "list", "-f", `{{.ImportPath}} {{len .CgoFiles}} {{join .Deps " "}}`, "./cgotorch/...", "./imageloader/...", "./prefetcher/...")
	cgo := map[string]bool{module + "/internal/library": true}
	var public []string
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		cgo[words[0]] = cgo[words[0]] || words[1] != "0"
		if !strings.Contains(words[0], "/internal") {
			public = append(public, line)
		}
	}
	var got []string
	for _, line := range public {
		words := strings.Fields(line)
		if !slices.ContainsFunc(append(words[2:], words[0]), func(path string) bool { return cgo[path] }) {
			got = append(got, strings.TrimPrefix(words[0], module+"/"))
		}
	}
	page := string(must.Get(os.ReadFile(filepath.Join(clone, "docs/book/01-install.md")))(t))
	_, page, _ = strings.Cut(page, "## Without the libraries\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(page, -1) {
		want = append(want, row[1])
	}
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("these packages need no library: %q; the table has %q", got, want)
	}
	for _, path := range got {
		if !strings.Contains(pure, `"`+module+"/"+path+`"`) {
			t.Errorf("the program of this test does not use %s", path)
		}
	}

	source, out := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "pure")
	must.Do(t, os.WriteFile(source, []byte(pure), 0o666))
	for _, system := range [][]string{{"GOOS=darwin", "GOARCH=arm64"}, {"GOOS=windows", "GOARCH=amd64"}, nil} {
		execute(t, clone, append(system, "CGO_ENABLED=0"), "go", "build", "-o", out, source)
	}
	if got, want := execute(t, clone, nil, out, clone), "203\ntrue\n[5 6]\n1\n"; got != want {
		t.Errorf("the program printed %q, want %q", got, want)
	}
}

// execute runs a command and returns its standard output.
func execute(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr.String())
	}
	return string(out)
}
