package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// loadRequest asks the load generator, a process of its own, for requests of so many clients.
type loadRequest struct {
	URL     string
	Body    string // a file
	Headers map[string]string
	Clients int
	Seconds float64
}

// loadReply is what the load generator has seen. Cores is its own use of the CPU.
type loadReply struct {
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50"` // ms
	P99       float64 `json:"p99"` // ms
	Cores     float64 `json:"cores"`
}

func (r loadReply) String() string {
	return fmt.Sprintf("latency: median %.2f ms, 99 %% %.2f ms; the load generator used %.1f cores", r.P50, r.P99, r.Cores)
}

// load sends requests in a closed loop.
func load(r loadRequest) (reply loadReply, err error) {
	body, err := os.ReadFile(r.Body)
	if err != nil {
		return reply, err
	}
	request, err := http.NewRequest("POST", r.URL, bytes.NewReader(body))
	if err != nil {
		return reply, err
	}
	for name, value := range r.Headers {
		request.Header.Set(name, value)
	}
	var text bytes.Buffer
	if err := request.Write(&text); err != nil {
		return reply, err
	}
	cpu, began := cpuTime(), time.Now()
	rate, took, err := closedLoop(r.Clients, time.Duration(r.Seconds*1e9), func() (func() error, func()) {
		c := &connection{request: request, text: text.Bytes()}
		return c.ask, c.close
	})
	if err != nil {
		return reply, err
	}
	return loadReply{rate, took.median(), took.quantile(0.99), (cpuTime() - cpu).Seconds() / time.Since(began).Seconds()}, nil
}

// connection is a connection of HTTP with one request at a time, which its own goroutine sends and
// whose answer it reads. The three goroutines of [http.Transport] would be a part of what a client
// waits for.
type connection struct {
	request *http.Request
	text    []byte
	conn    net.Conn // nil before the first request
	answers *bufio.Reader
}

// ask sends the request and reads its answer.
func (c *connection) ask() (err error) {
	if c.conn == nil {
		if c.conn, err = net.Dial("tcp", c.request.URL.Host); err != nil {
			return err
		}
		c.answers = bufio.NewReader(c.conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.text); err != nil {
		return err
	}
	answer, err := http.ReadResponse(c.answers, c.request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	reply, err := io.ReadAll(answer.Body)
	switch {
	case err == nil && answer.StatusCode != http.StatusOK:
		err = fmt.Errorf("%s: %.200s", answer.Status, reply)
	case err == nil && answer.Close:
		err = errors.New("the server closes the connection after an answer")
	}
	return err
}

func (c *connection) close() {
	if c.conn != nil {
		c.conn.Close()
	}
}

// endpoint is the program examples/serve with a model of the same architecture. It is a process of
// its own.
type endpoint struct {
	folder  string
	command *exec.Cmd
	url     string // the protocol's address, up to /v2
}

func (s *service) newEndpoint() (*endpoint, error) {
	e := &endpoint{}
	if err := e.open(s); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) open(s *service) (err error) {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(own), "serve")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: go build -o %s ./examples/serve", err, program)
	}
	if e.folder, err = os.MkdirTemp("", "bench-serve-"); err != nil {
		return err
	}
	if err := s.save(filepath.Join(e.folder, "models", "m")); err != nil {
		return err
	}
	sizes := s.c.batchSizes()
	command := exec.Command(program, "-models", filepath.Join(e.folder, "models"), "-device", s.c.device.String(), "-listen", "127.0.0.1:0",
		"-batch", fmt.Sprint(sizes[len(sizes)-1]), "-queue", "4096", "-per-client", "4096")
	command.Stderr = os.Stderr
	pipe, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	e.command = command
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if address, found := strings.CutPrefix(lines.Text(), "listening on "); found {
			e.url = address
			return nil
		}
	}
	return errors.New("serve has ended")
}

