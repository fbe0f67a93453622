package main

import (
	"bufio"
	"bytes"
	"context"
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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	messages "github.com/streamtorch/streamtorch/examples/serve/inference"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// loadRequest asks the load generator, a process of its own, for requests of so many clients.
type loadRequest struct {
	URL      string
	Protocol string            // grpc, or HTTP
	Body     string            // a file
	Headers  map[string]string // of HTTP
	Clients  int
	Seconds  float64
	Unknown  bool // the server must not know the model
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

// caller sends one request and waits for its answer.
type caller func() error

// connection is a connection of HTTP with one request at a time, which its own goroutine sends and
// whose answer it reads. The three goroutines of [http.Transport] would be a part of what a client
// waits for.
type connection struct {
	net.Conn
	answers *bufio.Reader
}

// overHTTP returns a caller of HTTP, for any number of goroutines.
func overHTTP(r loadRequest, body []byte) (call caller, end func(), err error) {
	request, err := http.NewRequest("POST", r.URL, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for name, value := range r.Headers {
		request.Header.Set(name, value)
	}
	var text bytes.Buffer
	if err := request.Write(&text); err != nil {
		return nil, nil, err
	}
	idle := make(chan *connection, r.Clients)
	open := func() (*connection, error) {
		select {
		case c := <-idle:
			return c, nil
		default:
		}
		c, err := net.Dial("tcp", request.URL.Host)
		return &connection{c, bufio.NewReader(c)}, err
	}
	call = func() error {
		c, err := open()
		if err != nil {
			return err
		}
		if err := c.ask(text.Bytes(), request, r.Unknown); err != nil {
			c.Close()
			return err
		}
		idle <- c
		return nil
	}
	return call, func() {
		for close(idle); ; {
			c, more := <-idle
			if !more {
				return
			}
			c.Close()
		}
	}, nil
}

// ask sends a request and reads its answer. `unknown` is that of the loadRequest.
func (c *connection) ask(text []byte, request *http.Request, unknown bool) error {
	want := http.StatusOK
	if unknown {
		want = http.StatusNotFound
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	answer, err := http.ReadResponse(c.answers, request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	reply, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != want {
		err = fmt.Errorf("%s: %.200s", answer.Status, reply)
	}
	if err == nil && answer.Close {
		err = errors.New("the server closes the connection after an answer")
	}
	return err
}

// overGRPC returns a caller of gRPC, with up to 8 connections.
func overGRPC(r loadRequest, body []byte) (call caller, end func(), err error) {
	var request messages.ModelInferRequest
	if err := proto.Unmarshal(body, &request); err != nil {
		return nil, nil, err
	}
	var connections []*grpc.ClientConn
	var clients []messages.GRPCInferenceServiceClient
	end = func() {
		for _, c := range connections {
			c.Close()
		}
	}
	for range min(8, r.Clients) {
		c, err := grpc.NewClient(r.URL, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			end()
			return nil, nil, err
		}
		connections, clients = append(connections, c), append(clients, messages.NewGRPCInferenceServiceClient(c))
	}
	var next atomic.Int64
	return func() error {
		_, err := clients[int(next.Add(1))%len(clients)].ModelInfer(context.Background(), &request)
		if r.Unknown && status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	}, end, nil
}

// load sends requests in a closed loop.
func load(r loadRequest) (reply loadReply, err error) {
	body, err := os.ReadFile(r.Body)
	if err != nil {
		return reply, err
	}
	over := overHTTP
	if r.Protocol == "grpc" {
		over = overGRPC
	}
	one, end, err := over(r, body)
	if err != nil {
		return reply, err
	}
	defer end()
	cpu, began := processorTime(), time.Now()
	rate, took, err := closedLoop(r.Clients, time.Duration(r.Seconds*1e9), func() func() error { return one })
	if err != nil {
		return reply, err
	}
	return loadReply{rate, took.median(), took.quantile(0.99), (processorTime() - cpu).Seconds() / time.Since(began).Seconds()}, nil
}

// endpoint is the program examples/serve with a model of the same architecture, and a load
// generator for it. Both are processes of their own.
type endpoint struct {
	folder    string
	command   *exec.Cmd
	http      string // the protocol's address, up to /v2
	grpc      string // host and port
	generator *peer
}

func (s *service) newEndpoint() (*endpoint, error) {
	e := &endpoint{}
	err := e.open(s)
	if err != nil {
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
	largest := s.c.batchSizes()[len(s.c.batchSizes())-1]
	e.command = exec.Command(program, "-models", filepath.Join(e.folder, "models"), "-device", s.c.device.String(), "-listen", "127.0.0.1:0", "-grpc", "127.0.0.1:0",
		"-batch", fmt.Sprint(largest), "-queue", "4096", "-per-client", "4096")
	e.command.Stderr = os.Stderr
	pipe, err := e.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := e.command.Start(); err != nil {
		e.command = nil
		return err
	}
	lines := bufio.NewScanner(pipe)
	for (e.http == "" || e.grpc == "") && lines.Scan() {
		if address, found := strings.CutPrefix(lines.Text(), "listening on "); found {
			e.http = address
		} else if address, found := strings.CutPrefix(lines.Text(), "gRPC on "); found {
			e.grpc = address
		}
	}
	if e.grpc == "" {
		return errors.Join(errors.New("serve has ended"), lines.Err())
	}
	e.generator, err = s.c.startOwn()
	return err
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
		model, err := newModel(x, s.name, vision.Options{Classes: s.classes})
		if err != nil {
			return err
		}
		defer nn.Close(model)
		return checkpoint.Save(x, filepath.Join(folder, "1", "model.safetensors"), checkpoint.Checkpoint{Model: model})
	})
}

func (e *endpoint) close() {
	if e.generator != nil {
		e.generator.close()
	}
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

// request writes a request of a model, with one image, to a file, for HTTP or gRPC.
func (e *endpoint) request(protocol, model string, image serve.Array, clients int, seconds float64) (r loadRequest, err error) {
	r = loadRequest{URL: e.http + "/models/" + model + "/infer", Protocol: protocol, Body: filepath.Join(e.folder, protocol+"-"+model), Clients: clients, Seconds: seconds}
	var body []byte
	if protocol == "grpc" {
		r.URL = e.grpc
		body, err = proto.Marshal(&messages.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{image.Data},
			Inputs: []*messages.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "UINT8", Shape: image.Shape}}})
	} else {
		body, err = json.Marshal(map[string]any{
			"inputs":  []any{map[string]any{"name": "image", "datatype": "UINT8", "shape": image.Shape, "parameters": map[string]any{"binary_data_size": len(image.Data)}}},
			"outputs": []any{map[string]any{"name": "scores", "parameters": map[string]any{"binary_data": true}}},
		})
		r.Headers = map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(body))}
		body = append(body, image.Data...)
	}
	if err != nil {
		return r, err
	}
	return r, os.WriteFile(r.Body, body, 0o600)
}

