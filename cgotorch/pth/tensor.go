package pth

import (
	"fmt"
	"math"
)

// A storage is memory that tensors share.
type storage struct {
	key      string
	dtype    string // as in package safetensors; "" for bytes whose dtype the tensor tells
	elements int64
	at       int64 // of the bytes in a file without zip
}

// A tensor is a view of a storage.
type tensor struct {
	storage        *storage
	dtype          string
	offset         int64 // in elements
	shape, strides []int64
}

// sizes are the bytes of an element by the names of package safetensors.
var sizes = map[string]int64{
	"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
	"U16": 2, "U32": 4, "U64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
}

// storageTypes are PyTorch's classes of storages.
var storageTypes = map[global]string{
	"torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
	"torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
	"torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL", "torch.ComplexFloatStorage": "C64",
	"torch.storage.UntypedStorage": "", "torch.UntypedStorage": "",
}

// torchDTypes are PyTorch's dtypes.
var torchDTypes = map[global]string{
	"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.int64": "I64",
	"torch.int32": "I32", "torch.int16": "I16", "torch.int8": "I8", "torch.uint8": "U8", "torch.bool": "BOOL",
	"torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64", "torch.complex64": "C64",
	"torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2",
}

// storageOf returns the storage of a persistent id: ("storage", class, key, device, elements).
func storageOf(id []any) (*storage, error) {
	if len(id) < 5 || id[0] != "storage" {
		return nil, fmt.Errorf("a persistent id that is no storage")
	}
	class, ok := id[1].(global)
	key, ok2 := id[2].(string)
	elements, ok3 := id[4].(int64)
	if !ok || !ok2 || !ok3 || elements < 0 {
		return nil, fmt.Errorf("a storage without class, key or size")
	}
	dtype, ok := storageTypes[class]
	if !ok {
		return nil, fmt.Errorf("a storage of the class %s, which this package does not read", class)
	}
	return &storage{key: key, dtype: dtype, elements: elements}, nil
}

// The function `rebuild` returns the tensor that torch._utils._rebuild_tensor_v2 or _v3 returns.
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
	if i := len(args) - 1; i >= 6 { // the last argument may tell how the elements have to be read
		if how, ok := args[i].(*dict); ok {
			for _, bit := range []string{"conj", "neg"} {
				if on, _ := how.get(bit).(bool); on {
					return nil, fmt.Errorf("a tensor that is conjugated or negated only when it is read: save it with .resolve_conj().resolve_neg()")
				}
			}
		}
	}
	t := &tensor{storage: s, dtype: s.dtype, offset: offset, shape: shape, strides: strides}
	if v3 {
		if len(args) < 7 {
			return nil, fmt.Errorf("a tensor without a dtype")
		}
		name, _ := args[6].(global)
		if t.dtype, ok = torchDTypes[name]; !ok {
			return nil, fmt.Errorf("a tensor of the dtype %v, which this package does not read", args[6])
		}
	}
	if t.dtype == "" {
		return nil, fmt.Errorf("a tensor of bytes without a dtype")
	}
	// The tensor's dtype may be wider or narrower than the storage's.
	width := max(sizes[s.dtype], 1)
	available := min(s.elements, math.MaxInt64/width) * width / sizes[t.dtype]
	// The last element must lie in the storage. The sum may not overflow.
	last, count := offset, int64(1)
	for i, n := range shape {
		if n < 0 || strides[i] < 0 {
			return nil, fmt.Errorf("a tensor of shape %v and strides %v", shape, strides)
		}
		if n > 0 && count > math.MaxInt64/16/n {
			return nil, fmt.Errorf("a tensor of shape %v", shape)
		}
		count *= n
		if n > 1 {
			if strides[i] > (math.MaxInt64-last)/(n-1) {
				return nil, fmt.Errorf("a tensor of shape %v and strides %v", shape, strides)
			}
			last += (n - 1) * strides[i]
		}
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
	l, ok := v.(*list)
	if !ok || len(l.items) > mostDims {
		return nil, false
	}
	values := make([]int64, len(l.items))
	for i, item := range l.items {
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

// The method `gather` returns the elements in row-major order. `from` begins with the first
// element.
func (t *tensor) gather(from []byte) []byte {
	size := sizes[t.dtype]
	if t.contiguous() {
		return from[:t.count()*size]
	}
	to := make([]byte, 0, t.count()*size)
	index := make([]int64, len(t.shape))
	for range t.count() {
		at := int64(0)
		for d, i := range index {
			at += i * t.strides[d]
		}
		to = append(to, from[at*size:(at+1)*size]...)
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < t.shape[d] {
				break
			}
			index[d] = 0
		}
	}
	return to
}