// save writes a model into a folder of examples/serve. Its weights are other ones.
func (s *service) save(folder string) error {
	if err := os.MkdirAll(filepath.Join(folder, "1"), 0o700); err != nil {
		return err
	}
	settings := map[string]any{"architecture": s.name, "image": map[string]int{"size": s.size, "resize": s.size * 8 / 7}, "outputs": []string{"scores"}}
	if s.c.device.IsCUDA() {
		settings["dtype"] = "bfloat16"
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	labels := strings.Repeat("class\n", s.classes)
	if err := errors.Join(os.WriteFile(filepath.Join(folder, "model.json"), text, 0o600), os.WriteFile(filepath.Join(folder, "labels.txt"), []byte(labels), 0o600)); err != nil {
		return err
	}
	return cgotorch.DefaultStream(s.c.device).Do(func(x *cgotorch.Exec) error {
		model, err := vision.New(x, s.name, vision.Options{Classes: s.classes})
		if err != nil {
			return err
		}
		defer nn.Close(model)
		return checkpoint.Save(x, filepath.Join(folder, "1", "model.safetensors"), checkpoint.Checkpoint{Model: model})
	})
}

func (e *endpoint) close() {
	if e.command != nil {
		err := e.command.Process.Signal(syscall.SIGTERM)
		if err = errors.Join(err, e.command.Wait()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: serve:", err)
		}
	}
	if e.folder != "" {
		os.RemoveAll(e.folder)
	}
}

// request writes a request of one image to a file.
func (e *endpoint) request(s *service) (loadRequest, error) {
	image := s.image()
	head, err := json.Marshal(map[string]any{
		"inputs":  []any{map[string]any{"name": "image", "datatype": "UINT8", "shape": image.Shape, "parameters": map[string]any{"binary_data_size": len(image.Data)}}},
		"outputs": []any{map[string]any{"name": "scores", "parameters": map[string]any{"binary_data": true}}},
	})
	if err != nil {
		return loadRequest{}, err
	}
	path := filepath.Join(e.folder, "request")
	headers := map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
	return loadRequest{URL: e.url + "/models/m/infer", Body: path, Headers: headers}, os.WriteFile(path, append(head, image.Data...), 0o600)
}

// form writes a form with one image to a file, for LitServe at this address.
func (e *endpoint) form(s *service, url string) (loadRequest, error) {
	const boundary = "a-boundary-of-a-form"
	body := fmt.Appendf(nil, "--%s\r\nContent-Disposition: form-data; name=\"image\"; filename=\"image\"\r\nContent-Type: application/octet-stream\r\n\r\n", boundary)
	body = fmt.Appendf(append(body, s.image().Data...), "\r\n--%s--\r\n", boundary)
	path := filepath.Join(e.folder, "form")
	return loadRequest{URL: url, Body: path, Headers: map[string]string{"Content-Type": "multipart/form-data; boundary=" + boundary}}, os.WriteFile(path, body, 0o600)
}

// send returns a side in which a load generator sends requests of so many clients. The side's value
// is requests a second.
func (p *peer) send(c *config, r loadRequest, clients int, last *loadReply) side {
	r.Clients, r.Seconds = clients, c.block().Seconds()
	return func() (float64, error) {
		err := p.do(last, "load", "load", r)
		return last.PerSecond, err
	}
}

// benchServeHTTP measures requests over HTTP to examples/serve and to LitServe, with the same load
// generator. LitServe runs with as many threads of PyTorch as ours, and with one, because threads
// may disturb its processes. The faster one counts.
func benchServeHTTP(c *config, emit func(row)) error {
	s, err := c.newService()
	if err != nil {
		return err
	}
	defer s.close()
	p, err := c.startPeer("serve.py", switches{benchmark: c.device.IsCUDA()})
	if err != nil {
		return err
	}
	defer p.close()
	e, err := s.newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	generator, err := c.startOwn()
	if err != nil {
		return err
	}
	defer generator.close()
	requests := make([]loadRequest, 1)
	if requests[0], err = e.request(s); err != nil {
		return err
	}
	var server struct{ URL, Versions string }
	for _, threads := range []int{c.threads, 1} {
		err := p.do(&server, "listen", "model", s.name, "size", s.size, "classes", s.classes, "batch", c.batchSizes()[len(c.batchSizes())-1],
			"device", c.device.String(), "compiled", c.compile && c.device.IsCUDA(), "threads", threads)
		if err != nil {
			return err
		}
		form, err := e.form(s, server.URL)
		if err != nil {
			return err
		}
		requests = append(requests, form)
	}
	for _, n := range c.clients() {
		last := make([]loadReply, len(requests))
		var sides []side
		for i, r := range requests {
			sides = append(sides, generator.send(c, r, n, &last[i]))
		}
		values, err := interleave(c.roundsOr(5), sides...)
		if err != nil {
			return err
		}
		best, threads := 1, c.threads
		if values[2].median() > values[1].median() {
			best, threads = 2, 1
		}
		emit(inTurns(fmt.Sprintf("serve/http/%s/%d", s.name, n), values[0], "images/s", "LitServe", values[best], higher,
			fmt.Sprintf("%d clients in a closed loop over HTTP, raw pixels of %d x %d; ours %v; LitServe with batches as large, 2 ms of delay and %d threads, compiled %t, %v; %s, %s; %s",
				n, s.size, s.size, last[0], threads, c.compile && c.device.IsCUDA(), last[best], p.versions, server.Versions, c.settings())))
	}
	return nil
}
