package oip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

// asking returns a client of a server with the models of open.
func asking(t *testing.T, o Options) *Client {
	_, h := open(t, o)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return &Client{URL: server.URL + "/", HTTP: server.Client()}
}

func pair(a, b []float32) []Tensor {
	return []Tensor{TensorOf("b", serve.Of(b, 1, 2)), TensorOf("a", serve.Of(a, 1, 2))}
}

func TestClient(t *testing.T) {
	c := asking(t, Options{})
	m, err := c.Metadata(context.Background(), "sum", "")
	if err != nil || m.Name != "sum" || len(m.Inputs) != 2 || m.Outputs[1].Name != "half" || m.Outputs[1].DataType != "FP16" {
		t.Errorf("%+v, %v", m, err)
	}
	together.Run(8, func(i int) {
		v := float32(i)
		got, err := c.Infer(context.Background(), Request{Model: "sum", ID: strconv.Itoa(i), Inputs: pair([]float32{v, float32(math.Inf(1))}, []float32{10, 20}), Timeout: time.Minute})
		if err != nil || got.ID != strconv.Itoa(i) || got.Model != "sum" || got.Version != "1" || len(got.Outputs) != 2 || got.Outputs[0].Name != "sum" {
			t.Errorf("%+v, %v", got, err)
			return
		}
		a, err := got.Outputs[0].Array()
		sums, err2 := serve.Elements[float32](a)
		if err = errors.Join(err, err2); err != nil || !slices.Equal(sums, []float32{v + 10, float32(math.Inf(1))}) || !slices.Equal(a.Shape, []int64{1, 2}) {
			t.Errorf("%v %v, %v", sums, a.Shape, err)
		}
	})
	got, err := c.Infer(context.Background(), Request{Model: "sum", Version: "1", Inputs: pair([]float32{1, 2}, []float32{3, 4}), Outputs: []Output{{Name: "half"}, {Name: "sum", Classes: 1}}})
	if err != nil || len(got.Outputs) != 2 || got.Outputs[0].Name != "half" || string(got.Outputs[1].Bytes[0]) != "6.000000:1" {
		t.Errorf("%+v, %v", got, err)
	}
	picture := Tensor{Name: "image", DataType: "BYTES", Shape: []int64{1}, Bytes: [][]byte{[]byte("abc")}}
	if _, err := c.Infer(context.Background(), Request{Model: "picture", Inputs: []Tensor{picture}}); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "not decoded: no picture") {
		t.Error(err)
	}
}

func TestClient_Refused(t *testing.T) {
	c := asking(t, Options{MaxBody: 4096})
	good := pair([]float32{1, 2}, []float32{3, 4})
	cancelled, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	cancel(enough)
	for name, r := range map[string]struct {
		ctx  context.Context
		r    Request
		kind error
		text string
	}{
		"model":     {context.Background(), Request{Model: "none", Inputs: good}, serve.ErrNotFound, `oip: infer with "none": 404 Not Found: `},
		"parents":   {context.Background(), Request{Model: "..", Inputs: good}, serve.ErrNotFound, "404"},
		"slash":     {context.Background(), Request{Model: "a/b", Inputs: good}, serve.ErrNotFound, "404"},
		"version":   {context.Background(), Request{Model: "sum", Version: "2", Inputs: good}, serve.ErrNotFound, "404"},
		"an input":  {context.Background(), Request{Model: "sum", Inputs: good[:1]}, ErrInvalidArgument, `400 Bad Request: the request has the inputs ["b"]`},
		"an output": {context.Background(), Request{Model: "sum", Inputs: good, Outputs: []Output{{Name: "x"}}}, ErrInvalidArgument, `the output "x"`},
		"large":     {context.Background(), Request{Model: "sum", Inputs: []Tensor{TensorOf("a", serve.Of(make([]float32, 2000)))}}, ErrInvalidArgument, "413"},
		"cancelled": {cancelled, Request{Model: "sum", Inputs: good}, enough, "enough"},
	} {
		if got, err := c.Infer(r.ctx, r.r); got != nil || !errors.Is(err, r.kind) || !strings.Contains(err.Error(), r.text) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, r.text)
		}
	}
	if _, err := c.Metadata(context.Background(), "none", ""); !errors.Is(err, serve.ErrNotFound) {
		t.Error(err)
	}
	gone := &Client{URL: "http://127.0.0.1:1"}
	if _, err := gone.Metadata(context.Background(), "sum", ""); err == nil {
		t.Error("no error without a server")
	}
}

// A server that answers nonsense gives an error, and no panic.
func TestClient_BadAnswers(t *testing.T) {
	outputs := func(s string) string { return `{"model_name":"m","outputs":[` + s + `]}` }
	for body, c := range map[string]struct {
		length string
		status int
		text   string
	}{
		"":                 {"", 200, "no JSON"},
		"{}":               {"3", 200, "the answer has 2 bytes"},
		"[]":               {"", 200, "no JSON"},
		"gateway":          {"", 502, `502 Bad Gateway: "gateway"`},
		`{"error":"full"}`: {"", 429, "429 Too Many Requests: full"},
		outputs(`{"name":"y","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}`) + "1234": {"", 200, "no JSON"},
		outputs(`{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":8}}`):          {"", 200, "0 bytes are left"},
		outputs(`{"name":"y","datatype":"FP32","shape":[-1],"data":[1]}`):                                  {"", 200, "output \"y\""},
		outputs(`{"name":"y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":0}}`):        {"", 200, "not of the shape [1 2]"},
		outputs(`{"name":"y","datatype":"BYTES","shape":[2],"data":["a"]}`):                                {"", 200, "output \"y\""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c.length != "" {
				w.Header().Set(lengthHeader, c.length)
			}
			w.WriteHeader(c.status)
			io.WriteString(w, body)
		}))
		got, err := (&Client{URL: server.URL}).Infer(context.Background(), Request{Model: "m"})
		if got != nil || err == nil || !strings.Contains(err.Error(), c.text) || errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: %+v, %v, want %q", body, got, err, c.text)
		}
		server.Close()
	}
}

// The header goes with each request, and a JSON answer is read too.
func TestClient_HeaderAndJSON(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(401)
			return
		}
		fmt.Fprint(w, `{"model_name":"m","outputs":[{"name":"y","datatype":"INT64","shape":[2,1],"data":[[3],[4]]}]}`)
	}))
	defer server.Close()
	c := &Client{URL: server.URL, Header: http.Header{"Authorization": {"Bearer t"}}}
	got := must.Get(c.Infer(context.Background(), Request{Model: "m"}))(t)
	a, _ := got.Outputs[0].Array()
	if v, err := serve.Elements[int64](a); err != nil || !slices.Equal(v, []int64{3, 4}) {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := (&Client{URL: server.URL}).Infer(context.Background(), Request{Model: "m"}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Error(err)
	}
}
