package cgotorch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Note [Arguments that end the process]
//
// LibTorch 2.11 does not check some arguments before it divides by them or reads memory with them.
// The process then ends with SIGFPE or SIGSEGV, which no Do can turn into an error. For others the
// results are memory that nobody has written. The function guardOf names these operators. A call
// with such arguments is refused before LibTorch sees it.
//
// TestOperators_EndNoProcess finds such arguments: it runs random calls in child processes, and so
// does tests/parity/operators. A guard that looks at values does so on the CPU alone, where it
// waits for nothing. CUDA's kernels neither trap nor leave their matrices, and those of fused
// optimizer steps compare the shapes themselves.

// A guard returns the reason why a call would end the process, or "".
type guard func(c *call) string

// guardOf returns the guard of the operator with the given name, whatever its overload, or nil.
func guardOf(name string) guard {
	base, _, _ := strings.Cut(name, ".")
	if strings.Contains(base, "_polynomial_") {
		return guardPolynomial
	}
	switch base {
	case "aten::arange", "aten::range":
		return guardArange
	case "aten::ctc_loss", "aten::_ctc_loss":
		return guardCTC
	case "aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only":
		return guardEmbeddingBag
	case "aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d":
		return guardGridSample
	case "aten::lu_unpack":
		return guardLUUnpack
	case "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu":
		return guardAttention
	case "aten::lcm", "aten::lcm_":
		return guardLCM
	case "aten::div", "aten::div_", "aten::divide", "aten::divide_":
		if !strings.HasSuffix(name, "_mode") {
			return nil // a quotient of floats
		}
		return func(c *call) string {
			if arguments := c.arguments(); len(arguments) < 3 || arguments[2].kind != ct.ArgString {
				return ""
			}
			return guardDivision(c)
		}
	case "aten::floor_divide", "aten::floor_divide_", "aten::fmod", "aten::fmod_", "aten::remainder", "aten::remainder_":
		return guardDivision
	case "aten::linalg_matrix_power", "aten::matrix_power":
		return guardMatrixPower
	case "aten::linalg_ldl_solve":
		return guardLDLSolve
	case "aten::_fused_adam_", "aten::_fused_adamw_":
		return func(c *call) string { return c.guardFused(5) }
	case "aten::_fused_sgd_", "aten::_fused_adagrad_":
		return func(c *call) string { return c.guardFused(3) }
	case "aten::linalg_eigvals", "aten::_linalg_eigvals":
		return guardEigenvalues
	}
	return nil
}

// guardArange refuses an Int64 range with a step that is 0 as an integer, because LibTorch divides
// by it. It also refuses numbers that are no int64, for which LibTorch fails without a kind.
func guardArange(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 4 {
		return ""
	}
	integer := arguments[3].kind == ct.ArgInt && DType(arguments[3].word) == Int64 // the dtype
	if out := arguments[3].handle(); out != nil {
		var info ct.TensorInfo
		ct.TensorDescribe(out, &info)
		integer = DType(info.DType) == Int64
	}
	if !integer {
		return ""
	}
	for i, name := range []string{"start", "end", "step"} {
		v := math.Float64frombits(arguments[i].word)
		switch {
		case arguments[i].kind != ct.ArgFloat:
		case !(math.Abs(v) < 1<<63):
			return fmt.Sprintf("the %s %v is no int64", name, v)
		case name == "step" && v != 0 && math.Abs(v) < 1: // LibTorch refuses 0
			return fmt.Sprintf("the step %v is 0 as an int64", v)
		}
	}
	return ""
}

