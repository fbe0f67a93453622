// Package openai answers OpenAI's interface over HTTP with models of package text.
//
//	h := openai.NewHandler(openai.Options{})
//	err := h.Add(openai.Model{Name: "llama", Decoder: model, Batcher: batcher})
//	…
//	err = http.ListenAndServe("localhost:8080", h)
//
// Clients of OpenAI then talk to http://localhost:8080/v1. Rerankers are asked as Cohere's and
// Jina's clients do. A request is refused if it has a field that would change the answer and that
// nothing here does. The error names the field.
package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
	"github.com/streamtorch/streamtorch/cgotorch/internal/metrics"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// Options are the options of [NewHandler]. The zero value is good for a service.
type Options struct {
	// Token lets those requests pass that have the header "Authorization: Bearer TOKEN". "" lets all
	// pass.
	Token string

	MaxBody int64 // most bytes of a request's body, inflated; 0 means 16 MiB
	// Memory is the bytes of all bodies and of what they become, and as many again of texts that
	// become tokens, which wait for each other. 0 means 1 GiB, at least 4 times MaxBody.
	Memory   int64
	Requests int // most requests at the same time; one beyond has the status 429 at once; 0 means 4096
	Choices  int // most answers to one request, as n asks for them; 0 means 64
	Texts    int // most texts of one request, to embed or to rank; 0 means 2048

	// Stall is the longest time for which a client may take nothing of an answer. The answer then
	// ends. 0 means 30 seconds.
	Stall time.Duration

	// Observe is called when a request has ended, on its goroutine: several calls run at once. It may
	// be nil.
	Observe func(Observation)
}

// Observation tells of a request that has ended.
type Observation struct {
	Endpoint string // the path, or "" for an unknown one
	Model    string // its name, or "" for an unknown one
	Status   int    // the HTTP status; 499 means that the client has left
	Took     time.Duration
	Err      error // why it failed, or nil
}

// Model is a model under a name. It has a Decoder and a Batcher of it, for chats and completions,
// or an Encoder, for embeddings or ranks.
type Model struct {
	Name    string
	Decoder *text.Model
	Batcher *text.Batcher
	Encoder *text.Encoder
}

// Handler answers the requests of any number of clients. Its methods may be called from any number
// of goroutines.
type Handler struct {
	o      Options
	bodies bodies.Bound
	texts  *turns // that become tokens
	routes *http.ServeMux

	mu       sync.Mutex
	models   map[string]*served
	under    int // requests under way
	requests map[series]int64
	took     map[series]*metrics.Histogram // without a status
}

// series are the labels of a count of requests.
type series struct {
	endpoint, model string
	status          int
}

// served is a Model with what the Handler knows of it.
type served struct {
	Model
	since time.Time
	form  form
	ranks bool           // the Encoder makes scores of pairs
	under sync.WaitGroup // requests under way
}

// NewHandler returns a Handler without models. These are its paths:
//
//	POST /v1/chat/completions  an answer to messages, whole or streamed
//	POST /v1/completions       what follows a text
//	POST /v1/embeddings        vectors of texts
//	POST /v1/rerank            scores of texts for a query; also /rerank and /v2/rerank
//	GET  /v1/models            the models; /v1/models/NAME has one
//
// A failure has the status of OpenAI, and an object "error" with a message, the type and the field.
// The name of a special token in a message becomes that token, as transformers has it: who lets
// strangers write messages takes such names out. The http.Server's ReadTimeout bounds the time in
// which a body may come.
func NewHandler(o Options) *Handler {
	o.MaxBody = cmp.Or(o.MaxBody, 16<<20)
	o.Memory = cmp.Or(o.Memory, max(1<<30, 4*o.MaxBody))
	o.Requests, o.Choices, o.Texts = cmp.Or(o.Requests, 4096), cmp.Or(o.Choices, 64), cmp.Or(o.Texts, 2048)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	h := &Handler{o: o, routes: http.NewServeMux(), models: map[string]*served{}, requests: map[series]int64{}, took: map[series]*metrics.Histogram{}}
	h.texts = newTurns(o.Memory)
	h.bodies = bodies.Bound{Most: o.MaxBody, All: o.Memory + 1} // a body of unknown size needs a byte more, to see its end
	for path, answer := range map[string]func(c *call) error{
		"/v1/chat/completions": (*call).chat, "/v1/completions": (*call).completion, "/v1/embeddings": (*call).embeddings,
		"/v1/rerank": (*call).rerank, "/v2/rerank": (*call).rerank, "/rerank": (*call).rerank,
	} {
		h.routes.HandleFunc("POST "+path, h.answered(path, (*call).read, answer))
		h.routes.HandleFunc(path, h.answered(path, nil, (*call).posted))
	}
	h.routes.HandleFunc("GET /v1/models", h.answered("/v1/models", nil, (*call).list))
	h.routes.HandleFunc("GET /v1/models/{name...}", h.answered("/v1/models", nil, (*call).describe))
	h.routes.HandleFunc("/", h.answered("", nil, func(c *call) error { return missing(c.r) }))
	return h
}

// posted refuses a method other than POST.
func (c *call) posted() error {
	c.w.Header().Set("Allow", http.MethodPost)
	return &refusal{status: http.StatusMethodNotAllowed, text: fmt.Sprintf("%s takes no %s: send a POST with a JSON body", c.r.URL.Path, c.r.Method)}
}

