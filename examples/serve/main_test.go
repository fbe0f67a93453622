package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// server is a running server of the model in the repository.
type server struct {
	main, admin, grpc string // addresses
	stop              func() error
	client            *http.Client
}

// start runs the server on free ports, and waits until it is ready.
func start(t *testing.T, f flags) server {
	t.Helper()
	f.listen, f.admin, f.grpc, f.device = "localhost:0", "localhost:0", "localhost:0", torchtest.Device().String()
	if f.models == "" {
		f.models = "models"
	}
	if f.perClient == 0 {
		f.perClient = 64
	}
	if f.timeout == 0 {
		f.timeout = 10 * time.Second
	}
	f.batch, f.maxBody, f.maxPixels, f.drain, f.textTimeout = 8, 1, 1_000_000, 5*time.Second, 10*time.Second
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	opened := must.Get(open(f))(t)
	go func() {
		defer opened.close()
		ended <- opened.run(ctx)
	}()
	var once sync.Once
	var err error
	listen, admin := opened.http.Addr().String(), opened.admin.Addr().String()
	s := server{main: "http://" + listen, admin: "http://" + admin, grpc: opened.grpc.Addr().String(), client: &http.Client{Timeout: 20 * time.Second}}
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // as clients of the protocol
	if f.cert != "" {
		s.main, s.admin = "https://"+listen, "https://"+admin
		s.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the certificate is the test's own
	}
	s.stop = func() error {
		once.Do(func() {
			cancel()
			err = <-ended
		})
		return err
	}
	t.Cleanup(func() {
		must.Check(t, s.stop())
		s.client.CloseIdleConnections()
	})
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if r, err := s.client.Get(s.main + "/v2/health/ready"); err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				return s
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatal(err)
		default:
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("the server is not ready after 30 s")
		}
	}
}

// call returns the status and the body of an answer.
func (s server) call(t *testing.T, method, url string, body []byte, headers ...string) (int, string) {
	t.Helper()
	r := must.Get(http.NewRequest(method, url, bytes.NewReader(body)))(t)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.client.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must.Check(t, err)
	return answer.StatusCode, string(text)
}

// answers fails the test unless a call is answered with a status and a text.
func (s server) answers(t *testing.T, method, url string, body []byte, status int, text string, headers ...string) {
	t.Helper()
	if got, answer := s.call(t, method, url, body, headers...); got != status || !strings.Contains(answer, text) {
		t.Errorf("%s %s: %d %s, want %d %s", method, url, got, answer, status, text)
	}
}

func frog(t *testing.T) []byte {
	return must.Get(os.ReadFile("frog.jpg"))(t)
}

const classify = "/v2/models/cifar10/classify?top=1"