// guardAttention refuses keys and values without heads. LibTorch divides by their number. It does
// so on each device for grouped queries, and otherwise on the CPU if no other dimension is 0.
func guardAttention(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 3 {
		return ""
	}
	query, key := arguments[0].shape(), arguments[1].shape()
	grouped := len(arguments) > 7 && arguments[7].kind == ct.ArgBool && arguments[7].word != 0
	if len(query) < 3 || len(key) < 3 {
		return ""
	}
	if key[len(key)-3] != 0 {
		if !grouped {
			return ""
		}
		if value := arguments[2].shape(); len(value) >= 3 && value[len(value)-3] == 0 {
			return "value has no heads"
		}
		return ""
	}
	n := len(query)
	if grouped || !c.x.Device().IsCUDA() && n == 4 && query[1] == 0 && query[2] > 0 && query[3] > 0 && key[len(key)-2] > 0 {
		return "key has no heads"
	}
	return ""
}

// guardCTC refuses labels that are no classes. LibTorch reads the probabilities at these places. It
// does not look at labels on a CUDA device.
func guardCTC(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 4 {
		return ""
	}
	probabilities, shape := arguments[0].shape(), arguments[1].shape()
	labels, lengths := c.hostInts(arguments[1]), c.hostInts(arguments[3])
	if len(probabilities) == 0 || len(shape) == 0 || len(shape) > 2 {
		return "" // LibTorch refuses the shape
	}
	classes, from := probabilities[len(probabilities)-1], int64(0)
	for sample, n := range lengths {
		if len(shape) == 2 {
			from = int64(sample) * shape[1]
		}
		if n < 0 || n > int64(len(labels))-from {
			return "" // LibTorch refuses the length
		}
		for k, label := range labels[from : from+n] {
			if label < 0 || label >= classes {
				return fmt.Sprintf("label %d of sample %d is %d; labels are from 0 to %d, the number of classes - 1", k, sample, label, classes-1)
			}
		}
		from += n
	}
	return ""
}

// guardLUUnpack refuses pivots of another shape than the matrices. LibTorch reads behind them.
func guardLUUnpack(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 2 || len(arguments) > 3 && arguments[3].kind == ct.ArgBool && arguments[3].word == 0 {
		return "" // without unpack_pivots the pivots are not read
	}
	lu, pivots := arguments[0].shape(), arguments[1].shape()
	if len(lu) < 2 {
		return ""
	}
	batch, size := lu[:len(lu)-2], min(lu[len(lu)-2], lu[len(lu)-1])
	if want := append(slices.Clone(batch), size); !slices.Equal(pivots, want) {
		return fmt.Sprintf("the pivots have the shape %v, and those of these matrices have %v", pivots, want)
	}
	return ""
}

// guardEmbeddingBag refuses indices and offsets that are no vectors, indices that are in no bag,
// and a mode that is none.
func guardEmbeddingBag(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 3 {
		return ""
	}
	indices, offsets := arguments[1].shape(), arguments[2].shape()
	switch {
	case arguments[1].handle() == nil || arguments[2].handle() == nil:
		return "" // LibTorch refuses None
	case len(indices) != 1 || len(offsets) != 1:
		return "indices and offsets must be vectors"
	case offsets[0] == 0 && indices[0] > 0:
		return "there is no offset, so the indices are in no bag"
	case len(arguments) > 4 && arguments[4].kind == ct.ArgInt && arguments[4].word > 2:
		return fmt.Sprintf("there is no mode %d: 0 is the sum, 1 the mean and 2 the maximum", int64(arguments[4].word))
	}
	return ""
}

// guardGridSample refuses modes that are none. LibTorch then leaves the result as it is.
func guardGridSample(c *call) string {
	arguments := c.arguments()
	for i, name := range []string{"interpolation", "padding"} {
		if len(arguments) > 2+i && arguments[2+i].kind == ct.ArgInt && arguments[2+i].word > 2 {
			return fmt.Sprintf("there is no %s mode %d: the modes are 0, 1 and 2", name, int64(arguments[2+i].word))
		}
	}
	return ""
}

// guardDivision refuses the smallest Int32 or Int64 as the dividend of -1, on the CPU. The quotient
// is no number of the dtype, and the processor raises SIGFPE, for the remainder too.
func guardDivision(c *call) string {
	return c.guardSmallest(-1, true, "divided by -1")
}