// send lets the load generator send requests. The side's value is requests a second.
func (p *peer) send(r loadRequest, last *loadReply) side {
	return func() (float64, error) {
		err := p.do(last, "load", "load", r)
		return last.PerSecond, err
	}
}

// benchServeWire measures the same requests in this process, and over HTTP and gRPC, from one
// process to another.
func benchServeWire(protocol string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		return c.withService(func(s *service, b *serve.Batcher) error { return s.wire(b, protocol, emit) })
	}
}

// wireClients returns the numbers of clients that a server is measured with.
func (c *config) wireClients() []int {
	if c.device.IsCUDA() {
		return []int{1, 8, 64, 512}
	}
	return []int{1, 64}
}

func (s *service) wire(b *serve.Batcher, protocol string, emit func(row)) error {
	c := s.c
	e, err := s.newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	for _, n := range c.wireClients() {
		r, err := e.request(protocol, "m", s.pixels(1), n, c.block().Seconds())
		if err != nil {
			return err
		}
		// A server that answers with no model at all needs this time too.
		refused, err := e.request(protocol, "unknown", s.pixels(1), n, c.block().Seconds())
		if err != nil {
			return err
		}
		refused.Unknown = true
		var last, empty loadReply
		var paused sample
		before, err := e.answered()
		if err != nil {
			return err
		}
		values, err := interleave(c.roundsOr(5), e.generator.send(r, &last), func() (float64, error) {
			rate, _, err := callers(b, n, c.block(), func() serve.Array { return s.pixels(1) })
			return rate, err
		}, e.generator.send(refused, &empty), func() (float64, error) {
			took, err := s.pausingCallers(b, n, time.Duration(empty.P50*float64(time.Millisecond)))
			paused = append(paused, took...)
			return took.median(), err
		})
		if err != nil {
			return err
		}
		after, err := e.answered()
		if err != nil {
			return err
		}
		emit(inTurns(fmt.Sprintf("serve/%s/%d", protocol, n), values[0], "images/s", "in process", values[1], higher,
			fmt.Sprintf("%s; %d clients in a closed loop, binary tensors of %d x %d, over the loopback address; %v; of that in the server's Batcher %.2f ms (mean); a request of the same size for an unknown model is refused after %.2f ms (median); in process %.2f ms (median) with a pause of this length before each call; %s",
				s.name, n, s.size, s.size, last, (after.Nanoseconds-before.Nanoseconds)/max(1, after.Count-before.Count)/1e6, empty.P50, paused.median(), c.settings())))
	}
	return nil
}

