package pt2_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A guarded is a line of testdata/guards/programs.jsonl: a program, and what PyTorch does with it.
type guarded struct {
	Name  string
	Model json.RawMessage
	Calls []struct {
		Args    []guardedValue
		Kwargs  map[string]guardedValue
		Refused bool
		Result  []struct {
			Shape  []int64
			Values []string
			Int    int64
		}
	}
}

type guardedValue struct {
	Tensor     []int64
	Transposed bool
	Int        int64
	List       []guardedValue
	Dict       map[string]guardedValue
}

// guardedPrograms returns the programs of make.py.
func guardedPrograms(t testing.TB) (list []guarded) {
	data, err := os.ReadFile("testdata/guards/programs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var p guarded
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 40 {
		t.Fatalf("%d programs, want 40 or more", len(list))
	}
	return list
}

// file returns a program as a file of torch.export.save.
func (p *guarded) file(t testing.TB) []byte {
	return archive(t, map[string]string{
		"models/model.json": string(p.Model), "data/weights/model_weights_config.json": `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`, "archive_format": "pt2", "archive_version": "0", "byteorder": "little",
	})
}

// value makes an argument. The elements of a tensor are those of make.py.
func (v *guardedValue) value(x *cgotorch.Exec) any {
	switch {
	case v.Tensor != nil:
		n := int64(1)
		for _, size := range v.Tensor {
			n *= size
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(i%5 - 1)
		}
		shape := slices.Clone(v.Tensor)
		if v.Transposed {
			slices.Reverse(shape)
			return x.Transpose(cgotorch.FromSlice(x, data, shape...), 0, 1)
		}
		return cgotorch.FromSlice(x, data, shape...)
	case v.List != nil:
		list := []any{}
		for i := range v.List {
			list = append(list, v.List[i].value(x))
		}
		return list
	case v.Dict != nil:
		dict := map[string]any{}
		for key, item := range v.Dict {
			dict[key] = item.value(x)
		}
		return dict
	}
	return v.Int
}

// leavesOf returns the leaves of a result.
func leavesOf(v any) (list []any) {
	if items, ok := v.([]any); ok {
		for _, item := range items {
			list = append(list, leavesOf(item)...)
		}
		return list
	}
	return append(list, v)
}

// compare compares the result of call i with PyTorch's.
func (p *guarded) compare(x *cgotorch.Exec, i int, result any) error {
	got, want := leavesOf(result), p.Calls[i].Result
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for k, w := range want {
		t, ok := got[k].(*cgotorch.Tensor)
		if !ok {
			if got[k] != w.Int {
				return fmt.Errorf("result %d is %v, want %d", k, got[k], w.Int)
			}
			continue
		}
		if !slices.Equal(t.Shape(), w.Shape) && len(t.Shape())+len(w.Shape) > 0 {
			return fmt.Errorf("result %d has the shape %v, want %v", k, t.Shape(), w.Shape)
		}
		for j, v := range cgotorch.ToSlice[float32](x, t) {
			want, err := strconv.ParseFloat(w.Values[j], 64)
			if err != nil {
				return err
			}
			if v != float32(want) && (v == v || want == want) {
				return fmt.Errorf("element %d of result %d is %v, want %v", j, k, v, want)
			}
		}
	}
	return nil
}

// Programs run with the sizes with which they run in PyTorch, and fail with the others.
func TestProgram_Call_Guards(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		run, refused := 0, 0
		for _, p := range guardedPrograms(t) {
			for _, fuse := range []bool{false, true} {
				var program *pt2.Program
				torchtest.Do(t, d, func(x *cgotorch.Exec) (err error) {
					program, err = load(x, p.file(t), pt2.Options{Fuse: fuse})
					return err
				})
				for i := range p.Calls {
					c := &p.Calls[i]
					var result error
					err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
						var args []any
						for k := range c.Args {
							args = append(args, c.Args[k].value(x))
						}
						keywords := pt2.Keywords{}
						for name, v := range c.Kwargs {
							keywords[name] = v.value(x)
						}
						result = p.compare(x, i, program.Call(x, append(args, keywords)...))
						return nil
					})
					switch {
					case c.Refused && err == nil:
						t.Errorf("%s: call %d (fuse %v) runs, and PyTorch refuses it", p.Name, i, fuse)
					case c.Refused && !errors.Is(err, cgotorch.ErrInvalidArgument):
						t.Errorf("%s: call %d (fuse %v) fails with %v, want ErrInvalidArgument", p.Name, i, fuse, err)
					case c.Refused:
						refused++
					case err != nil:
						t.Errorf("%s: call %d (fuse %v): %v", p.Name, i, fuse, err)
					case result != nil:
						t.Errorf("%s: call %d (fuse %v): %v", p.Name, i, fuse, result)
					default:
						run++
					}
				}
				if err := program.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		t.Logf("%d calls run, %d are refused", run, refused)
	})
}

// withGuards returns the small program with guards, which has the input x of float32[s0 2].
func withGuards(code ...string) []byte {
	text, err := json.Marshal(code)
	if err != nil {
		panic(err)
	}
	changed := entries()
	changed["models/model.json"] = strings.Replace(model, `"torch_version"`, fmt.Sprintf(`"guards_code": %s, "torch_version"`, text), 1)
	data, err := zipped(changed)
	if err != nil {
		panic(err)
	}
	return data
}
