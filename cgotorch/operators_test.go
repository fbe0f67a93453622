package cgotorch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A fixture is a tensor of testdata/operators.json.
type fixture struct {
	DType   string
	Shape   []int64
	Strides []int64 // nil for a dense row-major tensor
	Data    []number
}

// A number is a JSON number, or "nan", "inf" or "-inf".
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(v)
	return err
}

type fixtures struct {
	Torch  string
	Inputs map[string]fixture
	Cases  map[string][]fixture
}

func readFixtures(t *testing.T) fixtures {
	t.Helper()
	text := Must(os.ReadFile("testdata/operators.json"))
	var f fixtures
	must.Do(t, json.Unmarshal(text, &f))
	return f
}

// tensor makes the fixture on x's device.
func (f fixture) tensor(x *Exec) *Tensor {
	dtype, err := ParseDType(f.DType)
	if err != nil {
		x.Fail("fixture", err)
	}
	data := make([]float64, len(f.Data))
	for i, v := range f.Data {
		data[i] = float64(v)
	}
	if dtype == Complex64 { // real and imaginary parts take turns
		return x.Clone(x.To(x.ViewAsComplex(x.Reshape(FromSlice(x, data), append(slices.Clone(f.Shape), 2)...)), dtype))
	}
	return x.To(x.Reshape(FromSlice(x, data), f.Shape...), dtype)
}

// compare returns a text that says how `got` differs from the fixture, or "" if both are equal.
func (f fixture) compare(x *Exec, got *Tensor) string {
	if got == nil {
		return "got nil"
	}
	if got.DType().String() != f.DType || !slices.Equal(got.Shape(), f.Shape) {
		return fmt.Sprintf("got %v, want %s%v", got, f.DType, f.Shape)
	}
	strides := f.Strides
	if strides == nil {
		strides = x.Empty(Bool, f.Shape...).Strides()
	}
	if !slices.Equal(got.Strides(), strides) {
		return fmt.Sprintf("got strides %v, want %v", got.Strides(), strides)
	}
	for i, v := range ToSlice[float64](x, x.To(x.Detach(got), Float64)) {
		want := float64(f.Data[i])
		same := v == want || math.IsNaN(v) && math.IsNaN(want)
		if !same && !(math.Abs(v-want) <= 1e-6+1e-5*math.Abs(want)) {
			return fmt.Sprintf("element %d: got %v, want %v", i, v, want)
		}
	}
	return ""
}

