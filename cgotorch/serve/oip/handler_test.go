package oip

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// raw is a Decoder of files that hold the pixels.
type raw struct{}

func (raw) Workers() int                        { return 1 }
func (raw) Size() (height, width, channels int) { return 1, 2, 3 }
func (raw) DecodeFiles(files [][]byte, to []byte) error {
	if copy(to, files[0]) != len(files[0]) || len(to) != len(files[0]) {
		return errors.New("no picture")
	}
	return nil
}

// open returns a server of the models "sum", which adds two inputs, and "picture", which scores 3
// classes by the first pixel.
func open(t testing.TB, o Options) (*serve.Repository, http.Handler) {
	torchtest.CheckLeaks(t)
	models := serve.NewRepository(serve.RepositoryOptions{})
	t.Cleanup(func() { must.Check(t, models.Close()) })
	batcher := func(fn func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor, labels []string, o serve.Options) func() (*serve.Model, error) {
		return func() (*serve.Model, error) {
			b, err := serve.New(torchtest.Device(), fn, o)
			return &serve.Model{Batcher: b, Labels: labels}, err
		}
	}
	sum := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{x.Add(in[0], in[1]), x.To(in[1], cgotorch.Float16)}
	}
	picture := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		v := x.To(x.Select(x.Select(in[0], 1, 0), 1, 0), cgotorch.Float32)
		return []*cgotorch.Tensor{v}
	}
	spec := func(name string) serve.Spec {
		return serve.Spec{Name: name, DType: cgotorch.Float32, Shape: []int64{2}}
	}
	err := errors.Join(
		models.Add("sum", "1", batcher(sum, nil, serve.Options{Inputs: []serve.Spec{spec("a"), spec("b")}, Outputs: []string{"sum", "half"}, BatchSizes: []int{1, 4}})),
		models.Add("picture", "3", batcher(picture, []string{"red", "green", "blue"}, serve.Options{Inputs: []serve.Spec{{Name: "image", Decoder: raw{}}}, BatchSizes: []int{4}})),
		models.Load(context.Background(), "sum", ""), models.Load(context.Background(), "picture", ""))
	must.Do(t, err)
	return models, NewHandler(models, o)
}

// call returns the answer's status and body.
func call(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// answers fails the test unless a call is answered with a status and a text.
func answers(t *testing.T, h http.Handler, method, path, body string, status int, text string) {
	t.Helper()
	if w := call(h, method, path, body); w.Code != status || !strings.Contains(w.Body.String(), text) {
		t.Errorf("%s: %d %s, want %d %s", path, w.Code, w.Body, status, text)
	}
}

func floats(v ...float32) string {
	var raw []byte
	for _, f := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	return string(raw)
}

const sumJSON = `{"id":"7","inputs":[{"name":"b","datatype":"FP32","shape":[1,2],"data":[10,20]},{"name":"a","datatype":"FP32","shape":[1,2],"data":[[1.5,2e0]]}],"outputs":[{"name":"sum"}]}`

func TestInfer_JSON(t *testing.T) {
	var seen []Observation
	_, h := open(t, Options{Observe: func(o Observation) { seen = append(seen, o) }})
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w := call(h, "POST", "/v2/models/sum/infer", sumJSON, "Traceparent", trace)
	const want = `{"id":"7","model_name":"sum","model_version":"1","outputs":[{"name":"sum","datatype":"FP32","shape":[1,2],"data":[11.5,22]}]}`
	if w.Code != 200 || w.Body.String() != want || w.Header().Get("Traceparent") != trace {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if len(seen) != 1 || seen[0].Model != "sum" || seen[0].Version != "1" || seen[0].Status != 200 || seen[0].Took <= 0 {
		t.Errorf("%+v", seen)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, sumJSON)
	z.Close()
	if w := call(h, "POST", "/v2/models/sum/versions/1/infer", zipped.String(), "Content-Encoding", "gzip"); w.Body.String() != want {
		t.Errorf("gzip: %d %s", w.Code, w.Body)
	}
}

// A panic of the model is an error of its request, without the stack.
func TestInfer_Panics(t *testing.T) {
	var seen []Observation
	models, h := open(t, Options{Observe: func(o Observation) { seen = append(seen, o) }})
	var armed atomic.Bool
	err := models.Add("panics", "1", func() (*serve.Model, error) {
		b, err := serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			if armed.Load() {
				panic("secret")
			}
			return in
		}, serve.Options{Inputs: []serve.Spec{{Name: "a", DType: cgotorch.Float32, Shape: []int64{1}}}})
		return &serve.Model{Batcher: b}, err
	})
	if err = errors.Join(err, models.Load(context.Background(), "panics", "")); err != nil {
		t.Fatal(err)
	}
	const body = `{"inputs":[{"name":"a","datatype":"FP32","shape":[1,1],"data":[1]}]}`
	armed.Store(true)
	if w := call(h, "POST", "/v2/models/panics/infer", body); w.Code != 500 || strings.Contains(w.Body.String(), "secret") || !strings.Contains(w.Body.String(), "panicked") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if len(seen) != 1 || seen[0].Status != 500 || !strings.Contains(fmt.Sprint(errors.Unwrap(seen[0].Err)), "secret") {
		t.Errorf("%+v", seen)
	}
	armed.Store(false)
	answers(t, h, "POST", "/v2/models/panics/infer", body, 200, "")
}

