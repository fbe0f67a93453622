package pt2test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Guarded is a line of testdata/guards/programs.jsonl: a program, and what PyTorch does with it.
type Guarded struct {
	Name  string
	Model json.RawMessage
	Calls []GuardedCall
}

// GuardedCall is a call of a program, with its result in PyTorch.
type GuardedCall struct {
	Args    []GuardedValue
	Kwargs  map[string]GuardedValue
	Refused bool
	Result  []struct {
		Shape  []int64
		Values []string
		Int    int64
	}
}

// Leaves returns the arguments one by one, in the order of the program's inputs.
func (c *GuardedCall) Leaves() (list []GuardedValue) {
	for i := range c.Args {
		list = c.Args[i].Leaves(list)
	}
	for _, v := range c.Kwargs {
		list = v.Leaves(list)
	}
	return list
}

// Shapes returns the shapes of the arguments, if all of them are tensors.
func (c *GuardedCall) Shapes() (shapes [][]int64, ok bool) {
	for _, v := range c.Leaves() {
		if v.Tensor == nil {
			return nil, false
		}
		shapes = append(shapes, v.Tensor)
	}
	return shapes, true
}

// GuardedValue is an argument or a part of one.
type GuardedValue struct {
	Tensor     []int64
	Transposed bool
	Int        int64
	List       []GuardedValue
	Dict       map[string]GuardedValue
}

// GuardedPrograms returns the programs of make.py.
func GuardedPrograms(t testing.TB) (list []Guarded) {
	data, err := os.ReadFile(Path("guards", "programs.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var p Guarded
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

// File returns a program as a file of torch.export.save.
func (p *Guarded) File(t testing.TB) []byte {
	return Archive(t, map[string]string{
		"models/model.json": string(p.Model), "data/weights/model_weights_config.json": `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`, "archive_format": "pt2", "archive_version": "0", "byteorder": "little",
	})
}

// Value makes an argument. The elements of a tensor are those of make.py.
func (v *GuardedValue) Value(x *cgotorch.Exec) any {
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
			list = append(list, v.List[i].Value(x))
		}
		return list
	case v.Dict != nil:
		dict := map[string]any{}
		for key, item := range v.Dict {
			dict[key] = item.Value(x)
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

// Compare compares the result of call i with PyTorch's.
func (p *Guarded) Compare(x *cgotorch.Exec, i int, result any) error {
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
			if !p.Near(v, w.Values[j], !x.Device().IsCUDA()) {
				return fmt.Errorf("element %d of result %d is %v, want %v", j, k, v, w.Values[j])
			}
		}
	}
	return nil
}

// Near reports whether a value is PyTorch's on the CPU, whose text is given: to the bit there, and
// up to rounding on another device. The order of sums in the products of "attention" depends on the
// CPU, in PyTorch too. So its values may differ by a few last bits from those that are kept.
func (p *Guarded) Near(got float32, want string, onCPU bool) bool {
	w, err := strconv.ParseFloat(want, 64)
	if err != nil {
		return false
	}
	tolerance := 1e-5
	if onCPU && p.Name == "attention" {
		tolerance, onCPU = 1e-6, false
	}
	if onCPU || math.IsNaN(w) || math.IsInf(w, 0) {
		return fmt.Sprint(got) == fmt.Sprint(float32(w))
	}
	return math.Abs(float64(got)-w) <= tolerance*max(1, math.Abs(w))
}

// Leaves appends the leaves of an argument. The keys of a dict are in their order.
func (v *GuardedValue) Leaves(list []GuardedValue) []GuardedValue {
	for i := range v.List {
		list = v.List[i].Leaves(list)
	}
	for _, key := range slices.Sorted(maps.Keys(v.Dict)) {
		item := v.Dict[key]
		list = item.Leaves(list)
	}
	if v.List == nil && v.Dict == nil {
		list = append(list, *v)
	}
	return list
}
