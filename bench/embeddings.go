package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
)

// embeddingsRun is a run of the rows of text/embeddings.
type embeddingsRun struct {
	c      *config
	emit   func(row)
	folder string // of embeddings.py's make
	texts  []string
	note   string
	e      *text.Encoder
	url    string

	connections []*connection // of clients
}

// benchEmbeddings measures vectors and ranks for many clients, with random weights of BGE-base's
// shapes. The texts are the paragraphs of this repository.
func benchEmbeddings(c *config, emit func(row)) error {
	r := &embeddingsRun{c: c, emit: emit}
	var err error
	if r.folder, err = os.MkdirTemp("", "bench-embeddings-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.folder)
	if err := r.make(); err != nil {
		return err
	}
	for _, kind := range []string{"embed", "rerank"} {
		if err := r.rows(kind); err != nil {
			return err
		}
	}
	return nil
}

// make lets the peer write the folders. They hold no state of it afterwards.
func (r *embeddingsRun) make() error {
	p, err := r.c.startPeer("embeddings.py", switches{})
	if err != nil {
		return err
	}
	defer p.close()
	var told struct{ Texts, Median, Most int }
	if err := p.do(&told, "make", "root", ".", "folder", r.folder, "brief", r.c.brief); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(r.folder, "texts.json"))
	if err != nil {
		return err
	}
	r.note = fmt.Sprintf("BGE-base's shapes, random weights; texts of %d tokens in the median, up to %d; %s; %s", told.Median, told.Most, r.c.settings(), p.versions)
	return json.Unmarshal(data, &r.texts)
}

// request asks for the texts of request i: one to embed, or a query with 100 to rank.
func (r *embeddingsRun) request(kind string, i int) (query string, texts []string) {
	n := len(r.texts)
	if kind == "embed" {
		return "", []string{r.texts[i%n]}
	}
	for k := range 100 {
		texts = append(texts, r.texts[(100*i+k)%n])
	}
	query = r.texts[7*i%n]
	return query[:min(len(query), 100)], texts
}

func (r *embeddingsRun) inside(kind string, _, i int) error {
	query, texts := r.request(kind, i)
	if kind == "embed" {
		_, err := r.e.Embed(context.Background(), texts)
		return err
	}
	_, err := r.e.Rank(context.Background(), query, texts)
	return err
}

// overHTTP asks by a connection of the client's own.
func (r *embeddingsRun) overHTTP(kind string, client, i int) error {
	query, texts := r.request(kind, i)
	path, request := "/v1/embeddings", map[string]any{"model": "m", "input": texts, "encoding_format": "base64", "truncate": true}
	if kind == "rerank" {
		path, request = "/v1/rerank", map[string]any{"model": "m", "query": query, "documents": texts}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	c := r.connections[client]
	if c == nil {
		c = &connection{}
		if c.request, err = http.NewRequest("POST", r.url+path, nil); err != nil {
			return err
		}
		r.connections[client] = c
	}
	c.text = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, c.request.URL.Host, len(body), body)
	return c.ask()
}

// encoderLoad is what some clients have asked for.
type encoderLoad struct {
	rate  float64 // requests a second
	took  sample  // of a request, in milliseconds
	cores float64 // that were busy
	batch float64 // time of a batch in milliseconds
	texts float64 // of a batch
}

// closed lets so many clients ask. Each asks again when it has an answer.
func (r *embeddingsRun) closed(clients, count int, ask func(client, i int) error) (encoderLoad, error) {
	return r.measured(count, func() (sample, error) {
		each := make([]sample, clients)
		_, err := askAll(clients, count, func(client, i int) error {
			at := time.Now()
			err := ask(client, i)
			each[client] = append(each[client], time.Since(at).Seconds()*1e3)
			return err
		})
		return slices.Concat(each...), err
	})
}

// measured returns what `run` loads the Encoder with by its requests.
func (r *embeddingsRun) measured(count int, run func() (sample, error)) (encoderLoad, error) {
	before, cpu, began := r.e.Stats(), cpuTime(), time.Now()
	took, err := run()
	seconds, after := time.Since(began).Seconds(), r.e.Stats()
	batches := float64(after.Batches - before.Batches)
	return encoderLoad{
		rate: float64(count) / seconds, took: took, cores: (cpuTime() - cpu).Seconds() / seconds,
		batch: 1e3 * seconds / batches, texts: float64(after.Texts-before.Texts) / batches,
	}, err
}

// offline returns the requests a second if all are asked at once: texts by one call, or a call for
// each query.
func (r *embeddingsRun) offline(kind string, count int) (rate float64, err error) {
	for range 3 { // the first warms up
		began := time.Now()
		if kind == "embed" {
			var all []string
			for i := range count {
				_, texts := r.request(kind, i)
				all = append(all, texts...)
			}
			_, err = r.e.Embed(context.Background(), all)
		} else {
			_, err = askAll(count, count, func(client, i int) error { return r.inside(kind, client, i) })
		}
		if err != nil {
			return 0, err
		}
		rate = max(rate, float64(count)/time.Since(began).Seconds())
	}
	return rate, nil
}

// arriving is what requests are that come by chance, so many a second.
func (r *embeddingsRun) arriving(kind string, rate float64, count int) (encoderLoad, error) {
	random := rand.New(rand.NewPCG(9, 9))
	due := make([]time.Duration, count)
	at := 0.
	for i := range due {
		at += random.ExpFloat64() / rate
		due[i] = time.Duration(at * 1e9)
	}
	return r.measured(count, func() (took sample, err error) {
		took = make(sample, count)
		errs := make([]error, count)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range count {
			time.Sleep(due[i] - time.Since(began))
			wg.Add(1)
			go func() {
				defer wg.Done()
				errs[i] = r.inside(kind, 0, i)
				took[i] = (time.Since(began) - due[i]).Seconds() * 1e3
			}()
		}
		wg.Wait()
		return took, errors.Join(errs...)
	})
}

