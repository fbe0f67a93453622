package oip

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

const lengthHeader = "Inference-Header-Content-Length"

var (
	errTooLarge = errors.New("the body is too large")
	errBusy     = errors.New("the bodies of other requests take the memory")
)

// bodies bounds the memory of bodies that are being answered, and uses small buffers again.
type bodies struct {
	most, all int64 // bytes of one body, and of all

	mu   sync.Mutex
	used int64
	free sync.Pool // of *[]byte
}

// mostKept is the size of the largest buffer that is used again. A larger one in the hands of a
// small body would keep memory from others.
const mostKept = 1 << 20

// body is a request's body.
type body struct {
	bytes []byte
	taken int64 // the capacity of `bytes`, and what [bodies.more] has added
}

// read returns the body of a request. It fails with errTooLarge, errBusy, and as refuseBody does.
// The caller gives the body back when nothing reads it any more.
func (b *bodies) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	from, size := io.Reader(http.MaxBytesReader(w, r.Body, b.most)), r.ContentLength
	if size > b.most {
		return nil, fmt.Errorf("%d bytes, at most %d are taken: %w", size, b.most, errTooLarge)
	}
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip", "deflate":
		open := func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
		if encoding == "deflate" {
			open = zlib.NewReader
		}
		inflated, err := open(from)
		if err != nil {
			return nil, refuseBody(r.Context(), err, "the body is not %s", encoding)
		}
		defer inflated.Close()
		from, size = io.LimitReader(inflated, b.most+1), -1
	default:
		return nil, refuse("Content-Encoding is %q; want gzip, deflate or none", encoding)
	}
	got := &body{}
	// A buffer that is a large part of all memory would leave a smaller body no memory for its tensors.
	if kept, _ := b.free.Get().(*[]byte); kept != nil && (int64(cap(*kept)) <= size || int64(cap(*kept)) <= b.all/8) && b.take(int64(cap(*kept))) {
		got.bytes, got.taken = (*kept)[:0], int64(cap(*kept))
	}
	err := b.fill(r.Context(), got, from, size)
	if err == nil {
		return got, nil
	}
	b.give(got)
	if errors.Is(err, errBusy) {
		return nil, err
	}
	if large := new(http.MaxBytesError); errors.As(err, &large) {
		return nil, fmt.Errorf("more than %d bytes: %w", b.most, errTooLarge)
	}
	return nil, refuseBody(r.Context(), err, "the body ends early")
}

// refuseBody returns why a body cannot be read: the server's time for it is over, ctx has ended, or
// the body is wrong. net/http ends ctx whenever a read fails, also when the time is over.
func refuseBody(ctx context.Context, err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the body comes too slowly: %w", context.DeadlineExceeded)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	return refuse("%s: %v", what, err)
}

// fill reads a body, until ctx ends. It takes memory as the bytes come: at most twice what was
// sent, or mostKept. The size is below 0 if it is not known.
func (b *bodies) fill(ctx context.Context, to *body, from io.Reader, size int64) error {
	const least = int64(256 << 10)
	end := size
	if size < 0 {
		end = b.most + 1
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := int64(len(to.bytes))
		if n == size {
			return nil
		}
		if n == int64(cap(to.bytes)) {
			larger := min(max(2*n, least), end)
			if !b.take(larger - n) {
				return errBusy
			}
			to.taken += larger - n
			to.bytes = append(make([]byte, 0, larger), to.bytes...)
		}
		got, err := from.Read(to.bytes[n:min(int64(cap(to.bytes)), end)])
		to.bytes = to.bytes[:n+int64(got)]
		switch {
		case n+int64(got) > b.most:
			return new(http.MaxBytesError)
		case err == io.EOF && size < 0:
			return nil
		case err == io.EOF && n+int64(got) < size:
			return io.ErrUnexpectedEOF
		case err != nil && err != io.EOF:
			return err
		}
	}
}

func (b *bodies) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.all {
		return false
	}
	b.used += n
	return true
}

// more counts memory of n bytes that the body's tensors need beside the body. It fails with
// errBusy, and with errTooLarge if the body does not fit alone.
func (b *bodies) more(to *body, n int64) error {
	if to.taken+n > b.all {
		return fmt.Errorf("its elements take %d bytes beside %d, and the server has no more for all bodies: send binary data, or divide the request: %w", n, to.taken, errTooLarge)
	}
	if !b.take(n) {
		return errBusy
	}
	to.taken += n
	return nil
}

func (b *bodies) give(used *body) {
	if cap(used.bytes) <= mostKept {
		b.free.Put(&used.bytes)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= used.taken
}

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
	if commas(text) >= mostTensors {
		return fmt.Errorf("more than %d tensors", mostTensors)
	}
	return json.Unmarshal(text, (*[]T)(l))
}

// commas returns the number of commas between the elements of a JSON array.
func commas(text []byte) (n int) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // the next character is quoted too
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 1:
			n++
		}
	}
	return n
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