// missing returns the error of a request for an unknown path.
func missing(r *http.Request) error {
	cure := "the paths are /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank and /v1/models"
	if strings.HasPrefix(r.URL.Path, "/v1/responses") {
		cure = "nothing is stored here: send the whole conversation to /v1/chat/completions"
	}
	return &refusal{status: http.StatusNotFound, text: fmt.Sprintf("there is no %s %s; %s", r.Method, r.URL.Path, cure)}
}

// ServeHTTP answers a request. A request ends within one token when its client leaves.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.routes.ServeHTTP(w, r) }

// Add makes a model known. The Handler does not close it. Add fails with
// [cgotorch.ErrInvalidArgument] for a name that is taken, and for a Model that lacks a part.
func (h *Handler) Add(m Model) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("openai: model %q: %s: %w", m.Name, fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
	}
	s := &served{Model: m, since: time.Now()}
	switch decodes := m.Decoder != nil && m.Batcher != nil; {
	case m.Name == "":
		return refuse("it has no name")
	case !utf8.ValidString(m.Name) || path.Clean("/"+m.Name) != "/"+m.Name:
		return refuse("its name is no path of UTF-8 without . and .., so no request could name it")
	case decodes == (m.Encoder != nil) || (m.Decoder == nil) != (m.Batcher == nil):
		return refuse("want a Decoder with a Batcher of it, or an Encoder")
	case decodes && m.Decoder.Tokenizer == nil:
		return refuse("the Decoder has no tokenizer")
	case decodes:
		s.form = formOf(m.Decoder.Tokenizer)
	default:
		_, err := m.Encoder.Rank(context.Background(), "", nil) // it computes nothing
		s.ranks = !errors.Is(err, cgotorch.ErrInvalidArgument)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.models[m.Name] != nil {
		return refuse("there is one of this name")
	}
	h.models[m.Name] = s
	return nil
}

// Remove makes a model unknown to new requests, and waits for those under way. After nil the model
// may be closed. Remove fails with [serve.ErrNotFound], and with the cause of ctx if that ends
// first. The model is unknown then too, and closing its Batcher or Encoder ends the requests.
func (h *Handler) Remove(ctx context.Context, name string) error {
	h.mu.Lock()
	s := h.models[name]
	delete(h.models, name)
	h.mu.Unlock()
	if s == nil {
		return fmt.Errorf("openai: model %q: %w", name, serve.ErrNotFound)
	}
	left := make(chan struct{})
	go func() {
		s.under.Wait()
		close(left)
	}()
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Names returns the names of the models, in order.
func (h *Handler) Names() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.models {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// use finds a model, and counts a request of it. The caller ends it by Done of the model's `under`.
// use fails with the status 404.
func (h *Handler) use(name string) (s *served, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s = h.models[name]; s != nil {
		s.under.Add(1)
		return s, nil
	}
	return nil, &refusal{status: http.StatusNotFound, param: "model", code: "model_not_found", text: fmt.Sprintf("there is no model %q; GET /v1/models lists them", name)}
}

// enter counts a request. It fails with [serve.ErrQueueFull] at Options.Requests of them.
func (h *Handler) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.under >= h.o.Requests {
		return fmt.Errorf("%d requests are under way: %w", h.under, serve.ErrQueueFull)
	}
	h.under++
	return nil
}

// answered returns the handler of a path. It answers a request, or writes its error, and observes
// it. `read` may be nil.
func (h *Handler) answered(path string, read, answer func(c *call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{h: h, w: w, r: r, began: time.Now()}
		defer func() {
			if v := recover(); v != nil { // the server logs it, and the model's others go on
				h.observe(c, path, fmt.Errorf("%v: %w", v, serve.ErrModel))
				panic(v)
			}
		}()
		err := c.serve(read, answer)
		if err != nil {
			c.fail(err)
		}
		h.observe(c, path, err)
	}
}

// serve reads and answers a request. Its error is not written yet.
func (c *call) serve(read, answer func(c *call) error) error {
	h := c.h
	if err := h.bears(c.r); err != nil {
		return err
	}
	if err := h.enter(); err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		h.under--
		h.mu.Unlock()
	}()
	if read != nil {
		defer func() {
			if c.body != nil {
				h.bodies.Give(c.body)
			}
		}()
		if err := read(c); err != nil {
			return err
		}
		defer c.model.under.Done()
	}
	return answer(c)
}

// observe counts a request that has ended, and calls Options.Observe.
func (h *Handler) observe(c *call, path string, err error) {
	o := Observation{Endpoint: path, Status: statusOf(c.r.Context(), err), Took: time.Since(c.began), Err: err}
	if c.model != nil {
		o.Model = c.model.Name
	}
	h.mu.Lock()
	h.requests[series{o.Endpoint, o.Model, o.Status}]++
	if err == nil {
		of := series{endpoint: o.Endpoint, model: o.Model}
		if h.took[of] == nil {
			h.took[of] = new(metrics.Histogram)
		}
		h.took[of].Add(o.Took)
	}
	h.mu.Unlock()
	if h.o.Observe != nil {
		h.o.Observe(o)
	}
}

// statusOf returns the HTTP status of an error. `ctx` is the request's.
func statusOf(ctx context.Context, err error) int {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	var own *refusal
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &own) && own.status != 0:
		return own.status
	case is(context.DeadlineExceeded), errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case is(context.Canceled, errGone), context.Cause(ctx) != nil:
		return 499
	case is(serve.ErrQueueFull, bodies.ErrBusy):
		return http.StatusTooManyRequests
	case is(cgotorch.ErrClosed, cgotorch.ErrOutOfMemory, cgotorch.ErrDeviceLost):
		return http.StatusServiceUnavailable
	case is(bodies.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case is(cgotorch.ErrInvalidArgument) && !is(serve.ErrModel):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}
