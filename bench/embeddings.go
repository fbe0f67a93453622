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
	"slices"
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
	client *http.Client
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

func (r *embeddingsRun) inside(kind string, i int) error {
	query, texts := r.request(kind, i)
	if kind == "embed" {
		_, err := r.e.Embed(context.Background(), texts)
		return err
	}
	_, err := r.e.Rank(context.Background(), query, texts)
	return err
}

func (r *embeddingsRun) overHTTP(kind string, i int) error {
	query, texts := r.request(kind, i)
	path, request := "/v1/embeddings", map[string]any{"model": "m", "input": texts, "encoding_format": "base64", "truncate": true}
	if kind == "rerank" {
		path, request = "/v1/rerank", map[string]any{"model": "m", "query": query, "documents": texts}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	answer, err := r.client.Post(r.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	reply, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", answer.Status, reply)
	}
	return err
}

// closed returns the requests a second of so many clients, and the times of requests in
// milliseconds.
func (r *embeddingsRun) closed(clients, count int, ask func(i int) error) (rate float64, took sample, err error) {
	each := make([]sample, clients)
	seconds, err := askAll(clients, count, func(client, i int) error {
		at := time.Now()
		err := ask(i)
		each[client] = append(each[client], time.Since(at).Seconds()*1e3)
		return err
	})
	return float64(count) / seconds, slices.Concat(each...), err
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
	h := openai.NewHandler(openai.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err = errors.Join(err, h.Add(openai.Model{Name: "m", Encoder: r.e})); err != nil {
		return nil, errors.Join(err, r.e.Close())
	}
	server := &http.Server{Handler: h}
	go server.Serve(l) //nolint:errcheck // it ends with the Close below
	r.url, r.client = "http://"+l.Addr().String(), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	return func() {
		r.client.CloseIdleConnections()
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
	factor := map[string]int{"embed": r.c.or(1, 40), "rerank": 1}[kind] // requests of a client
	type side struct {
		rate float64
		took sample
	}
	clients := []int{1, 64, 512}
	switch {
	case r.c.brief:
		clients = []int{1, 4}
	case kind == "rerank":
		clients = []int{1, 64}
	}
	ours, overHTTP := map[int]side{}, map[int]side{}
	count := func(n int) int { return min(max(n, 8)*factor, r.c.or(64, 20_000)) }
	all := count(clients[len(clients)-1])
	offline := 0.
	for range 3 { // the first warms up
		if offline, _, err = r.closed(min(all, 1000), all, func(i int) error { return r.inside(kind, i) }); err != nil {
			return err
		}
	}
	for _, n := range clients {
		var s [2]side
		for k, ask := range []func(string, int) error{r.inside, r.overHTTP} {
			for range 2 {
				if s[k].rate, s[k].took, err = r.closed(n, count(n), func(i int) error { return ask(kind, i) }); err != nil {
					return err
				}
			}
		}
		ours[n], overHTTP[n] = s[0], s[1]
	}
	stats := r.e.Stats()
	end()
	return r.against(kind, clients, func(n int, theirs peerRate) {
		name := fmt.Sprintf("text/embeddings/%s-%d", kind, n)
		r.emit(against(name, ours[n].rate, "requests/s", theirs.name, theirs.Rate, higher,
			fmt.Sprintf("in the process; %d requests; %.2f of %.0f/s offline; p50 %.2f p99 %.2f ms, peer %.2f and %.2f; %.1f texts a batch; %s",
				count(n), ours[n].rate/offline, offline, ours[n].took.median(), ours[n].took.quantile(0.99), theirs.P50, theirs.P99, float64(stats.Texts)/float64(stats.Batches), r.note)))
		r.emit(against(name+"-http", overHTTP[n].rate, "requests/s", "in the process", ours[n].rate, higher,
			fmt.Sprintf("clients and server in one process; p50 %.2f p99 %.2f ms; %s", overHTTP[n].took.median(), overHTTP[n].took.quantile(0.99), r.note)))
	}, count)
}

// peerRate is what a peer does for some clients. infinity-emb tells no times.
type peerRate struct {
	name           string
	Rate, P50, P99 float64
}

// against measures the peers, each for so many clients.
func (r *embeddingsRun) against(kind string, clients []int, each func(n int, theirs peerRate), count func(n int) int) error {
	p, err := r.c.startPeer("embeddings.py", switches{})
	if err != nil {
		return err
	}
	defer p.close()
	device := r.c.device.String()
	if err := p.do(nil, "load", "folder", r.folder, "device", device, "kind", kind, "batch", 256, "half", r.c.device.IsCUDA(), "compiled", false); err != nil {
		return err
	}
	for _, n := range clients {
		theirs := peerRate{name: "sentence-transformers behind a queue"}
		for range 2 {
			if err := p.do(&theirs, "rate", "kind", kind, "clients", n, "count", count(n)); err != nil {
				return err
			}
		}
		each(n, theirs)
		theirs = peerRate{name: "infinity-emb"}
		if err := p.do(&theirs, "infinity", "folder", r.folder, "device", device, "kind", kind, "clients", n, "count", count(n), "batch", 256); err == nil {
			each(n, theirs)
		}
	}
	return nil
}