// pausingCallers is callers, with a pause of the caller's thread before each call. It returns the
// milliseconds of each call, without the pause.
func (s *service) pausingCallers(b *serve.Batcher, n int, pause time.Duration) (took sample, err error) {
	var mu sync.Mutex
	_, _, err = closedLoop(n, s.c.block(), func() func() error {
		in := s.pixels(1)
		return func() error {
			rest := syscall.NsecToTimespec(pause.Nanoseconds())
			_ = syscall.Nanosleep(&rest, nil) // a signal may end it early
			began := time.Now()
			_, err := b.Predict(context.Background(), in)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began).Seconds()*1e3)
			return err
		}
	})
	return took, err
}

// answered is how many requests a server's Batcher has answered, and their time.
type answered struct {
	Count       float64 `json:"count"`
	Nanoseconds float64 `json:"ns"`
}

func (e *endpoint) answered() (answered, error) {
	var reply struct {
		Models []struct {
			Inference struct {
				Success answered `json:"success"`
			} `json:"inference_stats"`
		} `json:"model_stats"`
	}
	answer, err := http.Get(e.http + "/models/m/stats")
	if err != nil {
		return answered{}, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&reply); err != nil || len(reply.Models) != 1 {
		return answered{}, fmt.Errorf("the statistics of the server: %s, %w", answer.Status, err)
	}
	return reply.Models[0].Inference.Success, nil
}

// benchServeJPEG measures requests that are photographs, and the decoding alone.
func benchServeJPEG(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, _ string) error {
		s, err := c.service()
		if err != nil {
			return err
		}
		defer s.close()
		pool, err := decode.NewPool(decode.Options{Workers: c.threads, Transform: decode.ResizeCenterCrop{Resize: s.size * 8 / 7, Height: s.size, Width: s.size}})
		if err != nil {
			return err
		}
		defer pool.Close()
		b, err := s.batcher(c.batchSizes(), pool)
		if err != nil {
			return err
		}
		defer b.Close()
		files := make([]decode.Image, c.or(8, 64*c.threads))
		for i := range files {
			files[i].Data = all[i%len(all)].data
		}
		pixels, results := make([]byte, len(files)*s.size*s.size*3), make([]decode.Result, len(files))
		n := 2 * c.batchSizes()[len(c.batchSizes())-1]
		var next atomic.Int64
		var latency sample
		values, err := interleave(c.roundsOr(5), func() (float64, error) {
			rate, took, err := callers(b, n, c.block(), func() serve.Array {
				return serve.Array{Files: [][]byte{files[int(next.Add(1))%len(files)].Data}}
			})
			latency = append(latency, took...)
			return rate, err
		}, func() (float64, error) {
			began := time.Now()
			err := pool.Decode(files, pixels, results)
			return float64(len(files)) / time.Since(began).Seconds(), err
		})
		if err != nil {
			return err
		}
		emit(inTurns("serve/jpeg", values[0], "images/s", "the decode pool alone", values[1], higher,
			fmt.Sprintf("%s; %d callers, a photograph each, resized and cut to %d x %d; latency: median %.2f ms, 99 %% %.2f ms; %s", s.name, n, s.size, s.size,
				latency.median(), latency.quantile(0.99), c.settings())))
		return nil
	})
}

