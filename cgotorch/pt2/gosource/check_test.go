package gosource_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The program that runs the source of all programs. It prints a line for each call.
const guardedMain = `package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
%s)

type leaf struct {
	Tensor     []int64
	Transposed bool
	Int        int64
}

type result struct {
	Refused bool
	Error   string
	Result  []any
}

func (l *leaf) value(x *cgotorch.Exec) any {
	if l.Tensor == nil {
		return l.Int
	}
	n := int64(1)
	for _, size := range l.Tensor {
		n *= size
	}
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(i%%5 - 1)
	}
	if l.Transposed {
		return x.Transpose(cgotorch.FromSlice(x, data, l.Tensor[1], l.Tensor[0]), 0, 1)
	}
	return cgotorch.FromSlice(x, data, l.Tensor...)
}

func run(calls string, forward func(x *cgotorch.Exec, in []any) []any) {
	var list [][]leaf
	if err := json.Unmarshal([]byte(calls), &list); err != nil {
		panic(err)
	}
	for _, leaves := range list {
		var r result
		err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
			var in []any
			for i := range leaves {
				in = append(in, leaves[i].value(x))
			}
			for _, v := range forward(x, in) {
				t, ok := v.(*cgotorch.Tensor)
				if !ok {
					r.Result = append(r.Result, map[string]any{"Int": v})
					continue
				}
				var values []string
				for _, f := range cgotorch.ToSlice[float32](x, t) {
					values = append(values, fmt.Sprint(f))
				}
				r.Result = append(r.Result, map[string]any{"Shape": t.Shape(), "Values": values})
			}
			return nil
		})
		if err != nil {
			r = result{Refused: errors.Is(err, cgotorch.ErrInvalidArgument), Error: err.Error()}
		}
		json.NewEncoder(os.Stdout).Encode(r)
	}
}

func main() {
	cgotorch.SetThreads(1)
%s}
`

// The source of a program runs with the sizes with which it runs in PyTorch, and fails with the
// others.
func TestGenerate_Guards(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the test compiles source, and there is no Go")
	}
	programs := pt2test.GuardedPrograms(t)
	made, sources := t.TempDir(), map[string][]byte{}
	signature := regexp.MustCompile(`\nfunc \(m \*Net\) (Forward|Call)\(x \*cgotorch\.Exec, ([^)]*)\) (\(?)(.*)\{\n`)
	var imports, calls strings.Builder
	for i := range programs {
		p := &programs[i]
		path := filepath.Join(made, p.Name+".pt2")
		must.Do(t, os.WriteFile(path, p.File(t), 0o600))
		files := must.Get(gosource.Generate(path, gosource.Options{Package: "p_" + p.Name, FreeEarly: i%2 == 1}))(t)
		var call [][]byte
		for file, data := range files {
			sources[filepath.Join(p.Name, file)] = data
			if found := signature.FindSubmatch(data); found != nil {
				call = found
			}
		}
		if call == nil {
			t.Fatalf("%s: no method in %s", p.Name, files)
		}
		var lists [][]pt2test.GuardedValue
		for k := range p.Calls {
			lists = append(lists, p.Calls[k].Leaves())
		}
		var arguments, results []string
		kind := ""
		declared := strings.Split(string(call[2]), ", ")
		for k := range slices.Backward(declared) { // as in a, b *cgotorch.Tensor
			if _, of, ok := strings.Cut(declared[k], " "); ok {
				kind = of
			}
			arguments = append([]string{fmt.Sprintf("in[%d].(%s)", k, kind)}, arguments...)
		}
		for k := range bytes.Count(call[4], []byte(",")) + 1 {
			results = append(results, fmt.Sprintf("r%d", k))
		}
		text := must.Get(json.Marshal(lists))(t)
		list := strings.Join(results, ", ")
		fmt.Fprintf(&imports, "\tp_%s %q\n", p.Name, "made/"+p.Name)
		fmt.Fprintf(&calls, "\trun(%q, func(x *cgotorch.Exec, in []any) []any {\n\t\tm := p_%s.New(x)\n\t\tdefer m.Close()\n\t\t%s := m.%s(x, %s)\n\t\treturn []any{%s}\n\t})\n",
			text, p.Name, list, call[1], strings.Join(arguments, ", "), list)
	}
	sources["main.go"] = fmt.Appendf(nil, guardedMain, imports.String(), calls.String())
	out, err := exec.Command(torchtest.GoProgram(t, "../../..", sources)).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	type answer struct {
		Refused bool
		Error   string
		Result  json.RawMessage
	}
	lines := json.NewDecoder(bytes.NewReader(out))
	for _, p := range programs {
		for i := range p.Calls {
			var got answer
			must.Do(t, lines.Decode(&got))
			want := must.Get(json.Marshal(p.Calls[i].Result))(t)
			switch {
			case got.Refused != p.Calls[i].Refused || got.Error != "" && !got.Refused:
				t.Errorf("%s: call %d of the source: refused %v (%s), and PyTorch %v", p.Name, i, got.Refused, got.Error, p.Calls[i].Refused)
			case !got.Refused && !sameResults(t, &p, got.Result, want):
				t.Errorf("%s: call %d of the source returns %s, want %s", p.Name, i, got.Result, want)
			}
		}
	}
}

// sameResults compares results as texts of JSON, whose values may be spelled in different ways.
func sameResults(t *testing.T, p *pt2test.Guarded, a, b []byte) bool {
	type result struct {
		Shape  []int64
		Values []string
		Int    int64
	}
	var got, want []result
	for text, to := range map[string]*[]result{string(a): &got, string(b): &want} {
		must.Do(t, json.Unmarshal([]byte(text), to))
	}
	return slices.EqualFunc(got, want, func(a, b result) bool {
		return a.Int == b.Int && slices.Equal(a.Shape, b.Shape) && slices.EqualFunc(a.Values, b.Values, func(v, w string) bool {
			g, err := strconv.ParseFloat(v, 64)
			return err == nil && p.Near(float32(g), w, true)
		})
	})
}
