package oip

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Tensor is a tensor of a request or an answer. Its elements are in Data, or in Bytes if DataType
// is BYTES. All dimensions are in Shape.
type Tensor struct {
	Name, DataType string
	Shape          []int64
	Data           []byte // row-major, little-endian
	Bytes          [][]byte
}

const bytesType = "BYTES"

// errNotFinite is the model's fault, and no fault of the request.
var errNotFinite = errors.New("has no JSON form")

var dataTypes = map[string]cgotorch.DType{
	"BOOL": cgotorch.Bool, "UINT8": cgotorch.Uint8, "INT8": cgotorch.Int8, "INT16": cgotorch.Int16, "INT32": cgotorch.Int32,
	"INT64": cgotorch.Int64, "FP16": cgotorch.Float16, "BF16": cgotorch.BFloat16, "FP32": cgotorch.Float32, "FP64": cgotorch.Float64,
}

// dataTypeOf returns the protocol's name of a dtype, or the dtype's own name if the protocol has
// none.
func dataTypeOf(d cgotorch.DType) string {
	for name, dtype := range dataTypes {
		if dtype == d {
			return name
		}
	}
	return d.String()
}

// Array returns the tensor as an Array of package serve, without a copy of its elements. It fails
// with [ErrInvalidArgument] for a datatype that PyTorch does not have.
func (t Tensor) Array() (serve.Array, error) {
	if t.DataType == bytesType {
		if len(t.Shape) != 1 && (len(t.Shape) != 2 || t.Shape[1] != 1) || t.Shape[0] != int64(len(t.Bytes)) {
			return serve.Array{}, refuse("input %q of BYTES has the shape %v and %d elements; want [n] encoded images", t.Name, t.Shape, len(t.Bytes))
		}
		return serve.Array{Files: t.Bytes}, nil
	}
	dtype, known := dataTypes[t.DataType]
	if !known {
		return serve.Array{}, refuse("input %q has the datatype %q; want one of the Open Inference Protocol that PyTorch has", t.Name, t.DataType)
	}
	return serve.Array{DType: dtype, Shape: t.Shape, Data: t.Data}, nil
}

// TensorOf returns an Array of package serve as a tensor, without a copy.
func TensorOf(name string, a serve.Array) Tensor {
	return Tensor{Name: name, DataType: dataTypeOf(a.DType), Shape: a.Shape, Data: a.Data}
}

// whole reports whether the elements are as many as the shape has.
func (t *Tensor) whole() bool {
	n, have := int64(1), int64(len(t.Bytes))
	if size := int64(dataTypes[t.DataType].Size()); t.DataType != bytesType {
		n, have = size, int64(len(t.Data))
	}
	for _, d := range t.Shape {
		if d < 0 || d > 0 && n > math.MaxInt64/d {
			return false
		}
		n *= d
	}
	return n == have
}

// SetRaw sets the elements from the binary form: Data, or Bytes that each begin with their length
// in 4 bytes. The elements are parts of `raw`.
func (t *Tensor) SetRaw(raw []byte) error {
	if t.DataType != bytesType {
		t.Data = raw
		return nil
	}
	for len(raw) > 0 {
		if len(t.Bytes) == mostFiles {
			return refuse("input %q of BYTES has more than %d elements", t.Name, mostFiles)
		}
		if len(raw) < 4 || uint64(binary.LittleEndian.Uint32(raw)) > uint64(len(raw)-4) {
			return refuse("input %q of BYTES ends inside an element", t.Name)
		}
		n := 4 + int(binary.LittleEndian.Uint32(raw))
		t.Bytes, raw = append(t.Bytes, raw[4:n]), raw[n:]
	}
	return nil
}

// Raw returns the elements in the binary form.
func (t *Tensor) Raw() []byte {
	if t.DataType != bytesType {
		return t.Data
	}
	var raw []byte
	for _, b := range t.Bytes {
		raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(b))), b...)
	}
	return raw
}

