// Serve answers the Open Inference Protocol, version 2, over HTTP and gRPC, as KServe and Triton
// do. It answers OpenAI's interface for language models and encoders beside it.
//
//	go run ./examples/serve -models examples/serve/models
//	curl --data-binary @cat.jpg http://localhost:8080/v2/models/cifar10/classify
//
//	go run ./examples/serve -text llama=Llama-3.2-1B-Instruct -encoder minilm=all-MiniLM-L6-v2
//	curl http://localhost:8080/v1/embeddings -d '{"model": "minilm", "input": ["a", "b"]}'
//
// The folder of -models has a folder for each model, and in it one for each version:
//
//	NAME/labels.txt                   names of the classes, one on each line; may be left out
//	NAME/model.json                   settings; see the type settings
//	NAME/1/checkpoint.safetensors     a model that examples/train has saved,
//	NAME/1/model.safetensors          or weights of an architecture of package vision,
//	NAME/1/model.pt2                  or a program of torch.export.save,
//	NAME/1/compiled.pt2               or a compiled package: code, only with -allow-compiled
//
// Requests that come while the device computes are computed together, in one batch. On a GPU there
// is a CUDA graph of the model for each batch size. Models are loaded and unloaded, and metrics
// read, on the address of -admin alone. SIGTERM refuses new requests and answers the others.
//
// The exit status is 0 after SIGTERM, 1 if the server cannot start, 2 for wrong flags, and 3 if the
// device is lost. A supervisor then starts the server again.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

type flags struct {
	models, checkpoint      string
	listen, grpc, admin     string
	device                  string
	batch, queue, maxPixels int
	memory                  float64
	maxBody                 int64
	perClient               int
	timeout, drain          time.Duration
	token, cert, key        string
	compiled                bool
	texts, encoders         folders
	textBatch, textTokens   int
	textContext             int
	quantize                string
	random                  uint64 // a seed of weights, in tests
	textTimeout             time.Duration
}

