package programs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// sourced are programs whose source is compiled and run, if no folder with programs is given.
var sourced = []string{"resnet18", "mobilenet_v3_small", "swin_t", "attention", "transformer", "recurrent", "einsum", "in_place", "no_grad",
	"shared", "non_persistent", "embedding", "index_put", "sizes", "ranges", "writes_buffers_plain", "torchvision_operators", "train_resnet18"}

// The program that runs the source of all programs, and compares it with package pt2.
const comparison = `package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
%s)

type model interface{ Close() error }

func load(x *cgotorch.Exec, m any, p *pt2.Program) error {
	tensors := map[string]*cgotorch.Tensor{}
	for _, w := range p.Weights {
		tensors[w.Name] = w.Tensor
	}
	if got, want := len(nn.State(m)), len(p.Weights); got != want {
		return fmt.Errorf("%%d names, want %%d", got, want)
	}
	return nn.Load(x, m, tensors, nn.LoadOptions{})
}

func input(x *cgotorch.Exec, f *safetensors.File, key string) (*cgotorch.Tensor, error) {
	info, ok := f.Lookup(key)
	if !ok {
		return nil, fmt.Errorf("no tensor %%s", key)
	}
	data, err := f.Read(key)
	dtype, _ := checkpoint.DType(info.DType)
	if err != nil {
		return nil, err
	}
	return cgotorch.FromBytes(x, data, dtype, info.Shape), nil
}

func same(x *cgotorch.Exec, a, b *cgotorch.Tensor) bool {
	return a.DType() == b.DType() && fmt.Sprint(a.Shape()) == fmt.Sprint(b.Shape()) &&
		bytes.Equal(cgotorch.ToBytes(x, x.Contiguous(a, cgotorch.Contiguous)), cgotorch.ToBytes(x, x.Contiguous(b, cgotorch.Contiguous)))
}

// The function compare runs a program on the arguments of its first call, twice.
func compare[M model](name string, keys []string, make func(x *cgotorch.Exec) M, run func(x *cgotorch.Exec, m M, in []*cgotorch.Tensor) []any) {
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		p, err := pt2.Load(x, name+".pt2", pt2.Options{})
		if err != nil {
			return err
		}
		defer p.Close()
		f, err := safetensors.Open(name + ".safetensors")
		if err != nil {
			return err
		}
		defer f.Close()
		m := make(x)
		defer m.Close()
		if err := load(x, m, p); err != nil {
			return err
		}
		for range 2 {
			var in []any
			var copied []*cgotorch.Tensor
			for _, key := range keys {
				t, err := input(x, f, key)
				if err != nil {
					return err
				}
				in, copied = append(in, t), append(copied, x.Clone(t))
			}
			cgotorch.Seed(5)
			result := p.Call(x.NoGrad(), in...)
			want, isList := result.([]any)
			if !isList {
				want = []any{result}
			}
			cgotorch.Seed(5)
			got := run(x.NoGrad(), m, copied)
			if len(got) != len(want) {
				return fmt.Errorf("%%d results, want %%d", len(got), len(want))
			}
			for i := range want {
				w, isTensor := want[i].(*cgotorch.Tensor)
				if g, ok := got[i].(*cgotorch.Tensor); ok != isTensor || !ok && got[i] != want[i] || ok && !same(x, g, w) {
					return fmt.Errorf("result %%d differs: %%v and %%v", i, got[i], want[i])
				}
			}
			for i := range copied {
				if !same(x, copied[i], in[i].(*cgotorch.Tensor)) {
					return fmt.Errorf("argument %%d differs afterwards", i)
				}
			}
		}
		for _, n := range nn.State(m) {
			for _, w := range p.Weights {
				if w.Name == n.Name && !same(x, w.Tensor, n.Tensor) {
					return fmt.Errorf("the weight %%s differs afterwards", n.Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		fmt.Printf("%%s: %%v\n", name, err)
		return
	}
	fmt.Printf("%%s: equal\n", name)
}

// The function train trains a program for 20 steps.
func train[M model](name string, make func(x *cgotorch.Exec) M, run func(x *cgotorch.Exec, m M, in *cgotorch.Tensor) *cgotorch.Tensor) {
	losses := func(generated bool) (list []float64, err error) {
		var forward func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor
		var opt *optim.Optimizer
		var closers []io.Closer
		defer func() {
			for _, c := range closers {
				c.Close()
			}
		}()
		stream := cgotorch.DefaultStream(cgotorch.CPU)
		f, err := safetensors.Open(name + ".safetensors")
		if err != nil {
			return nil, err
		}
		closers = append(closers, f)
		err = stream.Do(func(x *cgotorch.Exec) error {
			p, err := pt2.Load(x, name+".pt2", pt2.Options{})
			if err != nil {
				return err
			}
			closers = append(closers, p)
			parameters := nn.Parameters(p)
			forward = p.Forward
			if generated {
				m := make(x)
				closers = append(closers, m)
				if err := load(x, m, p); err != nil {
					return err
				}
				parameters = nn.Parameters(m)
				forward = func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return run(x, m, in) }
			}
			opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9}, optim.Group{Params: parameters})
			closers = append(closers, opt)
			return err
		})
		cgotorch.Seed(5)
		for i := 0; i < 20 && err == nil; i++ {
			err = stream.Do(func(x *cgotorch.Exec) error {
				in, err := input(x, f, "x")
				if err != nil {
					return err
				}
				labels, err := input(x, f, "labels")
				if err != nil {
					return err
				}
				opt.ZeroGrad()
				loss := nn.CrossEntropy(x, forward(x, in), labels, nn.CrossEntropyOptions{})
				x.Backward(loss)
				opt.Step(x)
				list = append(list, x.Item(loss))
				return nil
			})
		}
		return list, err
	}
	want, err := losses(false)
	got, err2 := losses(true)
	if err != nil || err2 != nil {
		fmt.Printf("%%s: %%v %%v\n", name, err, err2)
		return
	}
	for i := range want {
		if got[i] != want[i] || math.IsNaN(got[i]) {
			fmt.Printf("%%s: loss %%d is %%v, want %%v\n", name, i, got[i], want[i])
			return
		}
	}
	fmt.Printf("%%s: equal\n", name)
}

func main() {
	cgotorch.SetThreads(1)
	os.Chdir(os.Args[1])
	if path, err := os.ReadFile("torchvision.txt"); err == nil {
		if err := cgotorch.OpenOperators(string(path)); err != nil {
			fmt.Println(err)
		}
	}
%s}
`