// setJSON sets the elements from a JSON array: a flat one, or one nested as the shape. It calls
// `take` before it takes memory for elements, and fails as `take` does.
func (t *Tensor) setJSON(text []byte, take func(bytes int64) error) error {
	if t.DataType == bytesType {
		return t.setStrings(text, take)
	}
	dtype, known := dataTypes[t.DataType]
	if !known {
		return refuse("input %q is of %q, which is no datatype of the protocol; use FP32, INT64, UINT8, BOOL, BYTES or another", t.Name, t.DataType)
	}
	if dtype == cgotorch.Float16 || dtype == cgotorch.BFloat16 {
		return refuse("input %q is of %q, which has no JSON form: send it as binary data", t.Name, t.DataType)
	}
	elements, fits := count(t.Shape, len(text))
	n := elements * dtype.Size() // bytes
	another := func() error {
		return refuse("input %q has the shape %v, and its data another number of elements: send as many as the shape has", t.Name, t.Shape)
	}
	if !fits {
		return another()
	}
	if err := take(int64(n)); err != nil {
		return err
	}
	t.Data = make([]byte, 0, n)
	nested := nestingOf(t.Shape, text, elements)
	for len(text) > 0 {
		end := bytes.IndexAny(text, "[], \t\r\n")
		if end < 0 {
			end = len(text)
		}
		if end == 0 {
			nested.bracket(text[0])
			text = text[1:]
			continue
		}
		if len(t.Data) == n {
			return another()
		}
		nested.element()
		var err error
		if t.Data, err = appendElement(t.Data, dtype, string(text[:end])); err != nil {
			return refuse("input %q of %s has the element %.40q", t.Name, t.DataType, text[:end])
		}
		text = text[end:]
	}
	if len(t.Data) < n {
		return another()
	}
	return nested.fits(t.Name)
}

// A nesting compares the brackets of a JSON array with a shape.
type nesting struct {
	want   []int64                   // the length of the arrays at each depth
	held   [mostDimensions + 1]int64 // how many values the open arrays hold so far, by depth
	depth  int
	differ bool
}

// nestingOf returns what the text must be: one flat array, or arrays nested as the shape.
func nestingOf(shape []int64, text []byte, elements int) nesting {
	inside, array := bytes.CutPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("["))
	if array && !bytes.HasPrefix(bytes.TrimLeft(inside, " \t\r\n"), []byte("[")) {
		shape = []int64{int64(elements)}
	}
	return nesting{want: shape}
}

func (n *nesting) value() {
	if n.depth > 0 && n.depth <= len(n.want) {
		n.held[n.depth]++
	}
}

func (n *nesting) element() {
	n.value()
	n.differ = n.differ || n.depth != len(n.want)
}

func (n *nesting) bracket(c byte) {
	switch c {
	case '[':
		n.value()
		if n.depth++; n.depth > len(n.want) {
			n.differ = true
			return
		}
		n.held[n.depth] = 0
	case ']':
		if n.depth <= len(n.want) && n.held[n.depth] != n.want[n.depth-1] {
			n.differ = true
		}
		n.depth--
	}
}

func (n *nesting) fits(name string) error {
	if !n.differ {
		return nil
	}
	return refuse("the data of input %q are neither one flat array nor arrays nested as the input's shape", name)
}

// count returns the number of elements of a shape. It reports false if a JSON array of so many
// bytes has fewer elements, each of which takes two bytes.
func count(shape []int64, text int) (n int, fits bool) {
	if slices.Contains(shape, 0) {
		return 0, true
	}
	n = 1
	for _, d := range shape {
		if d < 0 || d > int64(text) || n*int(d) > (text+1)/2 {
			return 0, false
		}
		n *= int(d)
	}
	return n, true
}