// Few bytes do not become much memory, and a client that only promises bytes takes none.
func TestInfer_SmallBodies(t *testing.T) {
	_, h := open(t, Options{MaxBody: 8 << 20, Memory: 32 << 20})
	ones := strings.Repeat("1,", 3_000_000) + "1"
	for _, c := range []struct {
		text, body string
		status     int
	}{
		{"more than 1024 tensors", `{"inputs":[` + strings.Repeat("{},", 2_000_000) + "{}]}", 400},
		{"more than 65536 elements", `{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":[` + strings.Repeat(`"",`, 2_000_000) + `""]}]}`, 400},
		{"more than 32 dimensions", `{"inputs":[{"name":"image","datatype":"UINT8","shape":[` + ones + `],"data":[1]}]}`, 400},
		{"another number of elements", `{"inputs":[{"name":"image","datatype":"INT64","shape":[1,6],"data":[` + ones + `]}]}`, 400},
		{"take 24000008 bytes beside", `{"inputs":[{"name":"image","datatype":"INT64","shape":[3000001],"data":[` + ones + `]}]}`, 413},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := call(h, "POST", "/v2/models/picture/infer", c.body)
		runtime.ReadMemStats(&after)
		// A buffer that grows to 8 MiB is 16 MiB of allocations, and the copy of the JSON is 8 MiB.
		// Without the limits on elements it would be hundreds.
		if used := after.TotalAlloc - before.TotalAlloc; w.Code != c.status || !strings.Contains(w.Body.String(), c.text) || used > 40<<20 {
			t.Errorf("%d %s, %d MiB, want %q", w.Code, w.Body, used>>20, c.text)
		}
	}
	slow, sender := io.Pipe()
	done := make(chan int, 1)
	go func() {
		r := httptest.NewRequest("POST", "/v2/models/sum/infer", slow)
		r.ContentLength = 8 << 20
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		done <- w.Code
	}()
	sender.Write([]byte("{"))
	answers(t, h, "POST", "/v2/models/sum/infer", sumJSON, 200, "")
	sender.Close()
	if code := <-done; code != 400 {
		t.Errorf("a body that ends early: %d", code)
	}
}