// TestGoSource_EqualProgram compiles the source of programs, and compares it with the programs.
func TestGoSource_EqualProgram(t *testing.T) {
	made := folder(t, sourced...)
	openTorchvision(t, made)
	sources := map[string][]byte{}
	var imports, calls strings.Builder
	wanted := 0
	paths := must.Get(filepath.Glob(filepath.Join(made, "*.pt2")))(t)
	trainings := 0
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".pt2")
		training := strings.HasPrefix(name, "train_")
		keys := tensorArguments(made, name)
		if !token.IsIdentifier(name) || !training && keys == nil || training && trainings > 0 {
			continue
		}
		files, err := gosource.Generate(path, gosource.Options{Package: "p_" + name, FreeEarly: wanted%2 == 1})
		if errors.Is(err, gosource.ErrNoSource) {
			t.Log(err)
			continue
		}
		must.Do(t, err)
		results := 0
		method := "Forward"
		for file, data := range files {
			if lines := bytes.Count(data, []byte("\n")); strings.HasSuffix(file, ".go") && lines > 1000 {
				t.Errorf("%s of %s has %d lines", file, name, lines)
			}
			sources[filepath.Join(name, file)] = data
			if bytes.Contains(data, []byte("\nfunc (m *Net) Forward(")) {
				results = 1
			}
			if call := regexp.MustCompile(`\nfunc \(m \*Net\) Call\([^)]*\) (\(?)(.*)\{\n`).FindSubmatch(data); call != nil {
				method, results = "Call", bytes.Count(call[2], []byte(","))+1
			}
		}
		var variables, arguments []string
		for i := range results {
			variables = append(variables, fmt.Sprintf("r%d", i))
		}
		for i := range keys {
			arguments = append(arguments, fmt.Sprintf("in[%d]", i))
		}
		fmt.Fprintf(&imports, "\tp_%s %q\n", name, "made/"+name)
		if wanted++; training {
			trainings++
			fmt.Fprintf(&calls, "\ttrain(%q, p_%s.New, func(x *cgotorch.Exec, m *p_%s.Net, in *cgotorch.Tensor) *cgotorch.Tensor { return m.Forward(x, in) })\n", name, name, name)
			continue
		}
		list := strings.Join(variables, ", ")
		fmt.Fprintf(&calls, "\tcompare(%q, %#v, p_%s.New, func(x *cgotorch.Exec, m *p_%s.Net, in []*cgotorch.Tensor) []any {\n\t\t%s := m.%s(x, %s)\n\t\treturn []any{%s}\n\t})\n",
			name, keys, name, name, list, method, strings.Join(arguments, ", "), list)
	}
	if wanted == 0 {
		t.Skipf("%s holds no programs on tensors", made)
	}
	sources["main.go"] = fmt.Appendf(nil, comparison, imports.String(), calls.String())
	out, err := exec.Command(torchtest.GoProgram(t, "../../..", sources), made).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	equal := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasSuffix(strings.TrimSpace(line), ": equal") {
			t.Error(strings.TrimSpace(line))
			continue
		}
		equal++
	}
	if equal != wanted {
		t.Errorf("%d programs are equal, want %d", equal, wanted)
	}
	t.Logf("%d programs are equal to the bit", equal)
}

// tensorArguments returns the names of the tensors that are the arguments of a program's first
// call. It returns nil if the folder lacks the call, or if other values than tensors, or lists of
// them, are among arguments and results.
func tensorArguments(made, name string) (keys []string) {
	text, err := os.ReadFile(filepath.Join(made, name+".json"))
	if err != nil {
		return nil
	}
	var r record
	if json.Unmarshal(text, &r) != nil || len(r.Calls) == 0 || len(r.Calls[0].Kwargs) > 0 {
		return nil
	}
	for _, arg := range r.Calls[0].Args {
		var tensor struct{ Tensor *string }
		if json.Unmarshal(arg, &tensor) != nil || tensor.Tensor == nil {
			return nil
		}
		keys = append(keys, *tensor.Tensor)
	}
	flat := regexp.MustCompile(`^\{"(tensor|list)": ("[0-9]*"|\[(\{"(tensor|int)": "[0-9]*"\}(, )?)*\])\}$`)
	if !flat.Match(r.Calls[0].Result) {
		return nil
	}
	return keys
}