func TestServer(t *testing.T) {
	s := start(t, flags{})
	s.answers(t, "POST", s.main+classify, frog(t), 200, `"class":"frog"`)
	for _, c := range []struct {
		method, url, text string
		status            int
	}{
		{"GET", s.main + "/", "streamtorch serve", 200},
		{"GET", s.main + "/v2", `"name":"streamtorch"`, 200},
		{"GET", s.admin + "/v2", "model_repository", 200},
		{"GET", s.main + "/v2/models/cifar10", `"outputs":[{"name":"probabilities","datatype":"FP32","shape":[-1,10]}]`, 200},
		{"GET", s.main + "/metrics", "", 404},
		{"POST", s.main + "/v2/repository/index", "", 404},
		{"POST", s.main + "/v2/repository/models/cifar10/unload", "", 404},
		{"GET", s.admin + "/metrics", `streamtorch_requests_total{model="cifar10",status="200",version="1"} 1`, 200},
		{"GET", s.admin + "/metrics", `streamtorch_batches_total{entries="1",model="cifar10",version="1"} 1`, 200},
		{"POST", s.admin + "/v2/repository/index", `"state":"READY"`, 200},
		{"POST", s.admin + "/v2/repository/models/cifar10/unload", "{}", 200},
		{"POST", s.main + classify, "not loaded", 503},
		{"GET", s.main + "/v2/health/ready", "no model is loaded", 503},
		{"POST", s.admin + "/v2/repository/models/cifar10/load", "{}", 200},
		{"POST", s.admin + "/v2/repository/models/..%2F..%2Fmodels/load", "no such model", 404},
		{"GET", s.main + "/v2/health/ready", "", 200},
		{"POST", s.main + classify, "zero bytes", 400},
		{"GET", s.admin + "/metrics", `streamtorch_failed_total{model="cifar10",version="1"} 0`, 200}, // a broken picture is not the model's failure
		{"GET", s.main + "/v2/models/..", "error", 404},
		{"GET", s.main + "/v2/../v2/models/cifar10", "error", 404},
		{"GET", s.main + "/v2/models//cifar10", "error", 404},
		{"GET", s.admin + "/v2/models/../../metrics", "error", 404},
	} {
		s.answers(t, c.method, c.url, nil, c.status, c.text)
	}
	form := func(files ...[]byte) (body []byte, kind string) {
		var to bytes.Buffer
		w := multipart.NewWriter(&to)
		w.WriteField("comment", "none")
		for _, f := range files {
			part, _ := w.CreateFormFile("file", "frog.jpg")
			part.Write(f)
		}
		w.Close()
		return to.Bytes(), w.FormDataContentType()
	}
	for _, c := range []struct {
		files  [][]byte
		cut    int // bytes that the body lacks at its end
		text   string
		status int
	}{
		{[][]byte{frog(t)}, 0, `"class":"frog"`, 200},
		{nil, 0, "the form has 0 files; want a form with one file", 400},
		{[][]byte{frog(t), frog(t)}, 0, "the form has 2 files", 400},
		{[][]byte{frog(t)}, 100, "the form ends early", 400},
		{[][]byte{{}}, 0, "zero bytes", 400},
	} {
		body, kind := form(c.files...)
		s.answers(t, "POST", s.main+classify, body[:len(body)-c.cut], c.status, c.text, "Content-Type", kind)
	}
	s.answers(t, "POST", s.main+classify, frog(t), 400, "not the form", "Content-Type", "multipart/form-data")
	s.answers(t, "POST", s.main+classify, make([]byte, 1<<20+1), 413, "")
	const took = `streamtorch_request_seconds_count{model="cifar10"} 2` // of those that were answered
	if _, text := s.call(t, "GET", s.admin+"/metrics", nil); !strings.Contains(text, took) {
		t.Errorf("the metrics do not have %s", took)
	}
	_, text := s.call(t, "GET", s.admin+"/metrics", nil)
	parser := expfmt.NewTextParser(prometheus.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil || families["streamtorch_request_seconds"] == nil || families["streamtorch_failed_total"] == nil || families["go_goroutines"] == nil || families["process_open_fds"] == nil {
		t.Errorf("%v; %d metrics", err, len(families))
	}
	var n numbers
	if _, text := s.call(t, "GET", s.main+"/status", nil); json.Unmarshal([]byte(text), &n) != nil || n.PerSecond <= 0 || n.Failed != 8 || len(n.Models) != 1 || n.Models[0].State != "ready" {
		t.Errorf("%s", text)
	}
}

// A stop answers the requests that have begun.
func TestServer_Drains(t *testing.T) {
	s := start(t, flags{})
	address, picture := strings.TrimPrefix(s.main, "http://"), frog(t)
	c := must.Get(net.Dial("tcp", address))(t)
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", classify, len(picture))
	from := bufio.NewReader(c)
	if line, err := from.ReadString('\n'); !strings.Contains(line, "100 Continue") { // the request has begun
		t.Fatalf("%q, %v", line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(5 * time.Millisecond) {
		other, err := net.Dial("tcp", address)
		if err != nil {
			break // new connections are refused
		}
		other.Close()
	}
	c.Write(picture)
	if text, err := io.ReadAll(from); !strings.Contains(string(text), `"class":"frog"`) {
		t.Errorf("%q, %v", text, err)
	}
	must.Check(t, <-stopped)
}

func TestServer_Token(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef"
	must.Do(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
	s := start(t, flags{token: path})
	for _, c := range []struct {
		url, value string
		status     int
	}{
		{s.main + "/v2/models/cifar10", "", 401},
		{s.main + "/v2/models/cifar10", "Bearer 0123456789abcdeg", 401},
		{s.main + "/v2/models/cifar10", "Bearer " + token, 200},
		{s.main + "/v2/models/cifar10", "bearer " + token, 200}, // a scheme has no case
		{s.main + "/", "", 401},
		{s.admin + "/metrics", "", 401},
		{s.admin + "/metrics", "Bearer " + token, 200},
		{s.admin + "/", "Basic " + "YW55OjAxMjM0NTY3ODlhYmNkZWY=", 200}, // any:token
		{s.main + "/v2/health/live", "", 200},
	} {
		s.answers(t, "GET", c.url, nil, c.status, "", "Authorization", c.value)
	}
	must.Do(t, os.WriteFile(path, []byte("short"), 0o600))
	if _, err := readToken(path); err == nil {
		t.Error("a short token is taken")
	}
}

// One client that sends slowly does not keep others out, and is itself bounded.
func TestServer_PerClient(t *testing.T) {
	s := start(t, flags{perClient: 2})
	for range 2 {
		c := must.Get(net.Dial("tcp", strings.TrimPrefix(s.main, "http://")))(t)
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n", classify)
		if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, "100 Continue") { // the request is counted
			t.Fatalf("%q, %v", line, err)
		}
	}
	s.answers(t, "POST", s.main+classify, frog(t), 429, "")
	s.answers(t, "GET", s.main+"/v2/health/live", nil, 200, "")
}

// The body of a request has the time of -timeout, and no time of its own. One body comes slowly,
// and one does not come.
func TestServer_SlowBody(t *testing.T) {
	s := start(t, flags{timeout: 300 * time.Millisecond})
	stalled := must.Get(net.Dial("tcp", strings.TrimPrefix(s.main, "http://")))(t)
	defer stalled.Close()
	began := time.Now()
	fmt.Fprintf(stalled, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", classify)
	if line, _ := bufio.NewReader(stalled).ReadString('\n'); !strings.Contains(line, "504") || time.Since(began) > 5*time.Second {
		t.Errorf("%q after %v", line, time.Since(began))
	}
	c := must.Get(net.Dial("tcp", strings.TrimPrefix(s.main, "http://")))(t)
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", classify)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(c).ReadString('\n')
		answer <- line
	}()
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		fmt.Fprint(c, ".") // fails when the server has answered
		select {
		case line := <-answer:
			if !strings.Contains(line, "504") {
				t.Errorf("%q", line)
			}
			return
		default:
		}
	}
	t.Error("the body is still read after 5 s")
}

// net/http's time for reading ends behind that of the guard: its end cancels what is computed.
func TestServers_ReadTimeout(t *testing.T) {
	s := must.Get(open(flags{listen: "localhost:0", device: "cpu", timeout: time.Hour}))(t)
	failed := s.start(http.NotFoundHandler(), nil, nil)
	if got, want := s.main.ReadTimeout, s.f.timeout+s.main.ReadHeaderTimeout; got < want {
		t.Errorf("ReadTimeout is %v, want %v", got, want)
	}
	s.main.Close()
	if len(failed) > 0 {
		t.Error(<-failed)
	}
}

// certificate returns the files of a certificate for localhost and of its key.
func certificate(t *testing.T) (cert, private string) {
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	certificate := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	der := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	cert, private = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: certificate}, private: {Type: "PRIVATE KEY", Bytes: der}} {
		must.Do(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return cert, private
}

// A client cannot put names of its own into the metrics, nor a name that is no text.
func TestServer_UnknownNames(t *testing.T) {
	s := start(t, flags{})
	for path, want := range map[string]int{
		"/v2/models/mine/infer": 400, "/v2/models/%ff/infer": 400, "/v2/models/mine/classify": 404, "/v2/models/cifar10/versions/mine/classify": 404,
	} {
		s.answers(t, "POST", s.main+path, []byte("x"), want, "")
	}
	if _, text := s.call(t, "GET", s.admin+"/metrics", nil); strings.Contains(text, "mine") || !strings.Contains(text, `streamtorch_requests_total{model="",status="400",version=""} 2`) {
		t.Error(text)
	}
}

// copyModel returns a folder with the model of the repository.
func copyModel(t *testing.T) string {
	to := t.TempDir()
	must.Do(t, os.CopyFS(to, os.DirFS("models")))
	return to
}

// A server without its device ends before it listens.
func TestServer_NoDevice(t *testing.T) {
	if n, err := cgotorch.CUDACount(); err == nil && n > 0 {
		t.Skip("this machine has a CUDA device")
	}
	err := run(t.Context(), flags{models: copyModel(t), device: "cuda", listen: "127.0.0.1:0"})
	torchtest.WantError(t, err, cgotorch.ErrNoDevice, "-device cuda")
}

// A model whose weights are cast to bfloat16 gives the same class, and its scores as FP32.
func TestServer_DType(t *testing.T) {
	models := copyModel(t)
	text := `{"architecture": "resnet20", "image": {"size": 32}, "softmax": true, "dtype": "bfloat16", "outputs": ["probabilities"]}`
	must.Do(t, os.WriteFile(filepath.Join(models, "cifar10", "model.json"), []byte(text), 0o600))
	s := start(t, flags{models: models})
	s.answers(t, "POST", s.main+classify, frog(t), 200, `"class":"frog"`)
	if _, text := s.call(t, "GET", s.main+"/v2/models/cifar10", nil); !strings.Contains(text, `"datatype":"FP32"`) {
		t.Error(text)
	}
}

// A version that comes while the server runs is found and loaded, and answers from then on.
func TestServer_NewVersion(t *testing.T) {
	models := copyModel(t)
	s := start(t, flags{models: models})
	must.Do(t, os.CopyFS(filepath.Join(models, "cifar10", "2"), os.DirFS(filepath.Join("models", "cifar10", "1"))))
	s.answers(t, "POST", s.admin+"/v2/repository/models/cifar10/load", nil, 200, "")
	if _, text := s.call(t, "GET", s.main+"/v2/models/cifar10", nil); !strings.Contains(text, `"versions":["1","2"]`) {
		t.Error(text)
	}
	s.answers(t, "POST", s.main+classify, frog(t), 200, "")
	if _, text := s.call(t, "GET", s.admin+"/metrics", nil); !strings.Contains(text, `streamtorch_requests_total{model="cifar10",status="200",version="2"} 1`) {
		t.Error("version 2 has not answered")
	}
}

// A version that cannot be loaded leaves the others and the health as they are. The server forgets
// it when its folder has gone.
func TestServer_BadVersion(t *testing.T) {
	models := copyModel(t)
	s := start(t, flags{models: models})
	bad := filepath.Join(models, "cifar10", "2")
	must.Do(t, os.MkdirAll(bad, 0o700))
	const load = "/v2/repository/models/cifar10/load"
	s.answers(t, "POST", s.admin+load, nil, 500, "")
	s.answers(t, "GET", s.main+"/v2/health/ready", nil, 200, "")
	s.answers(t, "POST", s.main+classify, frog(t), 200, "")
	must.Do(t, os.Remove(bad))
	s.answers(t, "POST", s.admin+load, nil, 200, "")
	s.answers(t, "POST", s.admin+"/v2/repository/models/cifar10/unload", nil, 200, "")
	s.answers(t, "POST", s.admin+load, nil, 200, "")
	s.answers(t, "POST", s.main+classify, frog(t), 200, "")
}

// The bounds in model.json are those of the program's inputs.
func TestOpener_Bounds(t *testing.T) {
	torchtest.CheckLeaks(t)
	open := func(text string) (*serve.Model, error) {
		s := must.Get(readSettings(fstest.MapFS{"m/model.json": {Data: []byte(text)}}, "m"))(t)
		n := network{forward: func(_ *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor { return in }, close: func() error { return nil }}
		n.add("ids", cgotorch.Int64, 2, func(int) (least, most int64) { return 2, 2 })
		return (&opener{device: cgotorch.CPU, log: t.Logf}).serve(n, s)
	}
	m, err := open(`{"bounds": {"ids": [0, 9]}}`)
	must.Do(t, err)
	defer m.Close()
	_, err = m.Predict(context.Background(), serve.Of([]int64{0, 9, 10, 0}, 2, 2))
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, `input "ids" has the element 10, want 0 to 9`)
	if _, err := open(`{"bounds": {"words": [0, 9]}}`); err == nil || !strings.Contains(err.Error(), `the input "words"`) {
		t.Error(err)
	}
}

// A page of another site cannot make a browser change anything.
func TestServer_OtherSite(t *testing.T) {
	s := start(t, flags{})
	for _, c := range []struct {
		header, value string
		status        int
	}{
		{"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403}, {"Origin", "https://evil.example", 403}, {"Origin", "null", 403},
		{"Sec-Fetch-Site", "same-origin", 200}, {"Origin", s.admin, 200},
	} {
		s.answers(t, "POST", s.admin+"/v2/repository/index", nil, c.status, "", c.header, c.value)
	}
}

// Links inside the folder are followed. What else is skipped is told once.
func TestFolder_Links(t *testing.T) {
	root := copyModel(t)
	link := func(to, at string) {
		t.Helper()
		must.Do(t, os.Symlink(to, filepath.Join(root, at)))
	}
	link("cifar10", "linked")
	link("1", "cifar10/2")
	link("1", "cifar10/latest")
	link("/", "outside")
	models := serve.NewRepository(serve.RepositoryOptions{})
	defer models.Close()
	var logged []string
	f := must.Get(openFolder(root, models, &opener{device: cgotorch.CPU, batchSizes: []int{1}, log: func(format string, args ...any) { logged = append(logged, fmt.Sprintf(format, args...)) }}))(t)
	defer f.root.Close()
	for range 2 {
		must.Do(t, f.scan(context.Background()))
	}
	var found []string
	for _, m := range models.List() {
		found = append(found, m.Name+" "+m.Version)
	}
	if want := []string{"cifar10 1", "cifar10 2", "linked 1", "linked 2"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if text := strings.Join(logged, "\n"); len(logged) != 3 || !strings.Contains(text, "cifar10/latest in") || !strings.Contains(text, "linked/latest in") || !strings.Contains(text, "outside in") {
		t.Errorf("logged %s", text)
	}
	must.Check(t, models.Load(context.Background(), "linked", "2"))
}

func TestFolder_Refused(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for name, c := range map[string]struct {
		change func(models string)
		text   string
	}{
		"empty":    {func(models string) { os.RemoveAll(filepath.Join(models, "cifar10")) }, "has no model"},
		"settings": {func(models string) { write(filepath.Join(models, "cifar10", "model.json"), `{"size": 32}`) }, `unknown field "size"`},
		"size": {func(models string) {
			write(filepath.Join(models, "cifar10", "model.json"), `{"architecture": "resnet20", "image": {"resize": 36}}`)
		}, "cifar10/model.json: image.size is 0 and image.resize 36"},
		"dtype": {func(models string) {
			write(filepath.Join(models, "cifar10", "model.json"), `{"architecture": "resnet20", "image": {"size": 32}, "dtype": "half"}`)
		}, "cifar10/model.json: dtype: "},
		"architecture of a program": {func(models string) {
			os.Remove(filepath.Join(models, "cifar10", "1", "model.safetensors"))
			write(filepath.Join(models, "cifar10", "1", "model.pt2"), program(t))
		}, "cifar10/model.json: architecture and dtype are for model.safetensors"},
		"labels of another model": {func(models string) {
			os.Remove(filepath.Join(models, "cifar10", "1", "model.safetensors"))
			write(filepath.Join(models, "cifar10", "1", "model.pt2"), program(t))
			write(filepath.Join(models, "cifar10", "model.json"), "{}")
		}, `cifar10/labels.txt has 10 lines, and no result of the model has so many classes: "output0" is [2]`},
		"no file":   {func(models string) { os.Remove(filepath.Join(models, "cifar10", "1", "model.safetensors")) }, "has none of"},
		"damaged":   {func(models string) { write(filepath.Join(models, "cifar10", "1", "model.safetensors"), "x") }, "safetensors"},
		"no labels": {func(models string) { os.Remove(filepath.Join(models, "cifar10", "labels.txt")) }, "labels.txt"},
		"compiled": {func(models string) {
			os.Remove(filepath.Join(models, "cifar10", "1", "model.safetensors"))
			write(filepath.Join(models, "cifar10", "1", "compiled.pt2"), "x")
		}, "-allow-compiled"},
		"link outside": {func(models string) {
			os.RemoveAll(filepath.Join(models, "cifar10", "1"))
			outside := must.Get(filepath.Abs(filepath.Join("models", "cifar10", "1")))(t)
			must.Do(t, os.Symlink(outside, filepath.Join(models, "cifar10", "1")))
		}, "has no model"},
		"file outside": {func(models string) {
			outside := must.Get(filepath.Abs(filepath.Join("models", "cifar10", "1", "model.safetensors")))(t)
			inside := filepath.Join(models, "cifar10", "1", "model.safetensors")
			os.Remove(inside)
			must.Do(t, os.Symlink(outside, inside))
		}, "has none of"},
	} {
		t.Run(name, func(t *testing.T) {
			path := copyModel(t)
			c.change(path)
			models := serve.NewRepository(serve.RepositoryOptions{})
			defer models.Close()
			f, err := openFolder(path, models, &opener{device: cgotorch.CPU, batchSizes: []int{1}, log: t.Logf})
			must.Do(t, err)
			defer f.root.Close()
			err = f.loadAll(context.Background())
			if list := models.List(); err == nil && len(list) == 1 {
				err = list[0].Err
			}
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %q", err, c.text)
			}
		})
	}
}

// program returns a .pt2 with a small program of one input [n, 2] and one result [n, 2], after some
// changes of its JSON text.
func program(t *testing.T, changes ...[2]string) string {
	t.Helper()
	const small = "../../cgotorch/pt2/testdata/small/"
	read := func(name string) string {
		text := must.Get(os.ReadFile(small + name))(t)
		return string(text)
	}
	text := read("model.json")
	for _, change := range changes {
		if !strings.Contains(text, change[0]) {
			t.Fatalf("model.json has no %s", change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return archiveOf(t, map[string]string{
		"models/model.json": text, "data/weights/model_weights_config.json": read("weights.json"), "data/constants/model_constants_config.json": read("constants.json"),
		"data/weights/weight_0": "\x00\x00\x80\x3f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x3f", "data/weights/weight_1": "\x00\x00\x80\x3f\x00\x00\x00\xc0",
		"data/constants/tensor_0": "\x00\x00\x00\x3f\x00\x00\x80\x3f",
	})
}

// archiveOf returns a .pt2 of the entries, whose names begin with "net/".
func archiveOf(t *testing.T, entries map[string]string) string {
	t.Helper()
	entries["archive_format"], entries["archive_version"], entries["byteorder"] = "pt2", "0", "little"
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for name, data := range entries {
		e := must.Get(w.CreateHeader(&zip.FileHeader{Name: "net/" + name, Method: zip.Store}))(t)
		must.Get(io.WriteString(e, data))(t)
	}
	must.Do(t, w.Close())
	return file.String()
}

// A program gets its tensors by name: one may be a keyword, and others may have one value alone.
func TestExported_Keywords(t *testing.T) {
	torchtest.CheckLeaks(t)
	const leaf = `{\"type\": null, \"context\": null, \"children_spec\": []}`
	file := program(t, [][2]string{ // forward(mask, *, x), and mask is None
		{`{"as_tensor": {"name": "x"}}]`, `{"as_none": true}, {"as_tensor": {"name": "x"}}]`},
		{`{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}]`, `{"constant_input": {"name": "mask", "value": {"as_none": true}}}, {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}]`},
		{`["x"]`, `["mask", "x"]`},
		{`{\"type\": \"builtins.dict\", \"context\": \"[]\", \"children_spec\": []}`, `{\"type\": \"builtins.dict\", \"context\": \"[\\\"x\\\"]\", \"children_spec\": [` + leaf + `]}`},
	}...)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		n, err := exported(x.NoGrad(), strings.NewReader(file), int64(len(file)), "net.pt2")
		if err != nil {
			return err
		}
		if len(n.inputs) != 1 || n.inputs[0].Name != "x" {
			t.Errorf("the inputs are %+v", n.inputs)
		}
		out := n.forward(x.NoGrad(), cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2))
		torchtest.Equal(t, x, out[0], []float32{3, 2, 5, 4}, 2, 2)
		return n.close()
	})
}