func TestInfer_Binary(t *testing.T) {
	_, h := open(t, Options{})
	head := `{"inputs":[{"name":"a","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}},{"name":"b","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}],"parameters":{"binary_data_output":true}}`
	w := call(h, "POST", "/v2/models/sum/infer", head+floats(1, 2, 3, 4)+floats(10, 20, 30, 40), lengthHeader, strconv.Itoa(len(head)))
	n, _ := strconv.Atoi(w.Header().Get(lengthHeader))
	if w.Code != 200 || n == 0 || n > w.Body.Len() {
		t.Fatalf("%d, header of %d: %s", w.Code, n, w.Body)
	}
	half := "\x00\x49\x00\x4d\x80\x4f\x00\x51" // 10, 20, 30 and 40
	if text := w.Body.String()[n:]; text != floats(11, 22, 33, 44)+half {
		t.Errorf("%q behind %s", text, w.Body.String()[:n])
	}
}

func TestInfer_Pictures(t *testing.T) {
	_, h := open(t, Options{})
	head := `{"inputs":[{"name":"image","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":20}}],"outputs":[{"name":"output0","parameters":{"classification":2}}]}`
	file := func(pixels string) string {
		return string(binary.LittleEndian.AppendUint32(nil, uint32(len(pixels)))) + pixels
	}
	w := call(h, "POST", "/v2/models/picture/infer", head+file("\x01\x05\x03...")+file("\x09\x08\x07..."), lengthHeader, strconv.Itoa(len(head)))
	if want := `"datatype":"BYTES","shape":[2,2],"data":["5.000000:1:green","3.000000:2:blue","9.000000:0:red","8.000000:1:green"]`; w.Code != 200 || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = call(h, "POST", "/v2/models/picture/infer", `{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["abc"]}]}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "not decoded: no picture") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = call(h, "POST", "/v2/models/picture/infer", `{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,1,2,3],"data":[1,2,3,4,5,6]}]}`)
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"data":[1,2,3]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestInfer_Refused(t *testing.T) {
	_, h := open(t, Options{MaxBody: 4096})
	sum := "/v2/models/sum/infer"
	in := func(b string) string {
		return `{"inputs":[{"name":"a","datatype":"FP32","shape":[1,2],"data":[1,2]},` + b + `]}`
	}
	half := in(`{"name":"b","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":4}}`)
	for _, c := range []struct {
		path, body, text string
		status           int
		headers          []string
	}{
		{"/v2/models/none/infer", sumJSON, "no such model", 404, nil},
		{"/v2/models/sum/versions/2/infer", sumJSON, "no such model", 404, nil},
		{sum, "", "no JSON of the protocol", 400, nil},
		{sum, "[]", "no JSON of the protocol", 400, nil},
		{sum, `{"inputs":[]}`, `want [\"a\" \"b\"]`, 400, nil},
		{sum, in(`{"name":"c","datatype":"FP32","shape":[1,2],"data":[1,2]}`), `want [\"a\" \"b\"]`, 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[1,2],"data":[1]}`), "another number of elements", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[1,2],"data":[1,2,3]}`), "another number of elements", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[-1,-2],"data":[1,2]}`), "another number of elements", 400, nil},
		{sum, half + "1234", "has 4 bytes", 400, []string{lengthHeader, strconv.Itoa(len(half))}},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[1,2],"data":[1,"x"]}`), "the element", 400, nil},
		{sum, in(`{"name":"b","datatype":"INT32","shape":[1,2],"data":[1,2]}`), "is int32, want float32", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP16","shape":[1,2],"data":[1,2]}`), "no JSON form", 400, nil},
		{sum, in(`{"name":"b","datatype":"UINT64","shape":[1,2],"data":[1,2]}`), "UINT64", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[3037000500,3037000500],"data":[1,2]}`), "has the shape", 400, nil},
		{sum, in(`{"name":"b","datatype":"BYTES","shape":[1],"data":["x"]}`), "encoded files", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}`), "0 bytes are left", 400, nil},
		{sum, strings.Replace(sumJSON, `"name":"sum"`, `"name":"product"`, 1), `the output \"product\"`, 400, nil},
		{sum, strings.Replace(sumJSON, `"name":"sum"`, `"name":"half"`, 1), "ask for binary data", 400, nil},
		{sum, strings.Replace(sumJSON, `[{"name":"sum"}]`, `[{"name":"sum"},{"name":"half"},{"name":"sum"}]`, 1), `asks twice for the output \"sum\"`, 400, nil},
		{sum, strings.Replace(sumJSON, `"id":"7"`, `"parameters":{"timeout":-1}`, 1), "timeout", 400, nil},
		{sum, in(`{"name":"b","datatype":"FP32","shape":[1,2],"parameters":{"shared_memory_region":"r"}}`), `"b\" is in shared memory`, 400, nil},
		{sum, strings.Replace(sumJSON, `"name":"sum"`, `"name":"sum","parameters":{"shared_memory_region":"r"}`, 1), `"sum\" is in shared memory`, 400, nil},
		{sum, sumJSON, "has 172 bytes", 400, []string{lengthHeader, "185"}},
		{sum, sumJSON + "tail", "belong to no input", 400, []string{lengthHeader, strconv.Itoa(len(sumJSON))}},
		{sum, "no gzip", "not gzip", 400, []string{"Content-Encoding", "gzip"}},
		{sum, "", "Content-Encoding", 400, []string{"Content-Encoding", "br"}},
		{sum, strings.Repeat(" ", 4097), "too large", 413, nil},
		{sum, zeros(1 << 20), "too large", 413, []string{"Content-Encoding", "gzip"}},
	} {
		w := call(h, "POST", c.path, c.body, c.headers...)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%.150s: %d %s, want %d %q", c.body, w.Code, w.Body, c.status, c.text)
		}
	}
}