// guardLCM refuses the smallest Int32 or Int64 as the first of two numbers, on the CPU, unless the
// other is 0. No such multiple is a number of the dtype. LibTorch divides by a divisor that may be
// -1.
func guardLCM(c *call) string {
	return c.guardSmallest(0, false, "in a least common multiple")
}

// guardSmallest refuses the smallest number of the dtype in the first argument, where the second is
// `other`, or where it is not, as `is` says.
func (c *call) guardSmallest(other int64, is bool, where string) string {
	arguments := c.arguments()
	if len(arguments) < 2 {
		return ""
	}
	a, b := arguments[0], arguments[1]
	dtype := c.commonInteger(a, b)
	if dtype != Int64 && dtype != Int32 {
		return ""
	}
	least := int64(math.MinInt64)
	if dtype == Int32 {
		least = math.MinInt32
	}
	if is && !c.anyInt(b, other, true) || !c.anyInt(a, least, true) || !is && !c.anyInt(b, other, false) {
		return ""
	}
	if a.handle() != nil && b.handle() != nil { // are the two in one place?
		both := func(x *Exec) *Tensor {
			first, second := x.EqScalar(c.second(a), least), x.EqScalar(c.second(b), other)
			if !is {
				second = x.LogicalNot(second)
			}
			return x.LogicalAnd(first, second)
		}
		if !c.any(both) {
			return ""
		}
	}
	return fmt.Sprintf("%d, the smallest %v, is %s, and the result is no %[2]v: convert to a wider dtype, or test with x.Eq", least, dtype, where)
}

// guardMatrixPower refuses the exponent whose negative is no int64. LibTorch's loop then has no
// end.
func guardMatrixPower(c *call) string {
	if arguments := c.arguments(); len(arguments) > 1 && arguments[1].kind == ct.ArgInt && int64(arguments[1].word) == math.MinInt64 {
		return "the exponent is the smallest int64, whose negative is no int64"
	}
	return ""
}

// mostOrder is the largest order of a polynomial, above which float32 lacks integers. LibTorch
// makes a step for each order, so this one takes some 0.1 s for each element.
const mostOrder = 1 << 24

// guardPolynomial refuses an order for which LibTorch's loop takes hours, or has no end. It looks
// at a number, and at a tensor on the CPU.
func guardPolynomial(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 2 {
		return ""
	}
	n := arguments[1]
	above := n.kind == ct.ArgInt && int64(n.word) > mostOrder || n.kind == ct.ArgFloat && math.Float64frombits(n.word) > mostOrder
	if h := n.handle(); h != nil {
		t := c.second(n)
		above = !t.Device().IsCUDA() && t.DType() != Complex64 && t.DType() != Complex128 && c.any(func(x *Exec) *Tensor { return x.GtScalar(x.To(t, Float64), mostOrder) })
	}
	if above {
		return fmt.Sprintf("an order is above %d", mostOrder)
	}
	return ""
}

// any reports whether an element of a tensor of bools is true. The function `test` makes the
// tensor, on the CPU.
func (c *call) any(test func(x *Exec) *Tensor) bool {
	x := c.x.NoGrad().NoAutocast()
	found := x.Tidy(func() *Tensor { return x.Any(test(x)) })
	defer found.Close()
	memory := ct.TensorMemory(found.h)
	return memory != nil && *(*bool)(memory)
}

