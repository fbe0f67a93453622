package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
	"github.com/streamtorch/streamtorch/examples/serve/inference"
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), oip.ErrInvalidArgument)
}

// requestOf returns a request of gRPC. Its raw tensors are those of r, without a copy.
func requestOf(r *inference.ModelInferRequest) (oip.Request, error) {
	to := oip.Request{Model: r.ModelName, Version: r.ModelVersion, ID: r.Id}
	priority, err := number(r.Parameters, "priority")
	if err != nil {
		return to, err
	}
	micros, err := number(r.Parameters, "timeout")
	if err != nil {
		return to, err
	}
	to.Priority, to.Timeout = int(priority), time.Duration(micros)*time.Microsecond

	raw := r.RawInputContents
	if len(raw) > 0 && len(raw) != len(r.Inputs) {
		return to, invalid("%d raw_input_contents belong to %d inputs", len(raw), len(r.Inputs))
	}
	for i, in := range r.Inputs {
		t := oip.Tensor{Name: in.GetName(), DataType: in.GetDatatype(), Shape: in.GetShape()}
		if err := noSharedMemory(t.Name, in.GetParameters()); err != nil {
			return to, err
		}
		switch {
		case len(raw) == 0:
			err = setContents(&t, in.GetContents())
		case in.GetContents() != nil:
			err = invalid("input %q has contents, and the request has raw_input_contents", t.Name)
		default:
			err = t.SetRaw(raw[i])
		}
		if err != nil {
			return to, err
		}
		to.Inputs = append(to.Inputs, t)
	}
	for _, out := range r.Outputs {
		if err := noSharedMemory(out.GetName(), out.GetParameters()); err != nil {
			return to, err
		}
		classes, err := number(out.GetParameters(), "classification")
		if err != nil {
			return to, err
		}
		to.Outputs = append(to.Outputs, oip.Output{Name: out.GetName(), Classes: int(classes)})
	}
	return to, nil
}

// number returns a parameter that is a number, or 0 without it. Clients send both kinds of
// integers.
func number(p map[string]*inference.InferParameter, name string) (int64, error) {
	v, there := p[name]
	if !there {
		return 0, nil
	}
	n := int64(-1)
	switch v := v.GetParameterChoice().(type) {
	case *inference.InferParameter_Int64Param:
		n = v.Int64Param
	case *inference.InferParameter_Uint64Param:
		n = int64(min(v.Uint64Param, math.MaxInt64))
	}
	if n < 0 || n > mostNumber {
		return 0, invalid("the parameter %s is {%v}; want a whole number, at most %d", name, v, mostNumber)
	}
	return n, nil
}

// mostNumber is an hour, the longest timeout.
const mostNumber = int64(time.Hour / time.Microsecond)

func noSharedMemory(tensor string, p map[string]*inference.InferParameter) error {
	if _, there := p["shared_memory_region"]; there {
		return invalid("%q is in shared memory, which the server does not open: send the tensor in the request", tensor)
	}
	return nil
}

// bytesOfContents returns the bytes that typed contents take, before and after their conversion. In
// the message an integer may have one byte, and a text two.
func bytesOfContents(r *inference.ModelInferRequest) (bytes int64) {
	const slice = 24
	for _, in := range r.Inputs {
		c := in.GetContents()
		bytes += 2 * int64(len(c.GetBoolContents())+4*len(c.GetIntContents())+8*len(c.GetInt64Contents())+4*len(c.GetUintContents())+8*len(c.GetUint64Contents())+
			4*len(c.GetFp32Contents())+8*len(c.GetFp64Contents()))
		bytes += slice * int64(len(c.GetBytesContents()))
	}
	return bytes
}

// setContents sets the elements of a tensor that has typed contents.
func setContents(t *oip.Tensor, c *inference.InferTensorContents) error {
	le, size := binary.LittleEndian, map[string]int{"INT8": 1, "INT16": 2, "INT32": 4}[t.DataType]
	switch t.DataType {
	case "BYTES":
		t.Bytes = c.GetBytesContents()
	case "BOOL":
		for _, v := range c.GetBoolContents() {
			b := byte(0)
			if v {
				b = 1
			}
			t.Data = append(t.Data, b)
		}
	case "INT8", "INT16", "INT32":
		for _, v := range c.GetIntContents() {
			if least := int32(-1) << (8*size - 1); v < least || v > ^least {
				return invalid("input %q of %s has the element %d", t.Name, t.DataType, v)
			}
			var four [4]byte
			le.PutUint32(four[:], uint32(v))
			t.Data = append(t.Data, four[:size]...)
		}
	case "UINT8":
		for _, v := range c.GetUintContents() {
			if v > math.MaxUint8 {
				return invalid("input %q of %s has the element %d", t.Name, t.DataType, v)
			}
			t.Data = append(t.Data, byte(v))
		}
	case "INT64":
		for _, v := range c.GetInt64Contents() {
			t.Data = le.AppendUint64(t.Data, uint64(v))
		}
	case "FP32":
		for _, v := range c.GetFp32Contents() {
			t.Data = le.AppendUint32(t.Data, math.Float32bits(v))
		}
	case "FP64":
		for _, v := range c.GetFp64Contents() {
			t.Data = le.AppendUint64(t.Data, math.Float64bits(v))
		}
	default:
		return invalid("input %q is of %q, which has no typed contents here: send it in raw_input_contents", t.Name, t.DataType)
	}
	if c != nil && len(t.Data)+len(t.Bytes) == 0 {
		return invalid("input %q is of %s, and its contents have no elements in the field of that datatype", t.Name, t.DataType)
	}
	return nil
}

// responseOf returns an answer for gRPC. All outputs are raw, as Triton's are.
func responseOf(a *oip.Response) *inference.ModelInferResponse {
	to := &inference.ModelInferResponse{ModelName: a.Model, ModelVersion: a.Version, Id: a.ID}
	for _, t := range a.Outputs {
		to.Outputs = append(to.Outputs, &inference.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: t.DataType, Shape: t.Shape})
		to.RawOutputContents = append(to.RawOutputContents, t.Raw())
	}
	return to
}