// zeros returns so many zeros in gzip.
func zeros(n int) string {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(make([]byte, n))
	z.Close()
	return zipped.String()
}

// The bodies of all requests have one bound, and a body that never ends holds its part alone.
func TestInfer_Memory(t *testing.T) {
	_, h := open(t, Options{MaxBody: 1000, Memory: 1500})
	from, to := io.Pipe()
	done := make(chan *httptest.ResponseRecorder)
	go func() {
		r := httptest.NewRequest("POST", "/v2/models/sum/infer", from)
		r.ContentLength = 1000
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		done <- w
	}()
	to.Write([]byte("{")) // the body is being read
	long := sumJSON + strings.Repeat(" ", 600-len(sumJSON))
	if w := call(h, "POST", "/v2/models/sum/infer", long); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("beside a body that does not end: %d %s", w.Code, w.Body)
	}
	answers(t, h, "POST", "/v2/models/sum/infer", sumJSON, 200, "")
	to.CloseWithError(io.ErrUnexpectedEOF)
	if w := <-done; w.Code != 400 {
		t.Errorf("a body that ends early: %d %s", w.Code, w.Body)
	}
	answers(t, h, "POST", "/v2/models/sum/infer", long, 200, "")
}

// trickle gives a byte every 5 ms.
type trickle struct{}

func (trickle) Read(to []byte) (int, error) {
	time.Sleep(5 * time.Millisecond)
	return copy(to, " "), nil
}