// guardLDLSolve refuses pivots on the CPU that LDLFactor cannot have returned. LAPACK takes them
// for the numbers of rows, and a run of negative ones for pairs.
func guardLDLSolve(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 2 {
		return ""
	}
	shape := arguments[1].shape()
	if len(shape) == 0 || shape[len(shape)-1] == 0 {
		return ""
	}
	rows, negative := shape[len(shape)-1], 0
	for i, pivot := range c.hostInts(arguments[1]) {
		if pivot == 0 || pivot > rows || pivot < -rows {
			return fmt.Sprintf("pivot %d is %d; pivots are from 1 to %d, the number of rows, or the negatives of these: give those of LDLFactor", i, pivot, rows)
		}
		if pivot < 0 {
			negative++
		}
		if last := int64(i+1)%rows == 0; negative%2 == 1 && (last || pivot > 0) {
			return fmt.Sprintf("the negative pivots before number %d are no pairs: give those of LDLFactor", i+1)
		} else if last || pivot > 0 {
			negative = 0
		}
	}
	return ""
}

// guardFused refuses, on the CPU, lists of tensors that are not as long as the list of parameters,
// and tensors that differ from their parameters in size or order. LibTorch reads and writes as many
// numbers as the parameter has. The first `lists` arguments have the sizes of the parameters. An
// empty list stands for no state.
func (c *call) guardFused(lists int) string {
	arguments := c.arguments()
	if len(arguments) < lists || len(arguments[0].tensors) == 0 || arguments[0].tensors[0] == nil {
		return ""
	}
	params := arguments[0].tensors
	var info ct.TensorInfo
	if ct.TensorDescribe(params[0], &info); deviceOf(info.Device).IsCUDA() {
		return "" // LibTorch compares them
	}
	for l, list := range arguments[1:lists] {
		if len(list.tensors) != len(params) && len(list.tensors) > 0 {
			return fmt.Sprintf("list %d has %d tensors, and there are %d parameters", l+1, len(list.tensors), len(params))
		}
		for i, h := range list.tensors {
			p, own := passed{tensors: params[i : i+1]}, passed{tensors: []*ct.Tensor{h}}
			switch {
			case h == nil || params[i] == nil:
				return fmt.Sprintf("tensor %d of list %d is nil", i, l+1)
			case !slices.Equal(p.shape(), own.shape()) || !slices.Equal(p.strides(), own.strides()):
				return fmt.Sprintf("tensor %d of list %d has the shape %v and strides %v, and its parameter %v and %v", i, l+1, own.shape(), own.strides(), p.shape(), p.strides())
			case !p.isDense():
				return fmt.Sprintf("parameter %d, of shape %v and strides %v, does not fill its memory: give x.Contiguous of it", i, p.shape(), p.strides())
			}
		}
	}
	return ""
}

// commonInteger returns the dtype in which LibTorch computes with arguments on the CPU. It returns
// Bool if one of them is no integer, or has an unsigned dtype above Uint8.
func (c *call) commonInteger(arguments ...passed) DType {
	dtype, dims := DType(-1), 0
	for _, p := range arguments {
		h := p.handle()
		if h == nil {
			if p.kind != ct.ArgInt {
				return Bool
			}
			continue
		}
		var info ct.TensorInfo
		ct.TensorDescribe(h, &info)
		of := DType(info.DType)
		switch {
		case deviceOf(info.Device).IsCUDA():
			return Bool
		case of == Bool:
			of = Uint8 // as narrow
		case of > Int64:
			return Bool
		}
		// A tensor without dimensions does not widen one with dimensions.
		switch own := min(int(info.Dims), 1); {
		case dtype < 0 || own > dims:
			dtype, dims = of, own
		case own == dims:
			dtype = max(dtype, of) // LibTorch numbers the integers by their width
		}
	}
	if dtype < 0 {
		return Int64 // two numbers
	}
	return dtype
}

// anyInt reports whether a number, or an element of a tensor on the CPU, equals v. With `equal`
// false it reports whether one differs from v.
func (c *call) anyInt(p passed, v int64, equal bool) bool {
	if p.handle() == nil {
		return (int64(p.word) == v) == equal
	}
	return c.any(func(x *Exec) *Tensor {
		if equal {
			return x.EqScalar(c.second(p), v)
		}
		return x.NeScalar(c.second(p), v)
	})
}