func main() {
	var f flags
	flag.StringVar(&f.models, "models", "", "folder of models")
	flag.StringVar(&f.checkpoint, "checkpoint", "", "one model in place of -models: a checkpoint of examples/train")
	flag.StringVar(&f.listen, "listen", "localhost:8080", "host and port of HTTP; port 0 takes a free one")
	flag.StringVar(&f.grpc, "grpc", "", "host and port of gRPC, such as localhost:8081; empty: none. gRPC counts the memory of a request that it has read; until then each of -per-client calls of an address may hold -max-body, and twice that for a moment")
	flag.StringVar(&f.admin, "admin", "", "host and port of metrics, and to load and unload models, such as localhost:8082; empty: none")
	flag.StringVar(&f.device, "device", "auto", "auto, cpu, cuda or cuda:N")
	flag.IntVar(&f.batch, "batch", 32, "most entries that the device computes together")
	flag.IntVar(&f.queue, "queue", 0, "most entries that wait for a model; 0: 16 batches. A request beyond has the status 429")
	flag.Float64Var(&f.memory, "memory", 0, "GiB that all models may take on the device; 0: no bound. A model that was not used for long gives way")
	flag.Int64Var(&f.maxBody, "max-body", 64, "MiB of the largest request. HTTP, gRPC and -admin may each hold 1024 MiB of requests, or 4 times -max-body if that is more")
	flag.IntVar(&f.maxPixels, "max-pixels", 50_000_000, "pixels of the largest image")
	flag.IntVar(&f.perClient, "per-client", 256, "most requests of one address at the same time; a request beyond has the status 429")
	flag.DurationVar(&f.timeout, "timeout", 30*time.Second, "most time for a request, from its header to its answer")
	flag.DurationVar(&f.drain, "drain", 10*time.Second, "most time for the requests that SIGTERM finds")
	flag.StringVar(&f.token, "token-file", "", "file with a token that each request must send, except health probes")
	flag.StringVar(&f.cert, "tls-cert", "", "certificate file of TLS")
	flag.StringVar(&f.key, "tls-key", "", "key file of TLS")
	flag.BoolVar(&f.compiled, "allow-compiled", false, "load compiled packages, which are code")
	flag.Var(&f.texts, "text", "NAME=FOLDER of a language model, which /v1/chat/completions and /v1/completions answer with; may be given several times")
	flag.Var(&f.encoders, "encoder", "NAME=FOLDER of a sentence encoder or a reranker, for /v1/embeddings or /v1/rerank; may be given several times")
	flag.IntVar(&f.textBatch, "text-batch", 0, "most answers of a language model that are computed beside each other; 0: 64")
	flag.IntVar(&f.textTokens, "text-tokens", 0, "tokens of all conversations of a language model that have room in its cache; 0: one conversation of -text-context")
	flag.IntVar(&f.textContext, "text-context", 0, "most tokens of a conversation; 0: what the model takes, but at most 8192")
	flag.StringVar(&f.quantize, "text-quantize", "", "int8, fp8, int4, int4-128 or mxfp4: makes the weights of language models narrow")
	flag.DurationVar(&f.textTimeout, "text-timeout", 10*time.Minute, "most time for a request of /v1, as -timeout for the others. A client that takes nothing for -timeout is left before")
	flag.Parse()
	noText := len(f.texts)+len(f.encoders) == 0
	if (f.models == "") == (f.checkpoint == "") && (noText || f.models != "") || f.textBatch < 0 || f.textTokens < 0 || f.textContext < 0 || f.textTimeout <= 0 || flag.NArg() > 0 || f.batch < 1 || !(f.memory >= 0 && f.memory < 1<<20) || f.maxBody < 1 || f.perClient < 1 || f.maxBody > 1<<20 || f.maxPixels < 1 || f.queue < 0 || f.timeout <= 0 || f.drain < 0 || (f.cert == "") != (f.key == "") {
		fmt.Fprintln(os.Stderr, "serve: give -models or -checkpoint, or -text or -encoder, -batch, -max-body, -max-pixels, -per-client, -timeout and -text-timeout above 0, -queue, -memory, -drain and the other numbers of -text not below 0, -tls-cert with -tls-key, and nothing else")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		if errors.Is(err, cgotorch.ErrDeviceLost) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

// run serves until ctx ends or the device is lost.
func run(ctx context.Context, f flags) error {
	s, err := open(f) // before the models, so that a taken port is told at once
	if err != nil {
		return err
	}
	defer s.close()
	return s.run(ctx)
}

func (s *servers) run(ctx context.Context) error {
	f := s.f
	tell := func(format string, args ...any) { slog.Info(fmt.Sprintf(format, args...)) }
	models := serve.NewRepository(serve.RepositoryOptions{Memory: int64(f.memory * (1 << 30)), Log: func(text string) { tell("%s", text) }})
	defer models.Close()
	o := &opener{device: s.device, batchSizes: powersTo(f.batch), queue: f.queue, maxPixels: f.maxPixels, compiled: f.compiled, log: tell}

	m := newMetrics(models, s.device)
	options := oip.Options{MaxBody: f.maxBody << 20, Observe: m.observe}
	g := &guard{token: s.token, most: f.perClient, timeout: f.timeout, textTimeout: f.textTimeout, clients: map[string]int{}}
	admin := options
	admin.Control = true
	rpc := newGRPC(models, options, s.grpcOptions(g)...)
	main, side := http.NewServeMux(), http.NewServeMux()
	t, err := newTexts(f, s.device, m)
	if err != nil {
		return err
	}
	defer t.close()
	addPage(main, models, m, t)
	addPage(side, models, m, t)
	t.add(main, side, m)

	load := func() error { return o.loadCheckpoint(ctx, models, f.checkpoint) }
	if f.models != "" {
		folder, err := openFolder(f.models, models, o)
		if err != nil {
			return err
		}
		defer folder.root.Close()
		admin.Scan = folder.scan
		load = func() error { return folder.loadAll(ctx) }
	}
	failed := s.start(g.wrap(t.beside(oip.NewHandler(models, options), main)), g.wrap(t.beside(oip.NewHandler(models, admin), side)), rpc)
	if err := errors.Join(t.loadAll(ctx), load()); err != nil && ctx.Err() == nil {
		return err
	}
	for _, line := range s.addresses() {
		fmt.Println(line)
	}
	select {
	case err := <-failed:
		return err
	case <-models.Lost():
	case <-t.lost:
	case <-ctx.Done():
		tell("no new request is taken; those that have begun are answered")
		s.stop(rpc)
		return errors.Join(t.close(), models.Close())
	}
	return fmt.Errorf("%w: nothing can be computed any more", cgotorch.ErrDeviceLost)
}

// powersTo returns 1, 2, 4 and so on, and n.
func powersTo(n int) []int {
	sizes := []int{n}
	for size := 1; size < n; size *= 2 {
		sizes = append(sizes, size)
	}
	return sizes
}

// loadCheckpoint adds one model, under the name of its architecture. An empty path adds none.
func (o *opener) loadCheckpoint(ctx context.Context, models *serve.Repository, path string) error {
	if path == "" {
		return nil
	}
	s, err := checkpointSettings(path, settings{})
	if err != nil {
		return err
	}
	if err := models.Add(s.Architecture, "1", func() (*serve.Model, error) { return o.weights(path, settings{}) }); err != nil {
		return err
	}
	return models.Load(ctx, s.Architecture, "1")
}

// servers are the server's ports.
type servers struct {
	f                 flags
	token             string
	device            cgotorch.Device
	http, admin, grpc net.Listener
	tls               *tls.Config
	main, side        *http.Server
}

// open finds the device of f, reads its files, and takes its ports. The caller closes them.
func open(f flags) (*servers, error) {
	token, err := readToken(f.token)
	if err != nil {
		return nil, err
	}
	s := &servers{f: f, token: token}
	if s.device, err = cgotorch.ParseDevice(f.device); err == nil {
		err = s.device.Synchronize() // fails if the device is not there
	}
	if err != nil {
		return nil, fmt.Errorf("-device %s: %w", f.device, err)
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	for _, l := range []struct {
		to      *net.Listener
		address string
		http    bool
	}{{&s.http, f.listen, true}, {&s.admin, f.admin, true}, {&s.grpc, f.grpc, false}} {
		if l.address == "" {
			continue
		}
		if *l.to, err = net.Listen("tcp", l.address); err != nil {
			s.close()
			return nil, err
		}
		if s.tls != nil && l.http {
			*l.to = tls.NewListener(*l.to, s.tls)
		}
	}
	return s, nil
}

func (s *servers) grpcOptions(g *guard) (o []grpc.ServerOption) {
	if s.tls != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(s.tls)))
	}
	return append(o, grpc.InTapHandle(g.tap), grpc.MaxConcurrentStreams(uint32(s.f.perClient)))
}

