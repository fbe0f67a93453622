package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// loadRequest asks the load generator, a process of its own, for requests of so many clients.
type loadRequest struct {
	URL     string
	Body    string            // a file
	Headers map[string]string // of HTTP
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

// load sends requests over HTTP in a closed loop.
func load(r loadRequest) (reply loadReply, err error) {
	body, err := os.ReadFile(r.Body)
	if err != nil {
		return reply, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: r.Clients, WriteBufferSize: 64 << 10, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	one := func() error {
		request, err := http.NewRequest("POST", r.URL, bytes.NewReader(body))
		if err != nil {
			return err
		}
		for name, value := range r.Headers {
			request.Header.Set(name, value)
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %.200s", answer.Status, text)
		}
		return err
	}
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	each := make([]sample, r.Clients)
	cpu, began := processorTime(), time.Now()
	for i := range each {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Since(began).Seconds() < r.Seconds {
				at := time.Now()
				if err := one(); err != nil {
					first.CompareAndSwap(nil, &err)
					return
				}
				each[i] = append(each[i], time.Since(at).Seconds()*1e3)
			}
		}()
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	if err := first.Load(); err != nil {
		return reply, *err
	}
	var took sample
	for _, e := range each {
		took = append(took, e...)
	}
	return loadReply{float64(len(took)) / seconds, took.median(), took.quantile(0.99), (processorTime() - cpu).Seconds() / seconds}, nil
}

// endpoint is a model behind the Open Inference Protocol, on a port of the loopback address, and a
// load generator for it.
type endpoint struct {
	folder    string
	models    *serve.Repository
	server    *http.Server
	url       string
	generator *peer
}

func (c *config) newEndpoint(b *serve.Batcher) (*endpoint, error) {
	e := &endpoint{models: serve.NewRepository(serve.RepositoryOptions{})}
	err := e.open(c, b)
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) open(c *config, b *serve.Batcher) (err error) {
	if err := e.models.Add("m", "1", func() (*serve.Model, error) { return &serve.Model{Batcher: b}, nil }); err != nil {
		return err
	}
	if err := e.models.Load(context.Background(), "m", ""); err != nil {
		return err
	}
	if e.folder, err = os.MkdirTemp("", "bench-serve-"); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	e.server = &http.Server{Handler: oip.NewHandler(e.models, oip.Options{})}
	go e.server.Serve(listener)
	e.url = "http://" + listener.Addr().String() + "/v2/models/m/infer"
	e.generator, err = c.startOwn()
	return err
}

func (e *endpoint) close() {
	if e.generator != nil {
		e.generator.close()
	}
	if e.server != nil {
		e.server.Close()
	}
	if err := e.models.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if e.folder != "" {
		os.RemoveAll(e.folder)
	}
}

// request writes a request with one binary input to a file.
func (e *endpoint) request(data []byte, dataType string, shape []int64, clients int, seconds float64) (loadRequest, error) {
	header, err := json.Marshal(map[string]any{
		"inputs":  []any{map[string]any{"name": "image", "datatype": dataType, "shape": shape, "parameters": map[string]any{"binary_data_size": len(data)}}},
		"outputs": []any{map[string]any{"name": "scores", "parameters": map[string]any{"binary_data": true}}},
	})
	if err != nil {
		return loadRequest{}, err
	}
	path := filepath.Join(e.folder, "body")
	return loadRequest{e.url, path, map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(header))}, clients, seconds}, os.WriteFile(path, append(header, data...), 0o600)
}

// send lets the load generator send requests. The side's value is requests a second.
func (p *peer) send(r loadRequest, last *loadReply) side {
	return func() (float64, error) {
		err := p.do(last, "load", "load", r)
		return last.PerSecond, err
	}
}

// benchServeHTTP measures the same requests over HTTP, from another process, and in this process.
func benchServeHTTP(c *config, emit func(row)) error {
	s, err := c.service()
	if err != nil {
		return err
	}
	defer s.close()
	b, err := s.batcher(c.batchSizes(), nil)
	if err != nil {
		return err
	}
	e, err := c.newEndpoint(b) // closes the Batcher
	if err != nil {
		return errors.Join(err, b.Close())
	}
	defer e.close()
	clients := []int{1, 64}
	if c.device.IsCUDA() {
		clients = append(clients, 512)
	}
	for _, n := range clients {
		block := time.Duration(c.or(1, 30)) * 100 * time.Millisecond
		r, err := e.request(s.pixels(1).Data, "UINT8", append([]int64{1}, s.shape()...), n, block.Seconds())
		if err != nil {
			return err
		}
		var last loadReply
		values, err := interleave(c.roundsOr(5), e.generator.send(r, &last), func() (float64, error) {
			rate, _, err := callers(b, n, block, func() serve.Array { return s.pixels(1) })
			return rate, err
		})
		if err != nil {
			return err
		}
		emit(inTurns(fmt.Sprintf("serve/http/%d", n), values[0], "images/s", "in process", values[1], higher,
			fmt.Sprintf("%s; %d clients in a closed loop, binary tensors of %d x %d, over the loopback address; %v; %s", s.name, n, s.size, s.size, last, c.settings())))
	}
	return nil
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
			rate, took, err := callers(b, n, time.Duration(c.or(1, 30))*100*time.Millisecond, func() serve.Array {
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
// load generator.
func benchServeLitServe(c *config, emit func(row)) error {
	s, err := c.service()
	if err != nil {
		return err
	}
	defer s.close()
	b, err := s.batcher(c.batchSizes(), nil)
	if err != nil {
		return err
	}
	e, err := c.newEndpoint(b)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	defer e.close()
	p, err := c.startPeer("serve.py", switches{benchmark: c.device.IsCUDA()})
	if err != nil {
		return err
	}
	defer p.close()
	image := s.pixels(1)
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
	}
	seconds := float64(c.or(1, 30)) / 10
	for _, n := range []int{1, 64} {
		r, err := e.request(image.Data, "UINT8", append([]int64{1}, s.shape()...), n, seconds)
		if err != nil {
			return err
		}
		var ours loadReply
		sides := []side{e.generator.send(r, &ours)}
		for i := range servers {
			sides = append(sides, e.generator.send(loadRequest{servers[i].URL, formPath, map[string]string{"Content-Type": formType}, n, seconds}, &servers[i].last))
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
		emit(inTurns(fmt.Sprintf("serve/litserve/%d", n), values[0], "images/s", "LitServe", values[1+best], higher,
			fmt.Sprintf("%s; %d clients in a closed loop over HTTP, raw pixels of %d x %d; %v; LitServe: batches of %d and 2 ms of delay, %d threads as the faster number, %v; %s, %s; %s", s.name, n, s.size, s.size,
				ours, largest, l.threads, l.last, p.versions, l.Versions, c.settings())))
	}
	return nil
}

// litServe is a server of the peer.
type litServe struct {
	URL, Versions string
	threads       int
	last          loadReply
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
