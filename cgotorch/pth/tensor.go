package pth

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/pickle"
)

// A storage is memory that tensors share.
type storage struct {
	key      string
	foreign  pickle.Global // its class, if this package does not read it; else ""
	dtype    string        // as in package safetensors; "" for bytes whose dtype the tensor tells
	elements int64
	at       int64    // of the bytes in a file without zip
	of       *storage // in a file without zip: the storage of which this is a part, or nil
	from     int64    // the element of that storage at which the part begins
}

// A tensor is a view of a storage.
type tensor struct {
	storage        *storage
	dtype          string
	offset         int64 // in elements
	shape, strides []int64
	conj, neg      bool   // the stored numbers are the conjugates, or the negatives, of the tensor's
	refused        string // why the tensor cannot be read, and what to do; "" if it can
}

// refuse returns a tensor that can be named, and not be read. kind stands for its dtype.
func refuse(kind string, shape []int64, format string, args ...any) *tensor {
	return &tensor{dtype: kind, shape: shape, refused: fmt.Sprintf(format, args...)}
}

// info describes the tensor. A tensor that cannot be read has no bytes.
func (t *tensor) info(name string) safetensors.Info {
	info := safetensors.Info{Name: name, DType: t.dtype, Shape: t.shape}
	if t.refused == "" {
		info.Bytes = t.count() * sizes[t.dtype]
	}
	return info
}