// start begins to answer. The channel gets an error if a port fails.
func (s *servers) start(main, side http.Handler, rpc *grpc.Server) chan error {
	failed := make(chan error, 3)
	serve := func(h http.Handler, l net.Listener) *http.Server {
		// The guard's time begins behind the header and includes the body. It ends before ReadTimeout,
		// which cancels the requests of its connection. A slow receiver has a minute for its answer.
		const header = 10 * time.Second
		server := &http.Server{Handler: h, ReadHeaderTimeout: header, ReadTimeout: header + max(s.f.timeout, s.f.textTimeout), IdleTimeout: 2 * time.Minute,
			WriteTimeout: time.Minute + max(s.f.timeout, s.f.textTimeout), MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn)}
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
		return server
	}
	s.main = serve(main, s.http)
	if s.admin != nil {
		s.side = serve(side, s.admin)
	}
	if s.grpc != nil {
		go func() {
			if err := rpc.Serve(s.grpc); err != nil {
				failed <- err
			}
		}()
	}
	return failed
}

func (s *servers) addresses() []string {
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	lines := []string{fmt.Sprintf("listening on %s://%v/v2", scheme, s.http.Addr())}
	if len(s.f.texts)+len(s.f.encoders) > 0 {
		lines = append(lines, fmt.Sprintf("OpenAI's interface on %s://%v/v1", scheme, s.http.Addr()))
	}
	if s.grpc != nil {
		lines = append(lines, fmt.Sprintf("gRPC on %v", s.grpc.Addr()))
	}
	if s.admin != nil {
		lines = append(lines, fmt.Sprintf("metrics and models on %s://%v/", scheme, s.admin.Addr()))
	}
	return lines
}

// stop takes no new requests, and waits for those that have begun, for at most flags.drain.
func (s *servers) stop(rpc *grpc.Server) {
	deadline, cancel := context.WithTimeout(context.Background(), s.f.drain)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		rpc.GracefulStop()
		close(drained)
	}()
	for _, server := range []*http.Server{s.main, s.side} {
		if server != nil && server.Shutdown(deadline) != nil {
			server.Close()
		}
	}
	select {
	case <-drained:
	case <-deadline.Done():
		rpc.Stop()
	}
}

func (s *servers) close() {
	for _, l := range []net.Listener{s.http, s.admin, s.grpc} {
		if l != nil {
			l.Close()
		}
	}
}

// readToken returns the token in a file, or "" without a file.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(filepath.Clean(path))
	if token := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff")); err != nil || len(token) >= 16 {
		return token, err
	}
	return "", fmt.Errorf("%s has a token of fewer than 16 characters", path)
}