// Every generated operator gives PyTorch's result.
func TestOperators(t *testing.T) {
	f := readFixtures(t)
	t.Logf("the fixtures of testdata/operators.py are of torch %s, LibTorch is %s", f.Torch, LibTorchVersion())
	before := LiveHandles()["tensor"]
	stream := DefaultStream(CPU)
	for _, name := range slices.Sorted(maps.Keys(operatorCases)) {
		run, want := operatorCases[name], f.Cases[name]
		if want == nil {
			t.Errorf("%s: no fixture", name)
			continue
		}
		err := stream.Do(func(x *Exec) error {
			Check(Seed(42))
			in := make(inputs)
			for name, input := range f.Inputs {
				in[name] = input.tensor(x)
			}
			got := run(x, in)
			if len(got) != len(want) {
				return fmt.Errorf("got %d tensors, want %d", len(got), len(want))
			}
			for i := range want {
				if difference := want[i].compare(x, got[i]); difference != "" {
					return fmt.Errorf("result %d: %s", i, difference)
				}
			}
			method, _, _ := strings.Cut(name, "/")
			if returnsArgument(method) && (got[0] == got[1] || !got[0].SharesMemory(got[1])) {
				return errors.New("the result is not a new handle of the argument")
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := LiveHandles()["tensor"]; after != before {
		t.Errorf("%d tensors are left", after-before)
	}
}

// returnsArgument reports whether a method changes one tensor and returns the tensor. Methods on
// lists of tensors return nothing.
func returnsArgument(method string) bool {
	inPlace := strings.HasSuffix(method, "InPlace") || strings.HasSuffix(method, "Out")
	return inPlace && !strings.Contains(method, "Foreach") && !strings.Contains(method, "Fused")
}

// Each operator and each fixture has a case.
func TestOperators_AllCovered(t *testing.T) {
	covered := make(map[string]bool)
	for name := range operatorCases {
		method, _, _ := strings.Cut(name, "/")
		covered[method] = true
	}
	for name := range readFixtureCalls(t).Calls {
		method, _, _ := strings.Cut(name, "/")
		covered[method] = true
	}
	for _, pkg := range []string{"", "linalg", "fft", "special"} {
		source := Must(os.ReadFile(filepath.Join(pkg, "operators_gen.go")))
		functions := regexp.MustCompile(`(?m)^func (?:\(x \*Exec\) )?(\w+)\(`).FindAllStringSubmatch(string(source), -1)
		if len(functions) == 0 {
			t.Errorf("%s: no functions in operators_gen.go", pkg)
		}
		for _, f := range functions {
			name := strings.TrimPrefix(pkg+"."+f[1], ".")
			if !covered[name] {
				t.Errorf("%s has no case", name)
			}
			if pkg != "" && packageFunctions[name] == nil {
				t.Errorf("%s is not in packageFunctions", name)
			}
		}
	}
	for name := range readFixtures(t).Cases {
		if operatorCases[name] == nil {
			t.Errorf("fixture %s has no case", name)
		}
	}
}

// An operator documented as a view shares its input's memory.
func TestOperators_Views(t *testing.T) {
	views := map[string]func(x *Exec, in *Tensor) *Tensor{
		"View":           func(x *Exec, in *Tensor) *Tensor { return x.View(in, 12) },
		"Reshape":        func(x *Exec, in *Tensor) *Tensor { return x.Reshape(in, 4, 3) },
		"Flatten":        func(x *Exec, in *Tensor) *Tensor { return x.Flatten(in, 0, -1) },
		"Permute":        func(x *Exec, in *Tensor) *Tensor { return x.Permute(in, 1, 0) },
		"Transpose":      func(x *Exec, in *Tensor) *Tensor { return x.Transpose(in, 0, 1) },
		"MoveDim":        func(x *Exec, in *Tensor) *Tensor { return x.MoveDim(in, 0, 1) },
		"Squeeze":        func(x *Exec, in *Tensor) *Tensor { return x.Squeeze(in, 0) },
		"Unsqueeze":      func(x *Exec, in *Tensor) *Tensor { return x.Unsqueeze(in, 0) },
		"Expand":         func(x *Exec, in *Tensor) *Tensor { return x.Expand(in, 2, 3, 4) },
		"Split":          func(x *Exec, in *Tensor) *Tensor { return x.Split(in, 1, 0)[2] },
		"SplitWithSizes": func(x *Exec, in *Tensor) *Tensor { return x.SplitWithSizes(in, []int64{1, 2}, 0)[1] },
		"Chunk":          func(x *Exec, in *Tensor) *Tensor { return x.Chunk(in, 2, 1)[1] },
		"Unbind":         func(x *Exec, in *Tensor) *Tensor { return x.Unbind(in, 0)[1] },
		"Narrow":         func(x *Exec, in *Tensor) *Tensor { return x.Narrow(in, 0, 1, 2) },
		"Slice":          func(x *Exec, in *Tensor) *Tensor { return x.Slice(in, 1, SliceOptions{Start: 1}) },
		"Select":         func(x *Exec, in *Tensor) *Tensor { return x.Select(in, 0, 1) },
		"Diagonal":       func(x *Exec, in *Tensor) *Tensor { return x.Diagonal(in, 0, 0, 1) },
		"Detach":         func(x *Exec, in *Tensor) *Tensor { return x.Detach(in) },
		"To":             func(x *Exec, in *Tensor) *Tensor { return x.To(in, Float32) },
		"ToFormat":       func(x *Exec, in *Tensor) *Tensor { return x.ToFormat(in, Float32, Contiguous) },
		"Contiguous":     func(x *Exec, in *Tensor) *Tensor { return x.Contiguous(in, Contiguous) },
		"Dropout":        func(x *Exec, in *Tensor) *Tensor { return x.Dropout(in, 0.5, false) },
	}
	for name, view := range views {
		err := DefaultStream(CPU).Do(func(x *Exec) error {
			in := x.Zeros(Float32, 3, 4)
			got := view(x, in)
			if got == in || !got.SharesMemory(in) {
				return errors.New("got a copy or the same handle, want a new handle of the same memory")
			}
			in.Close()
			got.Shape() // closing the input does not close the result
			x.FillInPlace(got, 1)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