// A body that does not come has the status of its reason: the client has gone, or a time is over.
func TestInfer_BodyEnds(t *testing.T) {
	seen := make(chan Observation, 1)
	_, h := open(t, Options{Observe: func(o Observation) { seen <- o }})
	want := func(status int) {
		t.Helper()
		if o := <-seen; o.Status != status {
			t.Errorf("%d %v, want %d", o.Status, o.Err, status)
		}
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.ReadTimeout = 200 * time.Millisecond
	server.Start()
	defer server.Close()
	for _, leaves := range []bool{true, false} {
		c := must.Get(net.Dial("tcp", server.Listener.Addr().String()))(t)
		defer c.Close()
		fmt.Fprint(c, "POST /v2/models/sum/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
		if leaves {
			c.Close()
			want(499)
		} else {
			want(504)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, "POST", "/v2/models/sum/infer", trickle{})
	r.ContentLength = 1000
	h.ServeHTTP(httptest.NewRecorder(), r)
	want(504)
}

func TestHandler_About(t *testing.T) {
	models, h := open(t, Options{Name: "test", Version: "2"})
	call(h, "POST", "/v2/models/sum/infer", sumJSON)
	for _, c := range []struct {
		path, text string
		status     int
	}{
		{"/v2", `{"name":"test","version":"2","extensions":["binary_tensor_data","classification","model_configuration","statistics"]}`, 200},
		{"/v2/health/live", `{"live":true}`, 200},
		{"/v2/health/ready", `{"ready":true}`, 200},
		{"/v2/models/picture", `{"name":"picture","versions":["3"],"platform":"streamtorch","inputs":[{"name":"image","datatype":"UINT8","shape":[-1,1,2,3]}],"outputs":[{"name":"output0","datatype":"FP32","shape":[-1,3]}]}`, 200},
		{"/v2/models/picture/versions/3/ready", `{"name":"picture","ready":true}`, 200},
		{"/v2/models/picture/versions/4/ready", "no such model", 404},
		{"/v2/models/none", "no such model", 404},
		{"/v2/models/sum/config", `"max_batch_size":4`, 200},
		{"/v2/models/sum/stats", `"inference_count":1,"execution_count":1`, 200},
		{"/v2/models/picture/stats", `"batch_stats":[]`, 200},
		{"/v2/models/stats", `"name":"picture"`, 200},
		{"/v2/models/none/stats", "no such model", 404},
		{"/v2/repository/index", `"GET /v2/repository/index: models are not listed`, 404},
		{"/v2/systemsharedmemory/status", "no memory of its clients", 501},
		{"/v2/cudasharedmemory/region/a/register", "no memory of its clients", 501},
		{"/v2/models/sum/trace/setting", "no settings", 501},
		{"/v2/models/sum/infer", `{"error":"GET /v2/models/sum/infer: there is no such path`, 404},
	} {
		method := "GET"
		if w := call(h, method, c.path, ""); w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %s, want %d %s", c.path, w.Code, w.Body, c.status, c.text)
		}
	}
	must.Check(t, models.Unload(context.Background(), "picture", ""))
	answers(t, h, "GET", "/v2/models/picture/ready", "", 503, "")
	must.Check(t, models.Unload(context.Background(), "sum", ""))
	answers(t, h, "GET", "/v2/health/ready", "", 503, "")
}

func TestHandler_Control(t *testing.T) {
	_, h := open(t, Options{Control: true})
	index := func() string { return call(h, "POST", "/v2/repository/index", "").Body.String() }
	if text := index(); text != `[{"name":"picture","version":"3","state":"READY","reason":""},{"name":"sum","version":"1","state":"READY","reason":""}]` {
		t.Error(text)
	}
	answers(t, h, "POST", "/v2/repository/models/sum/unload", "", 200, "")
	if text := index(); !strings.Contains(text, `"sum","version":"1","state":"UNAVAILABLE"`) {
		t.Error(text)
	}
	if text := call(h, "POST", "/v2/repository/index", `{"ready":true}`).Body.String(); strings.Contains(text, `"sum"`) || !strings.Contains(text, `"picture"`) {
		t.Error(text)
	}
	answers(t, h, "POST", "/v2/models/sum/infer", sumJSON, 503, "")
	answers(t, h, "POST", "/v2/repository/models/sum/load", `{"parameters":{"config":"{}"}}`, 400, "neither a configuration nor files")
	answers(t, h, "POST", "/v2/repository/models/sum/load", "no JSON", 400, "")
	answers(t, h, "POST", "/v2/repository/models/sum/load", "{}", 200, "")
	answers(t, h, "POST", "/v2/models/sum/infer", sumJSON, 200, "")
	answers(t, h, "POST", "/v2/repository/models/none/load", "", 404, "")
}

// Why a load has failed is told where models are controlled alone: it may hold paths of the server.
func TestHandler_Ready_Reason(t *testing.T) {
	models, h := open(t, Options{})
	must.Do(t, models.Add("bad", "1", func() (*serve.Model, error) { return nil, errors.New("no /secret/path") }))
	_ = models.Load(context.Background(), "bad", "")
	if w := call(h, "GET", "/v2/health/ready", ""); w.Code != 503 || strings.Contains(w.Body.String(), "secret") || !strings.Contains(w.Body.String(), "bad, version 1") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	answers(t, NewHandler(models, Options{Control: true}), "GET", "/v2/health/ready", "", 503, "secret")
}

// What a model answers and what the server tells of it agree, also when it cannot be loaded again.
func TestHandler_Reload_Fails(t *testing.T) {
	torchtest.CheckLeaks(t)
	const each = 1 << 30 // so that one model fits
	models := serve.NewRepository(serve.RepositoryOptions{Memory: 2*each - 1})
	defer models.Close()
	load := func() error { return nil } // before a load, which fails with its error
	ctx := context.Background()
	for _, name := range []string{"a", "b"} {
		err := models.Add(name, "1", func() (*serve.Model, error) {
			if name == "a" {
				if err := load(); err != nil {
					return nil, err
				}
			}
			b, err := serve.New(cgotorch.CPU, func(_ *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor { return in },
				serve.Options{Inputs: []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{1}}}, BatchSizes: []int{1}})
			return &serve.Model{Batcher: b, Weights: each}, err
		})
		if err = errors.Join(err, models.Load(ctx, name, "")); err != nil {
			t.Fatal(err)
		}
	}
	var seen Observation
	h := NewHandler(models, Options{Observe: func(o Observation) { seen = o }})
	infer := func(model string, status int, text string) {
		t.Helper()
		answers(t, h, "POST", "/v2/models/"+model+"/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}`, status, text)
	}
	about := func(status int) {
		t.Helper()
		for _, path := range []string{"/v2/health/ready", "/v2/models/a/ready", "/v2/models/a/versions/1/stats"} {
			answers(t, h, "GET", path, "", status, "")
		}
	}
	about(200)
	load = func() error { return fmt.Errorf("a: %w", cgotorch.ErrOutOfMemory) }
	infer("a", 503, "out of memory")
	about(200)
	load = func() error { return nil }
	infer("a", 200, "")

	infer("b", 200, "")
	load = func() error { panic("secret") }
	infer("a", 500, "has panicked")
	if text := fmt.Sprint(seen.Err); strings.Contains(text, "secret") || !strings.Contains(fmt.Sprint(errors.Unwrap(seen.Err)), "secret") {
		t.Errorf("observed %s, and in it %v", text, errors.Unwrap(seen.Err))
	}
	infer("a", 503, "not loaded")
	about(503)
	load = func() error { return nil }
	must.Check(t, models.Load(ctx, "a", ""))
	infer("a", 200, "")
	about(200)

	infer("b", 200, "")
	load = func() error { return fmt.Errorf("a file of a: %w", ErrInvalidArgument) } // not of the request
	infer("a", 503, "not loaded")
	about(503)
}

// A result that JSON cannot hold is no fault of the request. Binary data holds it.
func TestInfer_NotANumber(t *testing.T) {
	_, h := open(t, Options{})
	const inputs = `"inputs":[{"name":"a","datatype":"FP32","shape":[1,2],"data":[3e38,0]},{"name":"b","datatype":"FP32","shape":[1,2],"data":[3e38,0]}]`
	answers(t, h, "POST", "/v2/models/sum/infer", `{`+inputs+`,"outputs":[{"name":"sum"}]}`, 500, `output \"sum\": element 0: the model has answered +Inf, which has no JSON form: ask for binary data`)
	answers(t, h, "POST", "/v2/models/sum/infer", `{`+inputs+`,"outputs":[{"name":"sum","parameters":{"binary_data":true}}]}`, 200, "")
}

// Scores that JSON cannot hold are the model's fault, as for infer.
func TestClassify_NotANumber(t *testing.T) {
	for name, c := range map[string]struct {
		value float64
		text  string
	}{
		"NaN": {math.NaN(), "NaN"}, "+Inf": {math.Inf(1), "+Inf"}, "-Inf": {math.Inf(-1), "-Inf"},
	} {
		models := serve.NewRepository(serve.RepositoryOptions{})
		err := models.Add("scores", "1", func() (*serve.Model, error) {
			b, err := serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
				v := x.To(x.Select(x.Select(in[0], 1, 0), 1, 0), cgotorch.Float32)
				return []*cgotorch.Tensor{x.Add(v, x.Full(cgotorch.Float32, c.value, 1))}
			}, serve.Options{Inputs: []serve.Spec{{Name: "image", Decoder: raw{}}}, Outputs: []string{"scores"}})
			return &serve.Model{Batcher: b}, err
		})
		if err = errors.Join(err, models.Load(context.Background(), "scores", "")); err != nil {
			t.Fatal(err)
		}
		var seen Observation
		h := NewHandler(models, Options{Observe: func(o Observation) { seen = o }})
		w := call(h, "POST", "/v2/models/scores/classify", "pixels")
		if want := `output \"scores\": the model has given class 0 the score ` + c.text; w.Code != 500 || !strings.Contains(w.Body.String(), want) || seen.Status != 500 {
			t.Errorf("%s: %d %s, observed %d, want %s", name, w.Code, w.Body, seen.Status, want)
		}
		w = call(h, "POST", "/v2/models/scores/infer", `{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,1,2,3],"data":[1,2,3,4,5,6]}]}`)
		if w.Code != 500 || !strings.Contains(w.Body.String(), c.text) || errors.Is(seen.Err, ErrInvalidArgument) {
			t.Errorf("%s: %d %s, observed %v", name, w.Code, w.Body, seen.Err)
		}
		must.Check(t, models.Close())
	}
}