// benchServeLitServe measures requests over HTTP to this library and to LitServe, with the same
// load generator. It also measures the memory that the servers take after the most clients.
func benchServeLitServe(c *config, emit func(row)) error {
	s, err := c.service()
	if err != nil {
		return err
	}
	defer s.close()
	p, err := c.startPeer("serve.py", switches{benchmark: c.device.IsCUDA()})
	if err != nil {
		return err
	}
	defer p.close()
	clients, seconds := c.wireClients(), c.block().Seconds()
	meter := serverMeter{p: p, device: c.device.String()}
	if err := meter.begin(); err != nil {
		return err
	}
	e, err := s.newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	image, most := s.pixels(1), clients[len(clients)-1]
	r, err := e.request("http", "m", image, most, seconds)
	if err != nil {
		return err
	}
	var ours loadReply
	if _, err := e.generator.send(r, &ours)(); err != nil {
		return err
	}
	memory, err := meter.read(e.command.Process.Pid)
	if err != nil {
		return err
	}
	largest := c.batchSizes()[len(c.batchSizes())-1]
	form, formType := multipart(image.Data)
	formPath := filepath.Join(e.folder, "form")
	if err := os.WriteFile(formPath, form, 0o600); err != nil {
		return err
	}
	servers := []litServe{{threads: c.threads}}
	if c.threads > 1 {
		servers = append(servers, litServe{threads: 1}) // PyTorch's threads may only disturb the server's processes
	}
	for i := range servers {
		l := &servers[i]
		if err := p.do(l, "listen", "model", s.name, "size", s.size, "classes", s.classes, "batch", largest, "device", c.device.String(),
			"compiled", c.compile && c.device.IsCUDA(), "threads", l.threads); err != nil {
			return err
		}
		l.request = loadRequest{URL: l.URL, Body: formPath, Headers: map[string]string{"Content-Type": formType}, Seconds: seconds}
		if _, err := l.side(e.generator, most)(); err != nil {
			return err
		}
		if l.memory, err = meter.read(l.PID); err != nil {
			return err
		}
	}
	for _, n := range clients {
		r.Clients = n
		sides := []side{e.generator.send(r, &ours)}
		for i := range servers {
			sides = append(sides, servers[i].side(e.generator, n))
		}
		values, err := interleave(c.roundsOr(5), sides...)
		if err != nil {
			return err
		}
		best := 0
		for i := range servers {
			if values[1+i].median() > values[1+best].median() {
				best = i
			}
		}
		l := servers[best]
		note := fmt.Sprintf("LitServe: batches of %d and 2 ms of delay, %d threads as the faster number", largest, l.threads)
		versions := fmt.Sprintf("%s, %s; %s", p.versions, l.Versions, c.settings())
		emit(inTurns(fmt.Sprintf("serve/litserve/%d", n), values[0], "images/s", "LitServe", values[1+best], higher,
			fmt.Sprintf("%s; %d clients in a closed loop over HTTP, raw pixels of %d x %d; %v; %s, %v; %s", s.name, n, s.size, s.size, ours, note, l.last, versions)))
		if n != most {
			continue
		}
		var all []string
		for _, l := range servers {
			all = append(all, fmt.Sprintf("%d threads %.0f and %.0f MiB", l.threads, l.memory.host, l.memory.device))
		}
		note = fmt.Sprintf("%s; after %d clients; %s; host and device memory of each LitServe: %s; %s", s.name, n, note, strings.Join(all, ", "), versions)
		emit(against("serve/litserve/memory", memory.host, "MiB", "LitServe", l.memory.host, lower, "proportional set size of the server's processes; "+note))
		if c.device.IsCUDA() {
			emit(against("serve/litserve/device-memory", memory.device, "MiB", "LitServe", l.memory.device, lower, "more memory used on the device than before the server began; "+note))
		}
	}
	return nil
}

// litServe is a server of the peer.
type litServe struct {
	URL, Versions string
	PID           int
	threads       int
	memory        serverMemory
	request       loadRequest
	last          loadReply
}

// side returns the side in which so many clients ask the server.
func (l *litServe) side(generator *peer, clients int) side {
	r := l.request
	r.Clients = clients
	return generator.send(r, &l.last)
}

// serverMemory is what a server takes, in MiB.
type serverMemory struct{ host, device float64 }

// serverMeter measures the memory of servers that start one after another.
type serverMeter struct {
	p      *peer
	device string
	used   float64 // MiB of the device, when the last server was measured
}

func (m *serverMeter) begin() (err error) {
	m.used, err = m.usedOnDevice()
	return err
}

func (m *serverMeter) usedOnDevice() (float64, error) {
	var reply struct{ Bytes float64 }
	err := m.p.do(&reply, "used", "device", m.device)
	return reply.Bytes / (1 << 20), err
}

// read returns the memory of the server that has started last. `pid` is its first process.
func (m *serverMeter) read(pid int) (s serverMemory, err error) {
	used, err := m.usedOnDevice()
	if err != nil {
		return s, err
	}
	s.device, m.used = used-m.used, used
	var reply struct{ Bytes float64 }
	err = m.p.do(&reply, "proportional", "pid", pid)
	s.host = reply.Bytes / (1 << 20)
	return s, err
}

// multipart returns a form with one file, and its content type.
func multipart(file []byte) (body []byte, contentType string) {
	const boundary = "a-boundary-of-a-form"
	var b bytes.Buffer
	fmt.Fprintf(&b, "--%s\r\nContent-Disposition: form-data; name=\"image\"; filename=\"image\"\r\nContent-Type: application/octet-stream\r\n\r\n", boundary)
	b.Write(file)
	fmt.Fprintf(&b, "\r\n--%s--\r\n", boundary)
	return b.Bytes(), "multipart/form-data; boundary=" + boundary
}
