package cgotorch

import (
	"bytes"
	"encoding/gob"
	"math"
	"runtime"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// encoded is a tensor in a gob.
type encoded struct {
	DType string
	Shape []int64
	Data  []byte // the elements in row-major order and in the machine's byte order
}

// GobEncode makes package gob write dtype, shape and elements of a tensor on the CPU, inside its
// Do. It fails with [ErrUnsupported] where [Tensor.MarshalJSON] shows no values, as for a tensor on
// a device: copy that one to the CPU first. Files for other programs are written by package
// safetensors.
func (t *Tensor) GobEncode() ([]byte, error) {
	const op = "Tensor.GobEncode"
	v, why := t.readable()
	if why == "" && (v.conj || v.neg) {
		why = "it is a conjugate or negative view: call x.ResolveConj and x.ResolveNeg"
	}
	if why != "" {
		return nil, refuse(op, ErrUnsupported, "%s: %s", t.safeString(), why)
	}
	e := encoded{DType: v.dtype.String(), Shape: v.shape, Data: v.bytes()}
	var out bytes.Buffer
	err := gob.NewEncoder(&out).Encode(e)
	return out.Bytes(), err
}

// bytes returns a copy of the elements in row-major order.
func (v *elements) bytes() []byte {
	size, count := v.dtype.Size(), int(numel(v.shape))
	data := make([]byte, 0, size*count)
	index := make([]int, len(v.shape))
	for range count {
		data = append(data, unsafe.Slice((*byte)(v.element(index)), size)...)
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < int(v.shape[d]) {
				break
			}
			index[d] = 0
		}
	}
	return data
}

// GobDecode makes t a tensor on the CPU with the elements that GobEncode has written. No Do owns
// it: the caller must close it. It fails with [ErrInvalidArgument] for other data, and if t is a
// tensor already.
func (t *Tensor) GobDecode(data []byte) error {
	const op = "Tensor.GobDecode"
	if t.h != nil {
		return refuse(op, ErrInvalidArgument, "%s is open: decode into a new Tensor", t.safeString())
	}
	var e encoded
	var dtype DType
	err := gob.NewDecoder(bytes.NewReader(data)).Decode(&e)
	if err == nil {
		dtype, err = ParseDType(e.DType)
	}
	if err != nil {
		return &Error{Op: op, Kind: ErrInvalidArgument, Message: "the gob is damaged, or is not of a tensor", Caller: caller(), Err: err}
	}
	want := int64(dtype.Size())
	for _, n := range e.Shape {
		if n < 0 || n > 0 && want > math.MaxInt64/n {
			want = -1
			break
		}
		want *= n
	}
	if want != int64(len(e.Data)) || len(e.Shape) > 64 {
		return refuse(op, ErrInvalidArgument, "the gob has %d bytes of %s for the shape %v", len(e.Data), e.DType, e.Shape)
	}
	s, err := NewStream(CPU, StreamOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	stream, err := s.lock(op)
	if err != nil {
		return err
	}
	defer s.turn.give()
	var h *ct.Tensor
	if err := direct(op, stream, func(x ct.Exec) *ct.Status {
		return ct.TensorFromHost(x, unsafe.Pointer(unsafe.SliceData(e.Data)), int64(len(e.Data)), int32(dtype), e.Shape, &h)
	}, func() []*Tensor { return nil }); err != nil {
		return err
	}
	// The elements are there already: a stream of the CPU runs its work at once. The checker learns it.
	if err := check(op, ct.StreamSynchronize(stream)); err != nil {
		ct.TensorFree(h)
		return err
	}
	t.h = h
	t.cleanup = runtime.AddCleanup(t, freeTensor, h)
	return nil
}
