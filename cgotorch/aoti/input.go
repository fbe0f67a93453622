package aoti

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// An Input describes an input of a package.
type Input struct {
	DType cgotorch.DType
	Shape []Size
	// Strides are the distances between neighbours along each dimension. They are in elements, as in
	// [cgotorch.Tensor.Strides]. -1 stands for a stride that depends on sizes.
	Strides []int64
	Host    bool // the input lies on the CPU, also for a package that runs on a GPU
}

// A Size is the size of one dimension of an input.
type Size struct {
	Min, Max int64 // the sizes that are accepted; equal for a fixed size

	own  bool // the library reads the size from this input
	like [][2]int
	// The dimensions in `like`, as {input, dimension}, have the same bounds and are read by the
	// library. If `own` is false, the library uses one of them also for this dimension.
}

// String returns a text such as "float32[2..64 3]".
func (in Input) String() string {
	parts := make([]string, len(in.Shape))
	for i, s := range in.Shape {
		switch {
		case s.Min == s.Max:
			parts[i] = fmt.Sprint(s.Min)
		case s.Max == math.MaxInt64:
			parts[i] = fmt.Sprintf("%d..", s.Min)
		default:
			parts[i] = fmt.Sprintf("%d..%d", s.Min, s.Max)
		}
	}
	return fmt.Sprintf("%v[%s]", in.DType, strings.Join(parts, " "))
}

// Note [What a compiled library accepts]
//
// A compiled library does not look at its inputs. It reads memory with the dtype, sizes and strides
// that it was compiled for. With other inputs it would read memory that is not there. Its source,
// which is in the package, has a function check_input_N for each input. The library calls these
// functions only if an environment variable is set. Here the source is read instead.
//
// The functions give bounds for sizes that may change. They do not say which of these sizes are
// equal. But the source reads each independent size from one input, as in
// "int64_t s0 = arg0_1_size[0];". A dimension that is not read equals one that is read, or is
// computed from it. Equal dimensions have equal bounds. torch.export computes sizes only as
// a * size + b, which has other bounds. So a dimension that is not read must equal a dimension that
// is read and has its bounds. If there is none, the package is refused. If there are several, the
// source does not say which one. Then a call is refused in which they differ.

var (
	inputName   = regexp.MustCompile(`ConstantHandle (\w+) = ConstantHandle\(input_handles\[(\d{1,6})\]\);`)
	inputDType  = regexp.MustCompile(`int32_t (\w+)_expected_dtype = aoti_torch_dtype_(\w+)\(\);`)
	fixedSize   = regexp.MustCompile(`if \((\d+)L? != (\w+)_size\[(\d{1,3})\]\)`)
	boundedSize = regexp.MustCompile(`if \((\w+)_size\[(\d{1,3})\] ([<>]) (\d+)L?\)`)
	fixedStride = regexp.MustCompile(`if \((\d+)L? != (\w+)_stride\[(\d{1,3})\]\)`)
	inputDevice = regexp.MustCompile(`int32_t (\w+)_expected_device_type = (\d+);`)
	readSize    = regexp.MustCompile(`int64_t \w+ = (\w+)_(size|stride)\[(\d{1,3})\];`)
)

const mostDims = 64