// No path is redirected: clients of the protocol do not follow.
func TestHandler_Paths(t *testing.T) {
	_, h := open(t, Options{})
	for _, path := range []string{"/v2/models/..", "/v2/models/../..", "/v2/models/.", "/v2/models/./sum", "/v2/models//sum", "/v2//models/sum", "/v2/models/../models/sum",
		"/v2/models/sum/../sum/ready", "/v2/models/%2e%2e", "/v2/models/%2E%2E/ready", "/v2/models/..%2f..", "/v2/models/sum/", "/v2/models/%00", "/v2/.."} {
		for _, method := range []string{"GET", "POST"} {
			w := call(h, method, path, "")
			if w.Code != 404 || !json.Valid(w.Body.Bytes()) || !strings.Contains(w.Body.String(), "error") {
				t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	answers(t, h, "GET", "/v2/", "", 200, "")
}

// Broken pictures and unknown models count as requests, and not as failures of a model.
func TestMetrics(t *testing.T) {
	models, _ := open(t, Options{})
	m := NewMetrics(models, torchtest.Device())
	h := NewHandler(models, Options{Observe: m.Observe})
	call(h, "POST", "/v2/models/sum/infer", sumJSON)
	call(h, "POST", "/v2/models/none/infer", sumJSON)
	call(h, "POST", "/v2/models/picture/infer", `{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["abc"]}]}`)
	text := call(m, "GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`streamtorch_requests_total{model="sum",status="200",version="1"} 1`,
		`streamtorch_requests_total{model="",status="404",version=""} 1`,
		`streamtorch_requests_total{model="picture",status="400",version=""} 1`,
		`streamtorch_failed_total{model="picture",version="3"} 0`,
		`streamtorch_entries_total{model="sum",version="1"} 1`,
		`streamtorch_request_seconds_count{model="sum"} 1`,
		`streamtorch_model_ready{model="sum",version="1"} 1`,
		`streamtorch_request_seconds_bucket{model="sum",le="+Inf"} 1`,
		"# TYPE streamtorch_request_seconds histogram",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
}

// A list has the models that its scan has found.
func TestHandler_ScansFirst(t *testing.T) {
	var models *serve.Repository
	add := func() error {
		return models.Add("found", "1", func() (*serve.Model, error) { return nil, errors.New("not here") })
	}
	models, h := open(t, Options{Control: true, Scan: func(context.Context) error { return add() }})
	if text := call(h, "POST", "/v2/repository/index", "").Body.String(); !strings.Contains(text, `"found"`) {
		t.Error(text)
	}
}

// A failure inside the model is not the client's, whatever LibTorch calls it.
func TestStatusOf(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{context.Background(), nil, 200},
		{context.Background(), serve.ErrQueueFull, 429},
		{context.Background(), fmt.Errorf("a: %w", cgotorch.ErrDeviceLost), 503},
		{context.Background(), context.DeadlineExceeded, 504},
		{gone, errors.New("any"), 499},
		{context.Background(), errors.New("any"), 500},
		{context.Background(), cgotorch.ErrInvalidArgument, 400},
		{context.Background(), fmt.Errorf("%w: %w", serve.ErrModel, cgotorch.ErrInvalidArgument), 500},
		{context.Background(), fmt.Errorf("%w: %w", serve.ErrModel, cgotorch.ErrOutOfMemory), 503},
		{context.Background(), &panics.Hidden{Text: "a load", Cause: cgotorch.ErrInvalidArgument}, 500},
	} {
		if got := StatusOf(c.ctx, c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
	if _, err := Infer(context.Background(), serve.NewRepository(serve.RepositoryOptions{}), Request{Model: "a", Timeout: time.Nanosecond}); StatusOf(context.Background(), err) != 404 {
		t.Error(err)
	}
}

func unbounded(int64) error { return nil }

// Each datatype goes through JSON and the binary form unchanged.
func TestTensor_RoundTrip(t *testing.T) {
	for name, text := range map[string]string{
		"BOOL": "[true,false]", "UINT8": "[0,255]", "INT8": "[-128,127]", "INT16": "[-32768,32767]", "INT32": "[-2147483648,2147483647]",
		"INT64": "[-9223372036854775808,9223372036854775807]", "FP32": "[1e-45,-3.4028235e+38]", "FP64": "[5e-324,0.1]", "BYTES": `["a\u0001","é"]`,
	} {
		first := Tensor{Name: "x", DataType: name, Shape: []int64{2}}
		if err := first.setJSON([]byte(text), unbounded); err != nil {
			t.Error(name, err)
			continue
		}
		second := Tensor{Name: "x", DataType: name}
		if err := second.SetRaw(first.Raw()); err != nil {
			t.Error(name, err)
		}
		if got, err := second.appendJSON(nil); err != nil || string(got) != text {
			t.Errorf("%s: %s, %v, want %s", name, got, err, text)
		}
	}
	for name, text := range map[string]string{"UINT8": "[256]", "INT8": "[-129]", "INT32": "[1.5]", "BOOL": "[2]", "FP32": "[null]", "BYTES": "[1]"} {
		x := Tensor{Name: "x", DataType: name}
		torchtest.WantError(t, x.setJSON([]byte(text), unbounded), ErrInvalidArgument, name)
	}
	short := Tensor{DataType: "BYTES"}
	torchtest.WantError(t, short.SetRaw([]byte{5, 0, 0, 0, 1}), ErrInvalidArgument, "inside an element")
}

// FuzzParse: no body makes parse panic, and what it accepts has its bytes inside the body.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sumJSON), "")
	f.Add([]byte(`{"inputs":[{"name":"i","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}`+"\x01\x00\x00\x00x"), "87")
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		copied := slices.Clone(body)
		r, binary, err := parse(body, header, unbounded)
		if !bytes.Equal(body, copied) {
			t.Error("the body was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrInvalidArgument) {
				t.Error(err)
			}
			return
		}
		for _, in := range r.Inputs {
			if a, err := in.Array(); err == nil && a.Files == nil && len(a.Data) > 16*len(body)+16 {
				t.Errorf("%d bytes of a body of %d", len(a.Data), len(body))
			}
		}
		if len(binary) > len(r.Outputs)+1 {
			t.Errorf("%d forms of %d outputs", len(binary), len(r.Outputs))
		}
	})
}
