package oip

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
)

const lengthHeader = "Inference-Header-Content-Length"

// parameters are those of a request, a tensor or an output. Other parameters are ignored.
type parameters struct {
	BinaryDataSize   *int64          `json:"binary_data_size"`
	BinaryData       *bool           `json:"binary_data"`
	BinaryDataOutput bool            `json:"binary_data_output"`
	Classification   int             `json:"classification"`
	Priority         int             `json:"priority"`
	Timeout          json.RawMessage `json:"timeout"` // microseconds
	SharedMemory     *string         `json:"shared_memory_region"`
}

// message is the JSON of a request.
type message struct {
	ID         string           `json:"id"`
	Parameters parameters       `json:"parameters"`
	Inputs     list[inputJSON]  `json:"inputs"`
	Outputs    list[outputJSON] `json:"outputs"`
}

type inputJSON struct {
	Name       string          `json:"name"`
	DataType   string          `json:"datatype"`
	Shape      dimensions      `json:"shape"`
	Parameters parameters      `json:"parameters"`
	Data       json.RawMessage `json:"data"`
}

type outputJSON struct {
	Name       string     `json:"name"`
	Parameters parameters `json:"parameters"`
}

// list is a JSON array of so few elements that a small body cannot become much memory.
type list[T any] []T

const mostTensors = 1024

func (l *list[T]) UnmarshalJSON(text []byte) error {
	if text[0] != '[' && string(text) != "null" {
		return errors.New("want a list of tensors")
	}
	if bodies.Commas(text) >= mostTensors {
		return fmt.Errorf("more than %d tensors", mostTensors)
	}
	return json.Unmarshal(text, (*[]T)(l))
}

// dimensions is a shape of so few numbers that a small body cannot become much memory.
type dimensions []int64

const mostDimensions = 32

func (d *dimensions) UnmarshalJSON(text []byte) error {
	if bytes.Count(text, []byte{','}) >= mostDimensions {
		return fmt.Errorf("more than %d dimensions", mostDimensions)
	}
	return json.Unmarshal(text, (*[]int64)(d))
}

// noSharedMemory fails for a tensor that is not in the request.
func noSharedMemory(name string, p parameters) error {
	if p.SharedMemory == nil {
		return nil
	}
	return refuse("%q is in shared memory, which the server does not open: send the tensor in the request", name)
}

// parse returns the request in a body, and which outputs are wanted as binary data. Without a list
// of outputs, all are or none. It calls `take` before it takes memory for a copy of the JSON and
// for its elements, and fails as `take` does.
func parse(text []byte, header string, take func(bytes int64) error) (r Request, binary []bool, err error) {
	raw := []byte(nil)
	if header != "" {
		n, err := strconv.Atoi(header)
		if err != nil || n < 0 || n > len(text) {
			return r, nil, refuse("%s is %.20q, and the body has %d bytes", lengthHeader, header, len(text))
		}
		text, raw = text[:n], text[n:]
	}
	if err := take(int64(len(text))); err != nil {
		return r, nil, err
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return r, nil, refuse("the request is no JSON of the protocol: %v; send {\"inputs\": [...]}", err)
	}
	r.ID, r.Priority = m.ID, m.Parameters.Priority
	if t := bytes.Trim(m.Parameters.Timeout, `"`); len(t) > 0 {
		micros, err := strconv.ParseInt(string(t), 10, 64)
		if err != nil || micros < 0 || micros > int64(time.Hour/time.Microsecond) {
			return r, nil, refuse("the parameter timeout is %.20q; want microseconds, at most an hour", t)
		}
		r.Timeout = time.Duration(micros) * time.Microsecond
	}
	for _, in := range m.Inputs {
		t := Tensor{Name: in.Name, DataType: in.DataType, Shape: in.Shape}
		if err := noSharedMemory(in.Name, in.Parameters); err != nil {
			return r, nil, err
		}
		if size := in.Parameters.BinaryDataSize; size == nil {
			err = t.setJSON(in.Data, take)
		} else if *size < 0 || *size > int64(len(raw)) || in.Data != nil {
			err = refuse("input %q has the binary_data_size %d, and %d bytes are left", in.Name, *size, len(raw))
		} else {
			err = t.SetRaw(raw[:*size])
			raw = raw[*size:]
		}
		if err != nil {
			return r, nil, err
		}
		r.Inputs = append(r.Inputs, t)
	}
	if len(raw) > 0 {
		return r, nil, refuse("%d bytes of the body belong to no input", len(raw))
	}
	for _, out := range m.Outputs {
		if err := noSharedMemory(out.Name, out.Parameters); err != nil {
			return r, nil, err
		}
		b := m.Parameters.BinaryDataOutput
		if out.Parameters.BinaryData != nil {
			b = *out.Parameters.BinaryData
		}
		r.Outputs, binary = append(r.Outputs, Output{out.Name, out.Parameters.Classification}), append(binary, b)
	}
	if len(m.Outputs) == 0 && m.Parameters.BinaryDataOutput {
		binary = []bool{true}
	}
	return r, binary, nil
}

// format returns the answer's JSON, and behind it the outputs that are wanted as binary data. The
// length of the JSON is 0 if there is no binary data.
func format(a *Response, r Request, binary []bool) (parts [][]byte, length int, err error) {
	type output struct {
		Name       string           `json:"name"`
		DataType   string           `json:"datatype"`
		Shape      []int64          `json:"shape"`
		Parameters map[string]int64 `json:"parameters,omitempty"`
		Data       json.RawMessage  `json:"data,omitempty"`
	}
	answer := struct {
		ID      string   `json:"id,omitempty"`
		Model   string   `json:"model_name"`
		Version string   `json:"model_version"`
		Outputs []output `json:"outputs"`
	}{ID: a.ID, Model: a.Model, Version: a.Version}
	parts = make([][]byte, 1)
	for i, t := range a.Outputs {
		o := output{Name: t.Name, DataType: t.DataType, Shape: t.Shape}
		if i < len(binary) && binary[i] || len(r.Outputs) == 0 && len(binary) > 0 {
			raw := t.Raw()
			o.Parameters = map[string]int64{"binary_data_size": int64(len(raw))}
			parts = append(parts, raw)
		} else if o.Data, err = t.appendJSON(nil); err != nil {
			return nil, 0, err
		}
		answer.Outputs = append(answer.Outputs, o)
	}
	if parts[0], err = json.Marshal(answer); err != nil {
		return nil, 0, err
	}
	if len(parts) > 1 {
		length = len(parts[0])
	}
	return parts, length, nil
}