func (t *Tensor) setStrings(text []byte, take func(bytes int64) error) error {
	elements, fits := count(t.Shape, len(text))
	if !fits {
		return refuse("input %q has the shape %v, and its data another number of elements: send as many as the shape has", t.Name, t.Shape)
	}
	nested := nestingOf(t.Shape, text, elements)
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		v, err := d.Token()
		if err == io.EOF {
			return nested.fits(t.Name)
		}
		if err != nil {
			return refuse("input %q: %v", t.Name, err)
		}
		switch v := v.(type) {
		case json.Delim:
			if v == '{' {
				return refuse("input %q of BYTES has the element {…}; want strings", t.Name)
			}
			nested.bracket(byte(v))
		case string:
			if len(t.Bytes) == mostFiles {
				return refuse("input %q of BYTES has more than %d elements", t.Name, mostFiles)
			}
			if err := take(2 * int64(len(v))); err != nil { // the decoder has a copy
				return err
			}
			nested.element()
			t.Bytes = append(t.Bytes, []byte(v))
		default:
			return refuse("input %q of BYTES has the element %v; want strings", t.Name, v)
		}
	}
}

// mostFiles bounds the memory of an input with many empty elements.
const mostFiles = 1 << 16

func appendElement(to []byte, dtype cgotorch.DType, text string) ([]byte, error) {
	bits := 8 * dtype.Size()
	switch dtype {
	case cgotorch.Bool:
		v, err := strconv.ParseBool(text) // "1" and "0" too, as Triton
		if v {
			return append(to, 1), err
		}
		return append(to, 0), err
	case cgotorch.Float32:
		v, err := strconv.ParseFloat(text, 32)
		return binary.LittleEndian.AppendUint32(to, math.Float32bits(float32(v))), err
	case cgotorch.Float64:
		v, err := strconv.ParseFloat(text, 64)
		return binary.LittleEndian.AppendUint64(to, math.Float64bits(v)), err
	case cgotorch.Uint8:
		v, err := strconv.ParseUint(text, 10, bits)
		return append(to, byte(v)), err
	}
	v, err := strconv.ParseInt(text, 10, bits)
	var eight [8]byte
	binary.LittleEndian.PutUint64(eight[:], uint64(v))
	return append(to, eight[:dtype.Size()]...), err
}

// appendJSON appends the elements as a flat JSON array.
func (t *Tensor) appendJSON(to []byte) ([]byte, error) {
	dtype := dataTypes[t.DataType]
	if t.DataType != bytesType && dtype.Size() == 0 || dtype == cgotorch.Float16 || dtype == cgotorch.BFloat16 {
		return nil, refuse("output %q is of %q, which has no JSON form: ask for binary data", t.Name, t.DataType)
	}
	to = append(to, '[')
	count := len(t.Bytes)
	if t.DataType != bytesType {
		count = len(t.Data) / dtype.Size()
	}
	for i := range count {
		if i > 0 {
			to = append(to, ',')
		}
		if t.DataType == bytesType {
			text, err := json.Marshal(string(t.Bytes[i]))
			if err != nil {
				return nil, err
			}
			to = append(to, text...)
			continue
		}
		var err error
		if to, err = appendNumber(to, dtype, t.Data[i*dtype.Size():]); err != nil {
			return nil, fmt.Errorf("output %q: element %d: %w: ask for binary data", t.Name, i, err)
		}
	}
	return append(to, ']'), nil
}

func appendNumber(to []byte, dtype cgotorch.DType, at []byte) ([]byte, error) {
	le := binary.LittleEndian
	switch dtype {
	case cgotorch.Bool:
		return strconv.AppendBool(to, at[0] != 0), nil
	case cgotorch.Uint8:
		return strconv.AppendUint(to, uint64(at[0]), 10), nil
	case cgotorch.Int8:
		return strconv.AppendInt(to, int64(int8(at[0])), 10), nil
	case cgotorch.Int16:
		return strconv.AppendInt(to, int64(int16(le.Uint16(at))), 10), nil
	case cgotorch.Int32:
		return strconv.AppendInt(to, int64(int32(le.Uint32(at))), 10), nil
	case cgotorch.Int64:
		return strconv.AppendInt(to, int64(le.Uint64(at)), 10), nil
	}
	v, bits := float64(math.Float32frombits(le.Uint32(at))), 32
	if dtype == cgotorch.Float64 {
		v, bits = math.Float64frombits(le.Uint64(at)), 64
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil, fmt.Errorf("the model has answered %v, which %w", v, errNotFinite)
	}
	return strconv.AppendFloat(to, v, 'g', -1, bits), nil
}
