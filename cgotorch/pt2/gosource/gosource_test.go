package gosource_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource/testdata/net"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// goSource returns the source of an archive.
func goSource(t *testing.T, entries map[string]string, o gosource.Options) (map[string][]byte, error) {
	path := filepath.Join(t.TempDir(), "net.pt2")
	must.Do(t, os.WriteFile(path, pt2test.Archive(t, entries), 0o600))
	return gosource.Generate(path, o)
}

func TestMain(m *testing.M) { torchtest.Main(m) }

// The package testdata/net is the source of the program. With CGOTORCH_UPDATE=1 it is written.
func TestGenerate_Golden(t *testing.T) {
	got := must.Get(goSource(t, pt2test.Entries(), gosource.Options{}))(t)
	if len(got) != 2 {
		t.Errorf("%d files, want 2", len(got))
	}
	for name, data := range got {
		path := filepath.Join("testdata/net", name)
		if os.Getenv("CGOTORCH_UPDATE") != "" {
			must.Do(t, os.WriteFile(path, data, 0o666))
		}
		want := must.Get(os.ReadFile(path))(t)
		if !bytes.Equal(data, want) {
			t.Errorf("%s is\n%s\nwant\n%s", name, data, want)
		}
	}
}

func TestGenerate_FreeEarly(t *testing.T) {
	files := must.Get(goSource(t, pt2test.Entries(), gosource.Options{FreeEarly: true, Package: "early"}))(t)
	text := string(files["early.go"])
	checkGo(t, files["early.go"])
	for _, want := range []string{"package early\n", "relu := x.ReLU(linear)\n\t\tfree(linear)\n", "free(relu)\n\t\treturn add"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// Go builds the file on each system, whatever the package's name.
func TestGenerate_PackageName(t *testing.T) {
	for _, name := range []string{"net_windows", "net_test", "_net", "__"} {
		files := must.Get(goSource(t, pt2test.Entries(), gosource.Options{Package: name}))(t)
		folder := t.TempDir()
		for file, data := range files {
			must.Do(t, os.WriteFile(filepath.Join(folder, file), data, 0o600))
		}
		if p, err := build.ImportDir(folder, 0); err != nil || len(p.GoFiles) != 1 || p.Name != name {
			t.Errorf("package %s: Go builds %q of it (%v)", name, p.GoFiles, err)
		}
	}
}

func TestGenerate_EqualProgram(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var p *pt2.Program
		data := pt2test.Archive(t, pt2test.Entries())
		torchtest.Do(t, d, func(x *cgotorch.Exec) (err error) {
			p, err = pt2.LoadFrom(x, bytes.NewReader(data), int64(len(data)), "net.pt2", pt2.Options{})
			return err
		})
		t.Cleanup(func() { p.Close() })
		torchtest.Do(t, d, func(x *cgotorch.Exec) error {
			m := net.New(x)
			defer m.Close()
			weights := map[string]*cgotorch.Tensor{}
			for _, w := range p.Weights {
				weights[w.Name] = w.Tensor
			}
			if err := nn.Load(x, m, weights, nn.LoadOptions{}); err != nil {
				return err
			}
			if got := nn.Parameters(m); len(got) != 2 || !got[0].RequiresGrad() {
				t.Errorf("the parameters are %v", got)
			}
			in := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
			torchtest.Equal(t, x, m.Forward(x, in), cgotorch.ToSlice[float32](x, p.Forward(x, in)), 2, 2)
			return nil
		})
	})
}

// Names of a file cannot break out of the source.
func TestGenerate_HostileNames(t *testing.T) {
	for name, change := range map[string]func(s string) string{
		"quote":          renamed("fc.weight", `fc.a\"b`),
		"back quote":     renamed("fc.weight", "fc.a`b"),
		"backslash":      renamed("fc.weight", `fc.a\\b`),
		"line":           renamed("fc.weight", `fc.a\nfunc init() { panic(1) }`),
		"unicode":        renamed("fc.weight", "größe.层.重"),
		"keyword":        renamed("fc.weight", "func.type"),
		"digits":         renamed("fc.weight", "0x.1e9"),
		"no letter":      renamed("fc.weight", "_._"),
		"method":         renamed("fc.weight", "forward"),
		"equal names":    func(s string) string { return renamed("fc.bias", "fc.Weight")(s) },
		"equal modules":  func(s string) string { return renamed("fc.bias", "Fc.weight")(s) },
		"node":           renamed(`"linear"`, `"func"`),
		"node of a name": renamed(`"relu"`, `"cgotorch"`),
		"node text":      renamed(`"relu"`, `"); panic(1); //"`),
		"argument":       renamed(`"forward_arg_names": ["x"]`, `"forward_arg_names": ["nil, x int) {"]`),
		"comment":        renamed("y = self.fc(x)", `*/ } \r //go:embed /etc/passwd \u2028 y`),
		"module":         renamed("L__self__fc,fc,", `L__self__fc,fc\n} func evil() {,`),
		"class":          renamed("torch.nn.modules.linear.Linear", "a.b{}; func"),
		"constant":       renamed(`"tensor_constant_name": "c"`, `"tensor_constant_name": "../../c\"`+"`"+`"`),
	} {
		t.Run(name, func(t *testing.T) {
			e := pt2test.Entries()
			before := fmt.Sprint(e)
			for entry := range e {
				if strings.HasSuffix(entry, ".json") {
					e[entry] = change(e[entry])
				}
			}
			if name == "constant" {
				e["data/constants/model_constants_config.json"] = strings.Replace(pt2test.ConstantTable, `"c":`, `"../../c\"`+"`"+`":`, 1)
			}
			if fmt.Sprint(e) == before {
				t.Fatal("nothing is renamed")
			}
			files := must.Get(goSource(t, e, gosource.Options{}))(t)
			for file, data := range files {
				if strings.HasSuffix(file, ".go") {
					checkGo(t, data)
				}
			}
		})
	}
}