// parseInputs reads what inputs a library accepts from its source. See Note [What a compiled
// library accepts].
func parseInputs(source string) ([]Input, error) {
	start := strings.Index(source, "AOTInductorModel::run_impl(")
	if start < 0 {
		return nil, fmt.Errorf("its source has no function run_impl")
	}
	checks, body := source[:start], source[start:]
	numbers := map[string]int{}
	var inputs []Input
	for _, m := range inputName.FindAllStringSubmatch(checks, -1) {
		if n, _ := strconv.Atoi(m[2]); n != len(inputs) {
			return nil, fmt.Errorf("its source checks input %d where input %d is expected", n, len(inputs))
		}
		numbers[m[1]] = len(inputs)
		inputs = append(inputs, Input{DType: -1})
	}
	of := func(name string) *Input {
		if i, ok := numbers[name]; ok {
			return &inputs[i]
		}
		return &Input{} // of a graph inside the model
	}
	for _, m := range inputDType.FindAllStringSubmatch(checks, -1) {
		dtype, err := cgotorch.ParseDType(m[2])
		if err != nil {
			return nil, fmt.Errorf("an input has the dtype %.40s, for which Go has no name", m[2])
		}
		of(m[1]).DType = dtype
	}
	for _, m := range inputDevice.FindAllStringSubmatch(checks, -1) {
		of(m[1]).Host = m[2] == "0"
	}
	for _, m := range fixedSize.FindAllStringSubmatch(checks, -1) {
		s := of(m[2]).dimension(m[3])
		s.Min, s.Max = number(m[1]), number(m[1])
	}
	for _, m := range boundedSize.FindAllStringSubmatch(checks, -1) {
		s := of(m[1]).dimension(m[2])
		if m[3] == "<" {
			s.Min = number(m[4])
		} else {
			s.Max = number(m[4])
		}
	}
	for _, m := range fixedStride.FindAllStringSubmatch(checks, -1) {
		in := of(m[2])
		in.dimension(m[3])
		in.Strides[number(m[3])] = number(m[1])
	}
	for _, m := range readSize.FindAllStringSubmatch(body, -1) {
		in := of(m[1])
		if n := int(number(m[3])); n < len(in.Shape) && m[2] == "size" {
			in.Shape[n].own = true
		} else if n < len(in.Shape) {
			return nil, fmt.Errorf("input %d has strides that change: compile it with an input that is contiguous", numbers[m[1]])
		}
	}
	return inputs, link(inputs)
}

// link finds the dimensions that must be equal.
func link(inputs []Input) error {
	read := map[[2]int64][][2]int{}
	for i, in := range inputs {
		if in.DType < 0 || len(in.Shape) > mostDims {
			return fmt.Errorf("input %d is no tensor whose dtype and shape its source says", i)
		}
		for k, s := range in.Shape {
			if s.own {
				read[[2]int64{s.Min, s.Max}] = append(read[[2]int64{s.Min, s.Max}], [2]int{i, k})
			}
		}
	}
	for i := range inputs {
		for k := range inputs[i].Shape {
			s := &inputs[i].Shape[k]
			if s.own || s.Min == s.Max {
				continue
			}
			if s.like = read[[2]int64{s.Min, s.Max}]; s.like == nil {
				return fmt.Errorf("dimension %d of input %d, with sizes from %d to %d, is computed from other sizes", k, i, s.Min, s.Max)
			}
		}
	}
	return nil
}

// dimension returns the size of a dimension, and makes the dimension if it is not there yet.
func (in *Input) dimension(text string) *Size {
	n := int(number(text))
	for len(in.Shape) <= n {
		in.Shape = append(in.Shape, Size{Min: 0, Max: math.MaxInt64})
		in.Strides = append(in.Strides, -1)
	}
	return &in.Shape[n]
}