// serve opens the encoder and a server of it.
func (r *embeddingsRun) serve(kind string) (end func(), err error) {
	o := text.EncoderOptions{}
	if r.c.device.IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	if r.e, err = text.OpenEncoder(r.c.device, filepath.Join(r.folder, kind), o); err != nil {
		return nil, err
	}
	if r.c.device.IsCUDA() {
		time.Sleep(3 * time.Second) // sizes of batches are captured while none waits
	}
	h := openai.NewHandler(openai.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err = errors.Join(err, h.Add(openai.Model{Name: "m", Encoder: r.e})); err != nil {
		return nil, errors.Join(err, r.e.Close())
	}
	server := &http.Server{Handler: h}
	go server.Serve(l) //nolint:errcheck // it ends with the Close below
	r.url, r.connections = "http://"+l.Addr().String(), make([]*connection, 512)
	return func() {
		for _, c := range r.connections {
			if c != nil {
				c.close()
			}
		}
		server.Close()
		r.e.Close()
	}, nil
}

// rows makes the rows of one kind. Ours are measured before the peers, which need the device too.
func (r *embeddingsRun) rows(kind string) error {
	end, err := r.serve(kind)
	if err != nil {
		return err
	}
	clients := []int{1, 64, 512}
	switch {
	case r.c.brief:
		clients = []int{1, 4}
	case kind == "rerank":
		clients = []int{1, 64}
	}
	count := func(n int) int {
		factor := map[string]int{"embed": r.c.or(1, 40), "rerank": 1}[kind] // requests of a client
		return min(max(n, 8)*factor, r.c.or(64, 20_000))
	}
	most := clients[len(clients)-1]
	offline, err := r.offline(kind, count(most))
	if err != nil {
		return err
	}
	ours, overHTTP := map[int]encoderLoad{}, map[int]encoderLoad{}
	for _, n := range clients {
		var s [2]encoderLoad
		for k, ask := range []func(string, int, int) error{r.inside, r.overHTTP} {
			for range 2 {
				if s[k], err = r.closed(n, count(n), func(client, i int) error { return ask(kind, client, i) }); err != nil {
					return err
				}
			}
		}
		ours[n], overHTTP[n] = s[0], s[1]
	}
	chance, err := r.arriving(kind, 0.8*ours[most].rate, 5*count(most))
	if err != nil {
		return err
	}
	end()
	r.emit(against(fmt.Sprintf("text/embeddings/%s-arrivals-80", kind), chance.took.quantile(0.99), "ms", "a batch of the full rate", ours[most].batch, lower,
		fmt.Sprintf("p99 of %d requests that come by chance, at 80 %% of %.0f/s in the process; p50 %.2f ms; %.1f texts a batch, one each %.2f ms; %s",
			len(chance.took), ours[most].rate, chance.took.median(), chance.texts, chance.batch, r.note)))
	for _, n := range clients {
		h := overHTTP[n]
		r.emit(against(fmt.Sprintf("text/embeddings/%s-%d-http", kind, n), h.rate, "requests/s", "in the process", ours[n].rate, higher,
			fmt.Sprintf("clients and server in one process, %.1f of %d cores busy; p50 %.2f p99 %.2f ms; %s", h.cores, runtime.NumCPU(), h.took.median(), h.took.quantile(0.99), r.note)))
	}
	return r.against(kind, clients, func(n int, theirs peerRate) {
		o := ours[n]
		r.emit(against(fmt.Sprintf("text/embeddings/%s-%d", kind, n), o.rate, "requests/s", theirs.name, theirs.Rate, higher,
			fmt.Sprintf("in the process; %d requests; %.2f of %.0f/s offline; p50 %.2f p99 %.2f ms; peer: %v; %.1f texts a batch of %.2f ms; %.1f cores busy; %s",
				count(n), o.rate/offline, offline, o.took.median(), o.took.quantile(0.99), theirs, o.texts, o.batch, o.cores, r.note)))
	}, count)
}

// peerRate is what a peer does for some clients. infinity-emb tells no times.
type peerRate struct {
	name, Settings string
	Rate, P50, P99 float64
}

func (p peerRate) String() string {
	if p.P50 == 0 {
		return p.Settings
	}
	return fmt.Sprintf("%s, p50 %.2f p99 %.2f ms", p.Settings, p.P50, p.P99)
}

// against measures the peers, each for so many clients, at the settings that are best for it.
func (r *embeddingsRun) against(kind string, clients []int, each func(n int, theirs peerRate), count func(n int) int) error {
	p, err := r.c.startPeer("embeddings.py", switches{})
	if err != nil {
		return err
	}
	defer p.close()
	device := r.c.device.String()
	queued := peerRate{name: "sentence-transformers behind a queue"}
	tuned := map[string]int{"embed": r.c.or(16, 1024), "rerank": r.c.or(1, 16)}[kind]
	if err := p.do(&queued, "load", "folder", r.folder, "device", device, "kind", kind, "half", r.c.device.IsCUDA(), "compiled", r.c.compile && !r.c.brief, "count", tuned); err != nil {
		return err
	}
	for _, n := range clients {
		for range 2 {
			if err := p.do(&queued, "rate", "kind", kind, "clients", n, "count", min(count(n), 4*tuned)); err != nil {
				return err
			}
		}
		each(n, queued)
		infinity := peerRate{name: "infinity-emb"}
		if err := p.do(&infinity, "infinity", "folder", r.folder, "device", device, "kind", kind, "clients", n, "count", min(count(n), 2*tuned, 40*n)); err == nil {
			each(n, infinity)
		}
	}
	return nil
}