func renamed(old, new string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, old, new) }
}

// checkGo fails for source with names that are declared twice, not used or not known, with other
// functions than those of a pt2test.Model, and with compiler directives.
func checkGo(t *testing.T, data []byte) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "net.go", data, parser.ParseComments)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	config := types.Config{Importer: noPackages{}, Error: func(err error) {
		if text := err.Error(); !regexp.MustCompile(`undefined: (cgotorch|nn|safetensors|strings|errors|fmt)\.|could not import`).MatchString(text) {
			t.Errorf("%v\n%s", err, data)
		}
	}}
	_, _ = config.Check("net", set, []*ast.File{file}, nil)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && !regexp.MustCompile(`^(New|Close|Forward|Call|forward|makeConstants|parameter|free|require|checkSizes)$`).MatchString(f.Name.Name) {
			t.Errorf("there is a function %s", f.Name.Name)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^\s*//go:`).FindAll(data, -1)); n != 1 {
		t.Errorf("%d directives, want 1\n%s", n, data)
	}
}

// noPackages imports packages without names.
type noPackages struct{}

func (noPackages) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	p.MarkComplete()
	return p, nil
}

func TestGenerate_Refused(t *testing.T) {
	replace := func(entry, old, new string) func(e map[string]string) {
		return func(e map[string]string) { e[entry] = strings.Replace(e[entry], old, new, 1) }
	}
	everywhere := func(old, new string) func(e map[string]string) {
		return func(e map[string]string) {
			for entry := range e {
				e[entry] = strings.ReplaceAll(e[entry], old, new)
			}
		}
	}
	const m, weights = "models/model.json", "data/weights/model_weights_config.json"
	for name, c := range map[string]struct {
		change  func(e map[string]string)
		options gosource.Options
		is      error
		want    string
	}{
		"package":        {func(map[string]string) {}, gosource.Options{Package: "a b"}, nil, `Options.Package is "a b"`},
		"keyword":        {func(map[string]string) {}, gosource.Options{Package: "func"}, nil, `Options.Package is "func"`},
		"program":        {func(map[string]string) {}, gosource.Options{Model: "other"}, nil, `no program "other"`},
		"comma":          {everywhere("fc.weight", "fc.a,b"), gosource.Options{}, gosource.ErrNoSource, `the weight "fc.a,b"`},
		"no name":        {everywhere("fc.weight", "fc."), gosource.Options{}, gosource.ErrNoSource, `the weight "fc."`},
		"hidden":         {everywhere("fc.weight", "-.a"), gosource.Options{}, gosource.ErrNoSource, `the weight "-.a"`},
		"deep":           {everywhere("fc.weight", strings.Repeat("a.", 500)+"w"), gosource.Options{}, gosource.ErrNoSource, "more than 100 modules"},
		"inside weight":  {everywhere("fc.bias", "fc.weight.a"), gosource.Options{}, pt2.ErrFormat, `"fc.weight.a"`},
		"pickled":        {replace(weights, `"use_pickle": false`, `"use_pickle": true`), gosource.Options{}, pt2.ErrUnsupported, `"fc.weight" is pickled`},
		"overlap":        {replace(weights, `"path_name": "weight_1"`, `"path_name": "weight_0"`), gosource.Options{}, gosource.ErrNoSource, "parts of one memory"},
		"no constant":    {func(e map[string]string) { delete(e, "data/constants/tensor_0") }, gosource.Options{}, pt2.ErrFormat, "data/constants/tensor_0"},
		"short constant": {func(e map[string]string) { e["data/constants/tensor_0"] = "abc" }, gosource.Options{}, pt2.ErrFormat, "has 3 bytes"},
		"operator":       {replace(m, "aten.relu.default", "aten.relo.default"), gosource.Options{}, pt2.ErrUnsupported, "aten::relo"},
	} {
		t.Run(name, func(t *testing.T) {
			e := pt2test.Entries()
			c.change(e)
			_, err := goSource(t, e, c.options)
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("the error is %v, want %q", err, c.want)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error has %d characters: %v", len(err.Error()), err)
			}
		})
	}
}

// FuzzGenerate changes the JSON texts of an archive. The source is Go, or there is an error.
func FuzzGenerate(f *testing.F) {
	f.Add([]byte(pt2test.Model), []byte(pt2test.WeightTable), []byte(pt2test.ConstantTable))
	f.Fuzz(func(t *testing.T, model, weights, constants []byte) {
		e := pt2test.Entries()
		e["models/model.json"], e["data/weights/model_weights_config.json"], e["data/constants/model_constants_config.json"] = string(pt2test.Model), string(weights), string(constants)
		files, err := goSource(t, e, gosource.Options{})
		if err != nil && strings.Contains(err.Error(), "is not Go") {
			t.Error(err)
		}
		for name, data := range files {
			if strings.HasSuffix(name, ".go") {
				checkGo(t, data)
			}
		}
	})
}

// A result that is written into a buffer is that buffer, as in PyTorch.
func TestGenerate_ResultIsWritten(t *testing.T) {
	source := must.Get(gosource.Generate(pt2test.Path("made", "delay.pt2"), gosource.Options{Package: "delay"}))(t)
	all := ""
	for _, text := range source {
		all += string(text)
	}
	if !strings.Contains(all, "return x.Alias(m.Before), x.Alias(m.Count)") {
		t.Errorf("the source returns something else:\n%s", all)
	}
}