// second returns a second name of a tensor that is an argument. The argument frees it.
func (c *call) second(p passed) *Tensor { return &Tensor{h: p.handle(), owner: c.x.s} }

// guardEigenvalues refuses NaN and Inf on the CPU. LAPACK's loops then read behind the matrix.
func guardEigenvalues(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 1 || arguments[0].handle() == nil {
		return ""
	}
	t := c.second(arguments[0])
	if dtype := t.DType(); t.Device().IsCUDA() || !dtype.IsFloat() && dtype != Complex64 && dtype != Complex128 {
		return ""
	}
	if !c.any(func(x *Exec) *Tensor { return x.LogicalNot(x.IsFinite(t)) }) {
		return ""
	}
	return "the matrices have NaN or Inf: test them with x.IsFinite"
}

// A passed argument is one of the arguments of a call.
type passed struct {
	kind    uint64
	word    uint64   // the value of a number, or the length of a list
	list    []uint64 // the values of a list of numbers
	tensors []*ct.Tensor
}

// handle returns the handle of a tensor, or nil.
func (p passed) handle() *ct.Tensor {
	if len(p.tensors) == 0 {
		return nil
	}
	return p.tensors[0]
}

// shape and strides return those of a tensor, or nil.
func (p passed) shape() []int64   { return (&Tensor{h: p.handle()}).Shape() }
func (p passed) strides() []int64 { return (&Tensor{h: p.handle()}).Strides() }

// isDense reports whether the elements of a tensor lie one behind another, in any order.
func (p passed) isDense() bool {
	shape, strides := p.shape(), p.strides()
	last, elements := int64(0), int64(1)
	for i, size := range shape {
		if size > 1 && strides[i] <= 0 {
			return false
		}
		last += (size - 1) * strides[i]
		elements *= size
	}
	return elements == 0 || last == elements-1
}

// hostInts returns the elements of a list, or of a tensor on the CPU, as LibTorch casts them to
// Int64. For all else it returns nil.
func (c *call) hostInts(p passed) []int64 {
	var values []int64
	for _, word := range p.list {
		values = append(values, int64(word))
	}
	h := p.handle()
	if h == nil {
		return values
	}
	var info ct.TensorInfo
	ct.TensorDescribe(h, &info)
	if deviceOf(info.Device).IsCUDA() || info.Elements == 0 {
		return nil
	}
	x := c.x.NoGrad().NoAutocast()
	t := x.Tidy(func() *Tensor { return x.Contiguous(x.To(c.second(p), Int64), Contiguous) })
	defer t.Close()
	memory := ct.TensorMemory(t.h)
	if memory == nil {
		return nil
	}
	return slices.Clone(unsafe.Slice((*int64)(memory), info.Elements))
}

// arguments returns the arguments of the call up to those that take their defaults.
func (c *call) arguments() []passed {
	var all []passed
	words, tensors := c.Words, c.Tensors
	for len(words) > 0 && words[0] != ct.ArgRestDefault {
		p, size := passed{kind: words[0]}, uint64(1)
		if len(words) > 1 {
			p.word = words[1]
		}
		count := 0
		switch p.kind {
		case ct.ArgTensor:
			count = 1
		case ct.ArgTensors:
			size, count = 2, int(p.word)
		case ct.ArgInt, ct.ArgFloat, ct.ArgBool:
			size = 2
		case ct.ArgComplex:
			size = 3
		case ct.ArgInts, ct.ArgFloats, ct.ArgBools:
			size = 2 + p.word
			if size <= uint64(len(words)) {
				p.list = words[2:size]
			}
		case ct.ArgScalars:
			size = 2 + 2*p.word
		case ct.ArgString:
			size = 2 + (p.word+7)/8
		}
		if size > uint64(len(words)) || count > len(tensors) {
			return all // the core refuses the call
		}
		p.tensors = tensors[:count]
		all, words, tensors = append(all, p), words[size:], tensors[count:]
	}
	return all
}
