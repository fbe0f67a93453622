package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
)

// texts serves models of package text by OpenAI's interface.
type texts struct {
	*openai.Handler
	device  cgotorch.Device
	options text.Options
	batch   text.BatcherOptions
	limited string        // what a request may take, for the page
	lost    chan struct{} // closed when the device is lost
	once    sync.Once
	ready   atomic.Bool

	mu     sync.Mutex // held by a load and an unload
	models []*textModel
}

// textModel is a folder under a name.
type textModel struct {
	name, folder string
	encodes      bool
	served       openai.Model
	free         func() error // nil if it is not loaded
}

// folders are the values of -text or -encoder: NAME=FOLDER, or FOLDER, whose last element is the
// name.
type folders []string

func (f *folders) String() string { return strings.Join(*f, " ") }

func (f *folders) Set(value string) error {
	if value == "" {
		return errors.New("want NAME=FOLDER")
	}
	*f = append(*f, value)
	return nil
}

// newTexts makes the handler of the models that flags name. It loads none.
func newTexts(f flags, device cgotorch.Device, m *metrics) (*texts, error) {
	t := &texts{device: device, lost: make(chan struct{})}
	t.options = text.Options{CacheTokens: f.textTokens, Context: f.textContext, Quantize: f.quantize, RandomWeights: f.random}
	t.batch = text.BatcherOptions{MaxBatch: f.textBatch, Queue: f.queue}
	t.limited = fmt.Sprintf("%d MiB, %v, and %v where texts are answered; an address has %d at the same time", f.maxBody, f.timeout, f.textTimeout, f.perClient)
	limits := openai.Options{MaxBody: f.maxBody << 20, Stall: f.timeout, Observe: func(o openai.Observation) {
		if o.Status == http.StatusInternalServerError {
			slog.Error(o.Err.Error())
		}
		if errors.Is(o.Err, cgotorch.ErrDeviceLost) {
			t.once.Do(func() { close(t.lost) })
		}
		m.add(o.Took, o.Status)
	}}
	t.Handler = openai.NewHandler(limits)
	for _, list := range []struct {
		folders folders
		encodes bool
	}{{f.texts, false}, {f.encoders, true}} {
		for _, value := range list.folders {
			name, folder, named := strings.Cut(value, "=")
			if !named {
				name, folder = filepath.Base(value), value
			}
			if name == "." || name == ".." || folder == "" {
				return nil, fmt.Errorf("-text or -encoder is %q: write NAME=FOLDER", value)
			}
			for _, other := range t.models {
				if other.name == name {
					return nil, fmt.Errorf("two models have the name %q: write NAME=FOLDER for one of them", name)
				}
			}
			t.models = append(t.models, &textModel{name: name, folder: folder, encodes: list.encodes})
		}
	}
	if f.quantize != "" && len(f.texts) == 0 {
		return nil, fmt.Errorf("-text-quantize is %q, and there is no -text: encoders keep their weights", f.quantize)
	}
	return t, nil
}

// loadAll loads all models. It begins none when ctx has ended.
func (t *texts) loadAll(ctx context.Context) error {
	for _, m := range t.models {
		if err := t.load(ctx, m.name); err != nil {
			return err
		}
	}
	t.ready.Store(true)
	return nil
}

// beside returns a handler of the Open Inference Protocol and of other paths. ServeMux would
// redirect some paths of the protocol, and its clients do not follow. The server is not ready
// before its models for texts are.
func (t *texts) beside(protocol, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.Path; {
		case at == "/v2/health/ready" && !t.ready.Load():
			deny(w, r, http.StatusServiceUnavailable, "the models for texts are being loaded")
		case at != "/v2/rerank" && (at == "/v2" || strings.HasPrefix(at, "/v2/")):
			protocol.ServeHTTP(w, r)
		default:
			others.ServeHTTP(w, r)
		}
	})
}

