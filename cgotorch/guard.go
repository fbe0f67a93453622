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
// tests/parity/operators finds such arguments: it runs random calls in child processes. Two cases
// that it found stay: arguments in them are right by shape and wrong by value, or are lists of many
// tensors. DivTrunc of the smallest Int32 or Int64 by -1 is one. A fused optimizer step with
// gradients of other shapes than their parameters is the other.

// A guard returns the reason why a call would end the process, or "".
type guard func(c *call) string

// guardOf returns the guard of the operator with the given name, whatever its overload, or nil.
func guardOf(name string) guard {
	base, _, _ := strings.Cut(name, ".")
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

// guardAttention refuses keys without heads. LibTorch divides by their number. It does so on each
// device for grouped queries, and otherwise on the CPU if no other dimension is 0.
func guardAttention(c *call) string {
	arguments := c.arguments()
	if len(arguments) < 3 {
		return ""
	}
	query, key := arguments[0].shape(), arguments[1].shape()
	if len(query) < 3 || len(key) < 3 || key[len(key)-3] != 0 {
		return ""
	}
	grouped := len(arguments) > 7 && arguments[7].kind == ct.ArgBool && arguments[7].word != 0
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

// A passed argument is one of the arguments of a call.
type passed struct {
	kind    uint64
	word    uint64   // the value of a number, or the length of a list
	list    []uint64 // the values of a list of numbers
	tensors []*ct.Tensor
}

// The method `handle` returns the handle of a tensor, or nil.
func (p passed) handle() *ct.Tensor {
	if len(p.tensors) == 0 {
		return nil
	}
	return p.tensors[0]
}

// The method `shape` returns the shape of a tensor, or nil.
func (p passed) shape() []int64 {
	h := p.handle()
	if h == nil {
		return nil
	}
	var info ct.TensorInfo
	ct.TensorDescribe(h, &info)
	shape := make([]int64, info.Dims)
	if len(shape) > 0 {
		ct.TensorGeometry(h, (*int64)(unsafe.Pointer(&shape[0])), nil)
	}
	return shape
}

// The method `hostInts` returns the elements of a list, or of a tensor of integers on the CPU. For
// all else it returns nil.
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
	dtype := DType(info.DType)
	if deviceOf(info.Device).IsCUDA() || dtype != Int64 && dtype != Int32 || info.Elements == 0 {
		return nil
	}
	t := &Tensor{h: h, owner: c.x.s} // a second name of the argument
	if ct.TensorMemory(h) == nil {
		t = c.x.NoGrad().Contiguous(t, Contiguous)
		defer t.Close()
	}
	memory := ct.TensorMemory(t.h)
	if memory == nil {
		return nil
	}
	if dtype == Int64 {
		return slices.Clone(unsafe.Slice((*int64)(memory), info.Elements))
	}
	for _, v := range unsafe.Slice((*int32)(memory), info.Elements) {
		values = append(values, int64(v))
	}
	return values
}

// The method `arguments` returns the arguments of the call up to those that take their defaults.
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
