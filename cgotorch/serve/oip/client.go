package oip

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Client asks a server of the protocol over HTTP. Its tensors travel as binary data. Its methods
// may be called from any goroutine.
//
// They fail with the cause of ctx's end, and with the server's text for a status other than 200.
// Such an error wraps [ErrInvalidArgument] for the statuses 400 and 413, [serve.ErrNotFound] for
// 404, [serve.ErrQueueFull] for 429, [serve.ErrModel] for 500, [serve.ErrNotLoaded] for 503 and
// [context.DeadlineExceeded] for 504.
type Client struct {
	URL    string       // of the server, such as http://localhost:8080
	Header http.Header  // of each request, such as Authorization; may be nil
	HTTP   *http.Client // nil means [http.DefaultClient]
}

// Metadata asks for the description of a model. An empty version is the server's choice.
func (c *Client) Metadata(ctx context.Context, model, version string) (*Metadata, error) {
	m := new(Metadata)
	text, _, err := c.ask(ctx, http.MethodGet, modelPath(model, version), nil, 0)
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err != nil {
		return nil, fmt.Errorf("oip: metadata of %q: %w", model, err)
	}
	return m, nil
}

// Infer asks for an answer, and waits for it. [Tensor.Array] has the elements of an output. The
// outputs belong to the caller.
func (c *Client) Infer(ctx context.Context, r Request) (*Response, error) {
	answer, err := c.infer(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("oip: infer with %q: %w", r.Model, err)
	}
	return answer, nil
}

func (c *Client) infer(ctx context.Context, r Request) (*Response, error) {
	type object = map[string]any
	settings := object{"binary_data_output": true}
	if r.Priority != 0 {
		settings["priority"] = r.Priority
	}
	if r.Timeout > 0 {
		settings["timeout"] = max(r.Timeout.Microseconds(), 1)
	}
	inputs, outputs := []object{}, []object{}
	var binary bytes.Buffer
	for _, t := range r.Inputs {
		raw := t.Raw()
		binary.Write(raw)
		inputs = append(inputs, object{"name": t.Name, "datatype": t.DataType, "shape": append([]int64{}, t.Shape...), "parameters": object{"binary_data_size": len(raw)}})
	}
	for _, o := range r.Outputs {
		parameters := object{"binary_data": true}
		if o.Classes > 0 {
			parameters["classification"] = o.Classes
		}
		outputs = append(outputs, object{"name": o.Name, "parameters": parameters})
	}
	message := object{"id": r.ID, "parameters": settings, "inputs": inputs}
	if len(outputs) > 0 {
		message["outputs"] = outputs
	}
	head, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	body, length, err := c.ask(ctx, http.MethodPost, modelPath(r.Model, r.Version)+"/infer", append(head, binary.Bytes()...), len(head))
	if err != nil {
		return nil, err
	}
	return parseAnswer(body, length)
}

// parseAnswer reads a JSON answer of this length, and the binary data behind it.
func parseAnswer(body []byte, length int) (*Response, error) {
	var m struct {
		ID      string      `json:"id"`
		Model   string      `json:"model_name"`
		Version string      `json:"model_version"`
		Outputs []inputJSON `json:"outputs"`
	}
	if err := json.Unmarshal(body[:length], &m); err != nil {
		return nil, fmt.Errorf("the answer is no JSON of the protocol: %w", err)
	}
	answer, raw := &Response{Model: m.Model, Version: m.Version, ID: m.ID}, body[length:]
	for _, o := range m.Outputs {
		t := Tensor{Name: o.Name, DataType: o.DataType, Shape: o.Shape}
		var err error
		if size := o.Parameters.BinaryDataSize; size == nil {
			err = t.setJSON(o.Data, func(int64) error { return nil })
		} else if *size < 0 || *size > int64(len(raw)) {
			err = fmt.Errorf("binary_data_size is %d, and %d bytes are left", *size, len(raw))
		} else {
			err = t.SetRaw(raw[:*size])
			raw = raw[*size:]
		}
		if err == nil && !t.whole() {
			err = fmt.Errorf("%d bytes of %s are not of the shape %v", len(t.Data), t.DataType, t.Shape)
		}
		if err != nil {
			return nil, fmt.Errorf("the answer's output %q: %v", o.Name, err) // no fault of the request
		}
		answer.Outputs = append(answer.Outputs, t)
	}
	return answer, nil
}

func modelPath(model, version string) string {
	path := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		path += "/versions/" + url.PathEscape(version)
	}
	return path
}

// errorOf has the errors of statuses, as StatusOf gives these statuses to errors.
var errorOf = map[int]error{
	http.StatusBadRequest:            ErrInvalidArgument,
	http.StatusRequestEntityTooLarge: ErrInvalidArgument,
	http.StatusNotFound:              serve.ErrNotFound,
	http.StatusTooManyRequests:       serve.ErrQueueFull,
	http.StatusInternalServerError:   serve.ErrModel,
	http.StatusServiceUnavailable:    serve.ErrNotLoaded,
	http.StatusGatewayTimeout:        context.DeadlineExceeded,
}

// ask sends a request, whose JSON has a length if binary data follows. It returns the body of the
// answer, and the length of the JSON in it.
func (c *Client) ask(ctx context.Context, method, path string, body []byte, length int) (answer []byte, jsonLength int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	for name, values := range c.Header {
		r.Header[name] = values
	}
	if length > 0 {
		r.Header.Set("Content-Type", "application/octet-stream")
		r.Header.Set(lengthHeader, strconv.Itoa(length))
	}
	got, err := cmp.Or(c.HTTP, http.DefaultClient).Do(r)
	if err != nil {
		return nil, 0, ended(ctx, err)
	}
	defer got.Body.Close()
	answer, err = io.ReadAll(got.Body)
	if err != nil {
		return nil, 0, ended(ctx, fmt.Errorf("the answer ends early: %w", err))
	}
	if got.StatusCode != http.StatusOK {
		var m struct{ Error string }
		if json.Unmarshal(answer, &m) != nil || m.Error == "" {
			m.Error = fmt.Sprintf("%.200q", answer)
		}
		return nil, 0, &refusal{got.Status + ": " + m.Error, errorOf[got.StatusCode]}
	}
	jsonLength = len(answer)
	if header := got.Header.Get(lengthHeader); header != "" {
		if jsonLength, err = strconv.Atoi(header); err != nil || jsonLength < 0 || jsonLength > len(answer) {
			return nil, 0, fmt.Errorf("the answer has %d bytes, and %s is %.20q", len(answer), lengthHeader, header)
		}
	}
	return answer, jsonLength, nil
}

// refusal is the text of a server, and what it means.
type refusal struct {
	text string
	kind error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

// ended returns the cause of ctx's end, if it has ended.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