// number returns the value of a text of digits, or the largest integer if it is larger.
func number(digits string) int64 {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// match returns why the library does not accept the tensors, or nil.
func match(inputs []Input, d cgotorch.Device, ts []*cgotorch.Tensor) error {
	if len(ts) != len(inputs) {
		return fmt.Errorf("got %d inputs, want %d", len(ts), len(inputs))
	}
	shapes := make([][]int64, len(ts))
	for i, t := range ts {
		switch {
		case t == nil:
			return fmt.Errorf("input %d is nil", i)
		case t.Closed():
			return fmt.Errorf("input %d is %w", i, cgotorch.ErrClosed)
		}
		shapes[i] = t.Shape()
		if err := inputs[i].match(t.DType(), shapes[i], t.Strides()); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		want := d
		if inputs[i].Host {
			want = cgotorch.CPU
		}
		if t.Device() != want {
			return fmt.Errorf("input %d is on %v, want %v", i, t.Device(), want)
		}
	}
	for i := range inputs {
		for k, s := range inputs[i].Shape {
			if s.like == nil {
				continue
			}
			at := s.like[0]
			for _, other := range s.like {
				if shapes[other[0]][other[1]] != shapes[at[0]][at[1]] {
					return fmt.Errorf("the sizes %d of input %d and %d of input %d have equal bounds, so it is not known which one dimension %d of input %d equals: give equal sizes, or export with different min or max",
						shapes[at[0]][at[1]], at[0], shapes[other[0]][other[1]], other[0], k, i)
				}
			}
			if shapes[at[0]][at[1]] != shapes[i][k] {
				return fmt.Errorf("input %d is %s with %d in dimension %d, and input %d has %d in dimension %d: they must be equal",
					i, ts[i].String(), shapes[i][k], k, at[0], shapes[at[0]][at[1]], at[1])
			}
		}
	}
	return nil
}

func (in *Input) match(dtype cgotorch.DType, shape, strides []int64) error {
	describe := func() string { return fmt.Sprintf("%v%v", dtype, shape) }
	if dtype != in.DType || len(shape) != len(in.Shape) {
		return fmt.Errorf("got %s, want %v", describe(), in)
	}
	empty := false
	for k, n := range shape {
		if n < in.Shape[k].Min || n > in.Shape[k].Max {
			return fmt.Errorf("got %s, want %v", describe(), in)
		}
		empty = empty || n == 0
	}
	if empty {
		return nil
	}
	want := in.stridesOf(shape)
	for k, n := range shape {
		if n > 1 && strides[k] != want[k] {
			return fmt.Errorf("got %s with the strides %v, want %v: use %s", describe(), strides, want, copyFor(shape, want))
		}
	}
	return nil
}

// copyFor names the copy that has the strides.
func copyFor(shape, strides []int64) string {
	if slices.Equal(strides, channelsLast(shape)) && !slices.Equal(strides, rowMajor(shape)) {
		return "x.Contiguous(input, cgotorch.ChannelsLast)"
	}
	return "x.Contiguous(input, cgotorch.Contiguous)"
}

// stridesOf returns the strides for a shape. Strides that depend on sizes are those of channels
// last if the other strides fit, and else those in row-major order.
func (in *Input) stridesOf(shape []int64) []int64 {
	fits := func(candidate []int64) bool {
		for k, s := range in.Strides {
			if s >= 0 && shape[k] > 1 && s != candidate[k] {
				return false
			}
		}
		return candidate != nil
	}
	strides := rowMajor(shape)
	if last := channelsLast(shape); !fits(strides) && fits(last) {
		strides = last
	}
	for k, s := range in.Strides {
		if s >= 0 {
			strides[k] = s
		}
	}
	return strides
}

func rowMajor(shape []int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for k := len(shape) - 1; k >= 0; k-- {
		strides[k] = step
		step *= max(1, shape[k])
	}
	return strides
}

// channelsLast returns nil for shapes that have no such order.
func channelsLast(shape []int64) []int64 {
	if len(shape) != 4 && len(shape) != 5 {
		return nil
	}
	strides, step := make([]int64, len(shape)), int64(1)
	for _, k := range append([]int{1}, []int{4, 3, 2, 0}[5-len(shape):]...) {
		strides[k] = step
		step *= max(1, shape[k])
	}
	return strides
}

// sample makes the smallest inputs, filled with zeros.
func sample(x *cgotorch.Exec, inputs []Input) []*cgotorch.Tensor {
	ts := make([]*cgotorch.Tensor, len(inputs))
	for i, in := range inputs {
		shape := make([]int64, len(in.Shape))
		for k, s := range in.Shape {
			shape[k] = s.Min
		}
		strides, span := in.stridesOf(shape), int64(1)
		for k, n := range shape {
			span += (n - 1) * strides[k]
			if n == 0 {
				span = 0
				break
			}
		}
		zeros := []any{[]int64{span}, in.DType}
		if in.Host {
			zeros = append(zeros, cgotorch.Default, "cpu")
		}
		ts[i] = x.AsStrided(x.Call1("aten::zeros", zeros...), shape, strides, 0)
	}
	return ts
}