// sizes are the bytes of an element by the names of package safetensors, and of complex dtypes that
// the package lacks.
var sizes = map[string]int64{
	"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
	"U16": 2, "U32": 4, "U64": 8, "C32": 4, "C64": 8, "C128": 16,
	"F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}

// storageTypes are PyTorch's classes of storages.
var storageTypes = map[pickle.Global]string{
	"torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
	"torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
	"torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL", "torch.ComplexFloatStorage": "C64", "torch.ComplexDoubleStorage": "C128",
	"torch.storage.UntypedStorage": "", "torch.UntypedStorage": "", "torch._UntypedStorage": "", "torch.storage._UntypedStorage": "",
}

// quantizedStorages are the bytes of an element in the storages of quantized tensors.
var quantizedStorages = map[pickle.Global]int64{
	"torch.QInt8Storage": 1, "torch.QUInt8Storage": 1, "torch.QInt32Storage": 4, "torch.QUInt4x2Storage": 1, "torch.QUInt2x4Storage": 1,
}

// width returns the bytes of an element: 1 for bytes without a dtype, and 0 for an unknown class.
func (s *storage) width() int64 {
	if s.foreign != "" {
		return quantizedStorages[s.foreign]
	}
	return max(sizes[s.dtype], 1)
}

// torchDTypes are PyTorch's dtypes.
var torchDTypes = map[pickle.Global]string{
	"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.int64": "I64",
	"torch.int32": "I32", "torch.int16": "I16", "torch.int8": "I8", "torch.uint8": "U8", "torch.bool": "BOOL",
	"torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64", "torch.complex32": "C32", "torch.complex64": "C64", "torch.complex128": "C128",
	"torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2", "torch.float8_e4m3fnuz": "F8_E4M3FNUZ", "torch.float8_e5m2fnuz": "F8_E5M2FNUZ",
	"torch.float8_e8m0fnu": "F8_E8M0",
}

// storageOf returns the storage of a persistent id: ("storage", class, key, device, elements).
func storageOf(id []any) (*storage, error) {
	if len(id) < 5 || id[0] != "storage" {
		return nil, fmt.Errorf("a persistent id that is no storage")
	}
	class, ok := id[1].(pickle.Global)
	key, ok2 := id[2].(string)
	elements, ok3 := id[4].(int64)
	if !ok || !ok2 || !ok3 || elements < 0 {
		return nil, fmt.Errorf("a storage without class, key or size")
	}
	s := &storage{key: key, elements: elements}
	if s.dtype, ok = storageTypes[class]; !ok {
		s.foreign = class
	}
	return s, nil
}

// part returns the part of a storage that PyTorch before 0.4 wrote as key, first element and number
// of elements.
func (s *storage) part(of any) (*storage, error) {
	if l, ok := of.(*pickle.List); ok && len(l.Items) == 3 {
		from, ok := l.Items[1].(int64)
		elements, ok2 := l.Items[2].(int64)
		if ok && ok2 && from >= 0 && elements >= 0 && from <= s.elements-elements {
			return &storage{foreign: s.foreign, dtype: s.dtype, elements: elements, of: s, from: from}, nil
		}
	}
	return nil, fmt.Errorf("a storage without class, key or size")
}

// begin returns where the bytes begin in a file without zip.
func (s *storage) begin() int64 {
	if s.of != nil {
		return s.of.at + s.from*s.width()
	}
	return s.at
}

// build returns the tensor that a function of PyTorch makes of its arguments. ok is false if the
// function makes no tensor.
func build(function pickle.Global, args []any) (v any, ok bool, err error) {
	at := func(i int) any {
		if i < 0 || i >= len(args) {
			return nil
		}
		return args[i]
	}
	shapeOf := func(v any) []int64 {
		shape, _ := integers(v)
		return shape
	}
	switch function {
	case "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v3":
		t, err := rebuild(args, function == "torch._utils._rebuild_tensor_v3")
		return t, true, err
	case "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_device_tensor_from_cpu_tensor":
		t, ok := at(0).(*tensor)
		return t, ok, nil
	case "torch._utils._rebuild_qtensor":
		return refuse("quantized", shapeOf(at(2)), "it is quantized: save it in Python with .dequantize()"), true, nil
	case "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_sparse_csr_tensor":
		var shape []int64
		if data, ok := at(1).(*pickle.List); ok && len(data.Items) > 2 { // of COO indices, values, size; else compressed, plain, values, size
			for _, i := range []int{2, min(3, len(data.Items)-1)} {
				if size, ok := integers(data.Items[i]); ok {
					shape = size
				}
			}
		}
		return refuse("sparse", shape, "it is sparse: save it in Python with .to_dense()"), true, nil
	case "torch._utils._rebuild_nested_tensor":
		return refuse("nested", nil, "it is a nested tensor: save in Python what .unbind() or .to_padded_tensor(0.0) returns"), true, nil
	case "torch._utils._rebuild_meta_tensor_no_storage":
		return refuse("meta", shapeOf(at(1)), "it was on the device meta, so the file has no values of it: save it from another device"), true, nil
	case "torch._utils._rebuild_wrapper_subclass":
		class, _ := at(0).(pickle.Global)
		return refuse("wrapped", shapeOf(at(2)), "it is of the class %.200s, which keeps its values elsewhere: save in Python the plain tensor that it stands for", class), true, nil
	case "torch._utils._rebuild_device_tensor_from_numpy", "torch._utils._rebuild_xla_tensor":
		return refuse("foreign", nil, "it was on a device whose values PyTorch saves through NumPy: save it in Python with .cpu()"), true, nil
	case "torch.nn.parameter.UninitializedParameter", "torch.nn.parameter.UninitializedBuffer":
		return refuse("uninitialized", nil, "its module is lazy and was saved before its first call: call it once, and save it again"), true, nil
	case "torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type", "torch.tensor._rebuild_from_type": // a subclass: function, class, arguments
		inner, ok := at(0).(pickle.Global)
		values, ok2 := at(2).(*pickle.List)
		if !ok || !ok2 || strings.Contains(string(inner), "_rebuild_from_type") {
			return nil, false, nil
		}
		return build(inner, values.Items)
	}
	if name := string(function); strings.HasPrefix(name, "torch.") && strings.HasPrefix(name[strings.LastIndexByte(name, '.')+1:], "_rebuild") {
		return refuse("unknown", nil, "it is made by %.200s, which this package does not know: save in Python a plain tensor", function), true, nil
	}
	return nil, false, nil
}

// rebuild returns the tensor that torch._utils._rebuild_tensor_v2 or _v3 returns.
func rebuild(args []any, v3 bool) (*tensor, error) {
	if len(args) < 4 {
		return nil, fmt.Errorf("a tensor of %d arguments", len(args))
	}
	s, ok := args[0].(*storage)
	offset, ok2 := args[1].(int64)
	shape, ok3 := integers(args[2])
	strides, ok4 := integers(args[3])
	if !ok || !ok2 || !ok3 || !ok4 || offset < 0 || len(shape) != len(strides) {
		return nil, fmt.Errorf("a tensor without storage, offset, shape or strides")
	}
	t := &tensor{storage: s, dtype: s.dtype, offset: offset, shape: shape, strides: strides}
	if i := len(args) - 1; i >= 6 { // the last argument may tell how the elements have to be read
		if how, ok := args[i].(*pickle.Dict); ok {
			t.conj, _ = how.Get("conj").(bool)
			t.neg, _ = how.Get("neg").(bool)
		}
	}
	if s.foreign != "" {
		return refuse(string(s.foreign), shape, "it is in a storage of the class %.200s, which this package does not read: convert it in Python", s.foreign), nil
	}
	if v3 {
		if len(args) < 7 {
			return nil, fmt.Errorf("a tensor without a dtype")
		}
		name, ok := args[6].(pickle.Global)
		if !ok {
			return nil, fmt.Errorf("a tensor without a dtype")
		}
		if t.dtype, ok = torchDTypes[name]; !ok {
			return refuse(string(name), shape, "it is of the dtype %.200s, which this package does not read: convert it in Python", name), nil
		}
	}
	if t.dtype == "" {
		return nil, fmt.Errorf("a tensor of bytes without a dtype")
	}
	if t.conj && t.dtype[0] != 'C' || t.neg && t.dtype[0] != 'C' && t.dtype[0] != 'F' && t.dtype != "BF16" || t.neg && strings.HasPrefix(t.dtype, "F8") {
		return refuse(t.dtype+"/view", shape, "it is conjugated or negated only when it is read: save it in Python with .resolve_conj().resolve_neg()"), nil
	}
	// The tensor's dtype may be wider or narrower than the storage's.
	width := s.width()
	available := min(s.elements, math.MaxInt64/width) * width / sizes[t.dtype]
	// The last element must lie in the storage.
	last, count, ok := torchzip.Reach(shape, strides, offset)
	if !ok {
		return nil, fmt.Errorf("a tensor of shape %v and strides %v at %d", shape, strides, offset)
	}
	if count > 0 && last >= available {
		return nil, fmt.Errorf("a tensor of shape %v and strides %v at %d, in a storage of %d elements", shape, strides, offset, available)
	}
	// Strides of 0 could make a small file look like a tensor of any size.
	if count-1<<20 > available {
		return nil, fmt.Errorf("a tensor of shape %v in a storage of %d elements", shape, available)
	}
	return t, nil
}

// mostDims is the most dimensions of a tensor, as in LibTorch.
const mostDims = 64

func integers(v any) ([]int64, bool) {
	l, ok := v.(*pickle.List)
	if !ok || len(l.Items) > mostDims {
		return nil, false
	}
	values := make([]int64, len(l.Items))
	for i, item := range l.Items {
		if values[i], ok = item.(int64); !ok {
			return nil, false
		}
	}
	return values, true
}

// contiguous reports whether the elements lie in row-major order without gaps.
func (t *tensor) contiguous() bool {
	step := int64(1)
	for i := len(t.shape) - 1; i >= 0; i-- {
		if t.shape[i] != 1 && t.strides[i] != step {
			return false
		}
		step *= t.shape[i]
	}
	return true
}

func (t *tensor) count() int64 {
	n := int64(1)
	for _, size := range t.shape {
		n *= size
	}
	return n
}

// span is the number of the storage's elements from the first of the tensor to the last.
func (t *tensor) span() int64 {
	if t.count() == 0 {
		return 0
	}
	last := int64(0)
	for i, n := range t.shape {
		last += (n - 1) * t.strides[i]
	}
	return last + 1
}

// finish turns elements, as they lie in the file, into those of the tensor.
func (t *tensor) finish(data []byte, bigEndian bool) {
	size := int(sizes[t.dtype])
	part := size // of a number; a complex element has two
	if t.dtype[0] == 'C' {
		part /= 2
	}
	for at := 0; at+part <= len(data); at += part {
		number := data[at : at+part]
		if bigEndian {
			slices.Reverse(number)
		}
		imaginary := part < size && at%size != 0
		if t.neg != (t.conj && imaginary) {
			number[part-1] ^= 0x80 // the sign
		}
	}
}

// gather returns the elements in row-major order. `from` begins with the first element.
func (t *tensor) gather(from []byte) []byte {
	size := sizes[t.dtype]
	if t.contiguous() {
		return from[:t.count()*size]
	}
	return torchzip.RowMajor(from, size, t.shape, t.strides)
}
