package aoti

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// checkOf writes the check of an input as AOTInductor does, with `lines` about its sizes.
func checkOf(i int, dtype string, lines ...string) string {
	text := fmt.Sprintf("static void check_input_%d(AtenTensorHandle* input_handles) {\n    ConstantHandle a%d = ConstantHandle(input_handles[%d]);\n"+
		"    int32_t a%d_expected_dtype = aoti_torch_dtype_%s();\n", i, i, i, i, dtype)
	for _, l := range lines {
		text += "    if (" + strings.ReplaceAll(l, "@", fmt.Sprintf("a%d", i)) + ") {\n"
	}
	return text + "}\n"
}

// source is that of a library with the inputs float32[2..64 3] and int64[2..64].
var source = checkOf(0, "float32", "@_size[0] < 2", "@_size[0] > 64", "3 != @_size[1]", "3 != @_stride[0]", "1 != @_stride[1]") +
	checkOf(1, "int64", "@_size[0] < 2", "@_size[0] > 64", "1 != @_stride[0]") +
	"void AOTInductorModel::run_impl(\n    int64_t s0 = a0_size[0];\n"

func TestParseInputs(t *testing.T) {
	const end = "void AOTInductorModel::run_impl(\n"
	for _, c := range []struct{ name, source, want string }{
		{"two", source, "[float32[2..64 3] int64[2..64]]"},
		{"none", end, "[]"},
		{"a number", checkOf(0, "bool") + end, "[bool[]]"},
		{"without an upper bound", checkOf(0, "float16", "@_size[0] < 2", "1 != @_stride[0]") + end + "int64_t s0 = a0_size[0];", "[float16[2..]]"},
		{"a size that is solved", checkOf(0, "float16", "@_size[0] < 4") + end + "int64_t a0_0 = a0_size[0];\nint64_t s0 = a0_0 / 2;", "[float16[4..]]"},
		{"a computed size", checkOf(0, "int8", "@_size[0] < 2") + checkOf(1, "int8", "@_size[0] < 4") + end + "int64_t s0 = a0_size[0];",
			"dimension 0 of input 1, with sizes from 4 to 9223372036854775807, is computed from other sizes"},
		{"a stride that changes", checkOf(0, "int8", "@_size[0] < 2") + end + "int64_t s0 = a0_size[0];\nint64_t s1 = a0_stride[0];", "input 0 has strides that change"},
		{"an unknown dtype", checkOf(0, "float8_e5m2") + end, "dtype float8_e5m2"},
		{"no dtype", "ConstantHandle a0 = ConstantHandle(input_handles[0]);" + end, "input 0 is no tensor"},
		{"a gap", checkOf(1, "int8") + end, "input 1 where input 0 is expected"},
		{"another text", "int main() {}", "no function run_impl"},
		{"a huge dimension", checkOf(0, "int8", "3 != @_size[999]") + end, "input 0 is no tensor"},
	} {
		inputs, err := parseInputs(c.source)
		got := fmt.Sprint(inputs)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMatch(t *testing.T) {
	inputs, err := parseInputs(source)
	if err != nil {
		t.Fatal(err)
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			floats := func(shape ...int64) *cgotorch.Tensor { return x.Zeros(cgotorch.Float32, shape...) }
			integers := func(shape ...int64) *cgotorch.Tensor { return x.Zeros(cgotorch.Int64, shape...) }
			closed := integers(4)
			closed.Close()
			for _, c := range []struct {
				name string
				ts   []*cgotorch.Tensor
				want string
			}{
				{"right", []*cgotorch.Tensor{floats(4, 3), integers(4)}, ""},
				{"one", []*cgotorch.Tensor{floats(4, 3)}, "got 1 inputs, want 2"},
				{"nil", []*cgotorch.Tensor{nil, integers(4)}, "input 0 is nil"},
				{"closed", []*cgotorch.Tensor{floats(4, 3), closed}, "input 1 is closed"},
				{"dtype", []*cgotorch.Tensor{integers(4, 3), integers(4)}, "input 0: got int64[4 3], want float32[2..64 3]"},
				{"dimensions", []*cgotorch.Tensor{floats(4, 3), integers(4, 1)}, "input 1: got int64[4 1], want int64[2..64]"},
				{"fixed size", []*cgotorch.Tensor{floats(4, 2), integers(4)}, "got float32[4 2], want"},
				{"small", []*cgotorch.Tensor{floats(1, 3), integers(1)}, "got float32[1 3], want"},
				{"large", []*cgotorch.Tensor{floats(65, 3), integers(65)}, "got float32[65 3], want"},
				{"equal sizes", []*cgotorch.Tensor{floats(4, 3), integers(3)}, "with 3 in dimension 0, and input 0 has 4 in dimension 0"},
				{"strides", []*cgotorch.Tensor{x.Transpose(floats(3, 4), 0, 1), integers(4)}, "with the strides [1 4], want [3 1]: use x.Contiguous(input, cgotorch.Contiguous)"},
				{"every second", []*cgotorch.Tensor{floats(4, 3), x.AsStrided(integers(8), []int64{4}, []int64{2}, 0)}, "with the strides [2], want [1]"},
			} {
				err := match(inputs, d, c.ts)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: got %v, want %q", c.name, err, c.want)
				}
			}
		})
	})
}

func TestInput_ChannelsLast(t *testing.T) {
	last := checkOf(0, "float32", "@_size[0] < 2", "3 != @_size[1]", "@_size[2] < 2", "@_size[3] < 2", "1 != @_stride[1]", "3 != @_stride[3]") +
		"void AOTInductorModel::run_impl(\nint64_t s0 = a0_size[0]; int64_t s1 = a0_size[2]; int64_t s2 = a0_size[3];"
	inputs, err := parseInputs(last)
	if err != nil {
		t.Fatal(err)
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		rows := x.Zeros(cgotorch.Float32, 2, 3, 5, 7)
		if err := match(inputs, cgotorch.CPU, []*cgotorch.Tensor{rows}); err == nil || !strings.Contains(err.Error(), "cgotorch.ChannelsLast") {
			t.Errorf("rows: got %v", err)
		}
		if err := match(inputs, cgotorch.CPU, []*cgotorch.Tensor{x.Contiguous(rows, cgotorch.ChannelsLast)}); err != nil {
			t.Errorf("channels last: got %v", err)
		}
		if err := match(inputs, cgotorch.CPU, sample(x, inputs)); err != nil {
			t.Errorf("the sample: got %v", err)
		}
	})
}

// Two sizes with the bounds of a third one: the source does not say which of them it equals.
func TestMatch_SizesWithEqualBounds(t *testing.T) {
	source := checkOf(0, "float32", "@_size[0] < 2", "@_size[1] < 2") + checkOf(1, "float32", "@_size[0] < 2", "@_size[1] < 2") +
		"void AOTInductorModel::run_impl(\nint64_t s0 = a0_size[0]; int64_t s1 = a0_size[1];"
	inputs, err := parseInputs(source)
	if err != nil {
		t.Fatal(err)
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		if err := match(inputs, cgotorch.CPU, []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 3, 1000), x.Zeros(cgotorch.Float32, 3, 3)}); err == nil || !strings.Contains(err.Error(), "equal bounds") {
			t.Errorf("got %v", err)
		}
		if err := match(inputs, cgotorch.CPU, []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 3, 3), x.Zeros(cgotorch.Float32, 3, 3)}); err != nil {
			t.Errorf("equal sizes: got %v", err)
		}
	})
}
