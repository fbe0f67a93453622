package cgotorch_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"math/cmplx"
	"os"
	"slices"
	"strings"
	"testing"
)

// A randomCase is a call that tests/parity/operators/cases.py writes, with what PyTorch does.
type randomCase struct {
	Go        string
	Args      []json.RawMessage
	Options   map[string]json.RawMessage
	Inputs    map[string]randomInput
	Outcome   string // "returns", "raises", "dies" of a signal; "unsound" returns what it must not
	Undefined bool   // the values of the results are undefined
	Results   []fixture
	Error     string
}

type randomInput struct {
	fixture
	Base []number // elements of the memory that Strides lead through; nil for a dense tensor
}

// TestOperators_Random compares the calls in the file CGOTORCH_OPERATOR_CASES with PyTorch. The
// script tests/parity/operators/run.sh writes this file and runs the test.
func TestOperators_Random(t *testing.T) {
	path := os.Getenv("CGOTORCH_OPERATOR_CASES")
	if path == "" {
		t.Skip("no file of cases: run tests/parity/operators/run.sh")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	now, err := os.Create(path + ".now") // the number of the case that runs, for when it ends the process
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	defer SetThreads(Threads())
	if err := SetThreads(1); err != nil { // some operators check more on several threads
		t.Fatal(err)
	}
	before := LiveHandles()["tensor"]
	lines := bufio.NewReader(file)
	count := make(map[string]int)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var c randomCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("case %d: %v", number, err)
		}
		if _, err := now.WriteAt(fmt.Appendf(nil, "%8d", number), 0); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains([]string{"returns", "raises", "dies", "unsound"}, c.Outcome) {
			continue
		}
		count[c.Outcome]++
		if difference := c.differs(); difference != "" {
			count["differ"]++
			t.Errorf("case %d: %s: %s", number, c.Go, difference)
		}
	}
	if after := LiveHandles()["tensor"]; after != before {
		t.Errorf("%d tensors are left", after-before)
	}
	fmt.Printf("cases: %v\n", count)
}

// differs runs the call and says how its outcome differs from PyTorch's, or "".
func (c randomCase) differs() string {
	difference := ""
	var malformed error
	err := DefaultStream(CPU).Do(func(x *Exec) error {
		Check(Seed(42))
		in := make(inputs)
		for name, input := range c.Inputs {
			in[name] = input.tensor(x)
		}
		got, first, err := callOperator(x, c.Go, c.Args, c.Options, in)
		if err != nil {
			malformed = err
			return err
		}
		if len(got) == 0 && len(c.Results) > 0 {
			got = first
		}
		if c.Outcome != "returns" {
			difference = fmt.Sprintf("returns %v, and PyTorch %s: %s", got, c.Outcome, c.Error)
			return nil
		}
		if len(got) != len(c.Results) {
			difference = fmt.Sprintf("got %d results, want %d", len(got), len(c.Results))
			return nil
		}
		for i, want := range c.Results {
			if d := want.near(x, got[i], c.Undefined, c.Go); d != "" && difference == "" {
				difference = fmt.Sprintf("result %d: %s", i, d)
			}
		}
		return nil
	})
	switch {
	case malformed != nil:
		return "the case is malformed: " + malformed.Error()
	case err != nil && c.Outcome == "returns" && difference == "":
		return "fails, and PyTorch returns: " + err.Error()
	}
	return difference
}

func (f randomInput) tensor(x *Exec) *Tensor {
	if f.Base == nil && f.Strides == nil {
		return f.dense(x, f.Data, f.Shape)
	}
	size := int64(len(f.Base))
	if strings.HasPrefix(f.DType, "complex") {
		size /= 2
	}
	if f.Base == nil { // a tensor without elements
		dtype, _ := ParseDType(f.DType)
		return x.EmptyStrided(dtype, f.Shape, f.Strides)
	}
	return x.AsStrided(f.dense(x, f.Base, []int64{size}), f.Shape, f.Strides, 0)
}

func (f randomInput) dense(x *Exec, data []number, shape []int64) *Tensor {
	return fixture{DType: f.DType, Shape: shape, Data: data}.tensor(x)
}

// near returns a text that says how a result differs from PyTorch's, or "".
func (f fixture) near(x *Exec, result any, undefined bool, name string) string {
	got, ok := result.(*Tensor)
	if !ok {
		return f.differs(x, result, 1e-6, false)
	}
	if got == nil {
		return "got nil"
	}
	if f.DType == "complex32" && got.DType() == 8 { // a dtype that has no name here
		f.DType = got.DType().String()
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
	if undefined {
		return ""
	}
	var values, wants []complex128
	if f.DType == "complex64" || f.DType == "complex128" || got.DType() == 8 {
		values = ToSlice[complex128](x, x.To(x.Detach(got), Complex128))
		for i := range len(f.Data) / 2 {
			wants = append(wants, complex(float64(f.Data[2*i]), float64(f.Data[2*i+1])))
		}
	} else {
		for i, v := range ToSlice[float64](x, x.To(x.Detach(got), Float64)) {
			values, wants = append(values, complex(v, 0)), append(wants, complex(float64(f.Data[i]), 0))
		}
	}
	relative := map[string]float64{"float64": 1e-10, "complex128": 1e-10, "float32": 2e-5, "complex64": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "dtype(8)": 2e-3}[f.DType]
	largest := 0.0
	for _, want := range wants {
		if size := cmplx.Abs(want); !math.IsInf(size, 0) && !math.IsNaN(size) {
			largest = max(largest, size)
		}
	}
	summed := strings.Contains(name, ".") // results of transforms and of linear algebra are as exact as their largest element
	for i, v := range values {
		if want := wants[i]; !sameNumber(real(v), real(want), relative, cmp.Or(largest*f64(summed), math.Abs(real(want)))) ||
			!sameNumber(imag(v), imag(want), relative, cmp.Or(largest*f64(summed), math.Abs(imag(want)))) {
			return fmt.Sprintf("element %d: got %v, want %v", i, v, want)
		}
	}
	return ""
}

func sameNumber(got, want, relative, size float64) bool {
	return got == want || math.IsNaN(got) && math.IsNaN(want) || math.Abs(got-want) <= relative*(size+1e-3)
}

func f64(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