// find returns the model of a name. The caller holds mu.
func (t *texts) find(name string) (*textModel, error) {
	for _, m := range t.models {
		if m.name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%q is no model of -text and -encoder: %w", name, serve.ErrNotFound)
}

// load opens a model and makes it known, unless it is known. It waits for the device. Whoever has
// left the queue of loads and unloads changes nothing.
func (t *texts) load(ctx context.Context, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, err := t.find(name)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil || m.free != nil {
		return err
	}
	began := time.Now()
	served := openai.Model{Name: m.name}
	var free []func() error
	if m.encodes {
		if served.Encoder, err = text.OpenEncoder(t.device, m.folder, text.EncoderOptions{}); err == nil {
			free = append(free, served.Encoder.Close)
		}
	} else if served.Decoder, err = text.Open(t.device, m.folder, t.options); err == nil {
		free = append(free, served.Decoder.Close)
		if served.Batcher, err = served.Decoder.NewBatcher(t.batch); err == nil {
			free = append(free, served.Batcher.Close)
		}
	}
	if err == nil {
		err = t.Add(served)
	}
	m.free = func() (err error) {
		for i := len(free) - 1; i >= 0; i-- {
			err = errors.Join(err, free[i]())
		}
		return err
	}
	m.served = served
	if err != nil {
		err = errors.Join(fmt.Errorf("model %q: %w", name, err), m.free())
		m.free = nil
		return err
	}
	slog.Info(fmt.Sprintf("model %q is loaded from %s in %v", name, m.folder, time.Since(began).Round(time.Millisecond)))
	return nil
}

// unload makes a model unknown, waits for its requests until ctx ends, and frees it. Requests that
// are under way then end with an error. A model that is not loaded stays so.
func (t *texts) unload(ctx context.Context, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, err := t.find(name)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return t.remove(ctx, m)
}

// remove is unload, with mu.
func (t *texts) remove(ctx context.Context, m *textModel) error {
	if m.free == nil {
		return nil
	}
	_ = t.Remove(ctx, m.name) // at worst ctx has ended
	err := m.free()
	m.free = nil
	return err
}

// close frees all models.
func (t *texts) close() error {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, m := range t.models {
		errs = append(errs, t.remove(over, m))
	}
	return errors.Join(errs...)
}

// add adds the paths of texts, and those of -admin: metrics, and loading and unloading.
func (t *texts) add(public, admin *http.ServeMux, m *metrics) {
	for _, at := range []string{"/v1/", "/rerank", "/v2/rerank"} {
		public.Handle(at, t)
	}
	admin.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		m.ServeHTTP(w, r)
		t.ServeMetrics(w, r)
	})
	admin.HandleFunc("POST /v1/models/{path...}", t.control)
}

// control answers /v1/models/NAME/load and /v1/models/NAME/unload. A name may have slashes.
func (t *texts) control(w http.ResponseWriter, r *http.Request) {
	name, verb := path.Split(r.PathValue("path"))
	name = strings.TrimSuffix(name, "/")
	var err error
	switch verb {
	case "load":
		err = t.load(r.Context(), name)
	case "unload":
		err = t.unload(r.Context(), name)
	default:
		err = fmt.Errorf("there is no %s: %w", r.URL.Path, serve.ErrNotFound)
	}
	switch {
	case errors.Is(err, serve.ErrNotFound):
		deny(w, r, http.StatusNotFound, err.Error())
	case err != nil:
		deny(w, r, http.StatusServiceUnavailable, err.Error())
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(append([]string{}, t.Names()...)) // an error means that the client is gone
	}
}

// textStatus is what the page shows of a model for texts.
type textStatus struct {
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Running int     `json:"running"`
	Waiting int     `json:"waiting"`
	Tokens  int64   `json:"tokens"`
	Rate    float64 `json:"tokens_per_second"`
	Limits  string  `json:"limits"`
}

// status tells of all models. It does not wait for a load.
func (t *texts) status() (list []textStatus) {
	list = []textStatus{}
	known := t.Names()
	for _, m := range t.models {
		s := textStatus{Name: m.name, State: "not loaded"}
		if slices.Contains(known, m.name) {
			s.State = "ready"
		}
		if s.State == "ready" && t.mu.TryLock() {
			if b := m.served.Batcher; b != nil && m.free != nil {
				stats := b.Stats()
				s.Running, s.Waiting, s.Tokens, s.Rate = stats.Running, stats.Waiting, stats.Tokens, stats.Rate
				s.Limits = fmt.Sprintf("%d tokens a conversation, %d pages, %d free", m.served.Decoder.Context(), stats.Pages, stats.FreePages)
			} else if e := m.served.Encoder; e != nil && m.free != nil {
				stats := e.Stats()
				s.Waiting, s.Tokens = stats.Waiting, stats.Tokens
			}
			t.mu.Unlock()
		}
		list = append(list, s)
	}
	return list
}
