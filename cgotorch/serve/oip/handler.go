package oip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Options are the options of [NewHandler].
type Options struct {
	Name, Version string // of the server, in its metadata; without them streamtorch and this module's version
	MaxBody       int64  // most bytes of a request's body, inflated; 0 means 64 MiB
	// Memory bounds the bytes of all bodies at the same time, and of what JSON becomes: a copy of it,
	// and its tensors. 0 means 1 GiB, or 4 times MaxBody if that is more. A request beyond has the
	// status 429, or 413 if it does not fit alone.
	Memory int64
	// Control allows to load and unload models, to list what is not loaded, and to tell in
	// /v2/health/ready why a load has failed.
	Control bool
	// Scan looks for new models, before a list or a load; may be nil.
	Scan func(ctx context.Context) error
	// Observe is told of each inference request that has ended; may be nil.
	Observe func(Observation)
}

// Complete returns the options with the defaults of MaxBody and Memory.
func (o Options) Complete() Options {
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 20
	}
	if o.Memory == 0 {
		o.Memory = max(1<<30, 4*o.MaxBody)
	}
	return o
}

// Observation tells of an inference request.
type Observation struct {
	Model, Version string // as the client asks; after a success the version that has answered
	Status         int    // the HTTP status, as StatusOf returns it
	Took           time.Duration
	Err            error
}

// NewHandler returns the protocol over HTTP. These are its paths:
//
//	GET  /v2                       the server's name and extensions
//	GET  /v2/health/live, ready    200, or 503 if a wanted model or its device has failed
//	GET  /v2/models/M              inputs and outputs; also /versions/V behind M, here and below
//	GET  /v2/models/M/ready        200 or 503
//	GET  /v2/models/M/config       the batch sizes, as Triton tells them
//	GET  /v2/models/M/stats        counts and times, as Triton tells them; /v2/models/stats for all
//	POST /v2/models/M/infer        a request
//	POST /v2/models/M/classify     an image file, also in a form; the answer has "class" and "score"
//	                               of each class, ?top=5 of them
//	POST /v2/repository/index      the known models, with Options.Control
//	POST /v2/repository/models/M/load, unload
//
// A failure is a JSON object with the field "error", and the status of [StatusOf].
func NewHandler(models *serve.Repository, o Options) http.Handler {
	o = o.Complete()
	// A body of unknown size needs room for one byte more, to see its end.
	h := &handler{models: models, o: o, bodies: bodies.Bound{Most: o.MaxBody, All: o.Memory + 1}}
	routes := http.NewServeMux()
	get := func(path string, fn func(r *http.Request) (any, error)) {
		routes.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			v, err := fn(r)
			answer(w, r, v, err)
		})
	}
	server := func(*http.Request) (any, error) { return ServerMetadataOf(o), nil }
	get("GET /v2", server)
	get("GET /v2/{$}", server)
	get("GET /v2/health/live", func(*http.Request) (any, error) { return map[string]bool{"live": true}, nil })
	get("GET /v2/health/ready", func(*http.Request) (any, error) {
		return map[string]bool{"ready": true}, readiness(h.models, o.Control)
	})
	get("GET /v2/models/stats", h.stats)
	for _, model := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		get("GET "+model, h.metadata)
		get("GET "+model+"/ready", h.ready)
		get("GET "+model+"/config", h.config)
		get("GET "+model+"/stats", h.stats)
		routes.HandleFunc("POST "+model+"/infer", h.observed(h.infer))
		routes.HandleFunc("POST "+model+"/classify", h.observed(h.classify))
	}
	if o.Control {
		scan := func(r *http.Request) error {
			if o.Scan == nil {
				return nil
			}
			return o.Scan(r.Context())
		}
		get("POST /v2/repository/index", func(r *http.Request) (any, error) {
			m, err := control(r)
			if err == nil {
				err = scan(r)
			}
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(IndexOf(models), func(i ModelIndex) bool { return m.Ready && i.State != "READY" }), nil
		})
		get("POST /v2/repository/models/{model}/load", func(r *http.Request) (any, error) {
			m, err := control(r)
			if err == nil && len(m.Parameters) > 0 {
				err = refuse("a model is loaded as the server has it: send neither a configuration nor files")
			}
			if err == nil {
				err = scan(r)
			}
			if err != nil {
				return nil, err
			}
			return struct{}{}, models.Load(r.Context(), r.PathValue("model"), "")
		})
		get("POST /v2/repository/models/{model}/unload", func(r *http.Request) (any, error) {
			return struct{}{}, models.Unload(r.Context(), r.PathValue("model"), "")
		})
	}
	routes.HandleFunc("/v2/", h.unknown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// ServeMux would redirect a path with "..", "." or "//", and clients do not follow.
		if at := r.URL.EscapedPath(); strings.TrimSuffix(at, "/") != path.Clean(at) {
			h.unknown(w, r)
			return
		}
		routes.ServeHTTP(w, r)
	})
}

// controlMessage is the body of a request to list or load models.
type controlMessage struct {
	Ready      bool           `json:"ready"` // only models that are ready
	Parameters map[string]any `json:"parameters"`
}

func control(r *http.Request) (m controlMessage, err error) {
	text, err := io.ReadAll(io.LimitReader(r.Body, 64<<10)) // a longer one is no JSON then
	if err == nil && len(bytes.TrimSpace(text)) > 0 {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		err = refuse("the body is no JSON of the protocol: %v", err)
	}
	return m, err
}

// unknown says why a path is missing, in the form that clients of the protocol read.
func (h *handler) unknown(w http.ResponseWriter, r *http.Request) {
	status, text := http.StatusNotFound, "there is no such path with this method"
	at := strings.TrimPrefix(r.URL.Path, "/v2/")
	switch {
	case strings.HasPrefix(at, "systemsharedmemory"), strings.HasPrefix(at, "cudasharedmemory"):
		status, text = http.StatusNotImplemented, "the server opens no memory of its clients: send tensors in the request"
	case strings.Contains(at, "trace/setting"), strings.HasPrefix(at, "logging"):
		status, text = http.StatusNotImplemented, "the server has no settings of traces and of its log"
	case strings.HasPrefix(at, "repository/") && !h.o.Control:
		text = "models are not listed, loaded or unloaded on this address"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf("%s %s: %s", r.Method, r.URL.Path, text)}) // an error means that the client is gone
}

type handler struct {
	models *serve.Repository
	o      Options
	bodies bodies.Bound
}

// answer writes a value as JSON, or an error.
func answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		v = map[string]string{"error": err.Error()}
	}
	text, failed := json.Marshal(v)
	if err = errors.Join(err, failed); err != nil {
		status := StatusOf(r.Context(), err)
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(status)
	}
	_, _ = w.Write(text) // an error means that the client is gone
}

// reply is the body of an answer.
type reply struct {
	parts   [][]byte
	length  int    // of the JSON, if binary data stands behind it
	version string // of the model that has answered
}

// observed reads the body of a request, computes the answer, writes it, and tells of it.
func (h *handler) observed(compute func(r *http.Request, b *bodies.Body) (reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		o := Observation{Model: r.PathValue("model"), Version: r.PathValue("version")}
		if trace := r.Header.Get("Traceparent"); trace != "" { // W3C's trace context
			w.Header().Set("Traceparent", trace)
		}
		var out reply
		body, err := h.bodies.Read(w, r)
		if err == nil {
			out, err = h.computed(r, body, compute)
		}
		if err == nil {
			o.Version = out.version
		}
		o.Status, o.Took, o.Err = StatusOf(r.Context(), err), time.Since(began), err
		if h.o.Observe != nil {
			defer h.o.Observe(o)
		}
		if err != nil {
			answer(w, r, nil, err)
			return
		}
		out.write(w)
	}
}

// computed gives the body back, also after a panic.
func (h *handler) computed(r *http.Request, b *bodies.Body, compute func(r *http.Request, b *bodies.Body) (reply, error)) (reply, error) {
	defer h.bodies.Give(b)
	return compute(r, b)
}

func (out reply) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if out.length > 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set(lengthHeader, strconv.Itoa(out.length))
	}
	total := 0
	for _, p := range out.parts {
		total += len(p)
	}
	w.Header().Set("Content-Length", strconv.Itoa(total))
	for _, p := range out.parts {
		if _, err := w.Write(p); err != nil {
			return // the client is gone
		}
	}
}

func (h *handler) infer(r *http.Request, b *bodies.Body) (out reply, err error) {
	request, binary, err := parse(b.Bytes, r.Header.Get(lengthHeader), func(n int64) error {
		err := h.bodies.More(b, n)
		if errors.Is(err, bodies.ErrTooLarge) {
			err = fmt.Errorf("%w; binary data take less", err)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	request.Model, request.Version = r.PathValue("model"), r.PathValue("version")
	got, err := Infer(r.Context(), h.models, request)
	if err != nil {
		return out, err
	}
	out.version = got.Version
	out.parts, out.length, err = format(got, request, binary)
	return out, err
}

// classify is for curl: its body is one encoded picture, or a form with one.
func (h *handler) classify(r *http.Request, b *bodies.Body) (out reply, err error) {
	picture, err := h.picture(r, b)
	if err != nil {
		return out, err
	}
	top := 5
	if text := r.URL.Query().Get("top"); text != "" {
		if top, err = strconv.Atoi(text); err != nil || top < 1 {
			return out, refuse("top is %.20q; want a number of classes", text)
		}
	}
	var labels []string
	var got *Response
	err = h.models.Use(r.Context(), r.PathValue("model"), r.PathValue("version"), func(m *serve.Model) (err error) {
		in, out := m.Inputs(), m.Outputs()
		if len(in) != 1 || in[0].Decoder == nil {
			return refuse("the model %q does not take one picture", m.Name)
		}
		labels = m.Labels
		got, err = answerOf(r.Context(), m, Request{
			Model:   m.Name,
			Inputs:  []Tensor{{Name: in[0].Name, DataType: bytesType, Shape: []int64{1}, Bytes: [][]byte{picture}}},
			Outputs: []Output{{Name: out[0].Name}},
		})
		return err
	})
	if err != nil {
		return out, err
	}
	order, scores, err := ranking(got.Outputs[0], 0)
	if err != nil {
		return out, err
	}
	for i, v := range scores {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return out, fmt.Errorf("output %q: the model has given class %d the score %v, which %w: ask for binary data with infer", got.Outputs[0].Name, i, v, errNotFinite)
		}
	}
	type class struct {
		Class string  `json:"class"`
		Score float64 `json:"score"`
	}
	var list []class
	for _, i := range order[:min(top, len(order))] {
		name := strconv.Itoa(i)
		if i < len(labels) {
			name = labels[i]
		}
		list = append(list, class{name, scores[i]})
	}
	text, err := json.Marshal(list)
	return reply{parts: [][]byte{text}, version: got.Version}, err
}

// picture returns the body, or the only file of a body that is a form.
func (h *handler) picture(r *http.Request, b *bodies.Body) (file []byte, err error) {
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return b.Bytes, nil
	}
	if err := h.bodies.More(b, int64(len(b.Bytes))); err != nil {
		return nil, err
	}
	const want = "want a form with one file, as curl -F file=@cat.jpg sends it"
	form := multipart.NewReader(bytes.NewReader(b.Bytes), parameters["boundary"])
	files := 0
	for {
		part, err := form.NextRawPart()
		if err == io.EOF && files == 1 {
			return file, nil
		} else if err == io.EOF {
			return nil, refuse("the form has %d files; %s", files, want)
		} else if err != nil {
			return nil, refuse("the body is not the form that its Content-Type says; %s: %v", want, err)
		}
		if part.FileName() == "" {
			continue
		}
		if files++; files > 1 {
			continue
		}
		if file, err = io.ReadAll(part); err != nil {
			return nil, refuse("the form ends early; %s: %v", want, err)
		}
	}
}

func (h *handler) metadata(r *http.Request) (any, error) {
	return MetadataOf(r.Context(), h.models, r.PathValue("model"), r.PathValue("version"))
}

func (h *handler) ready(r *http.Request) (any, error) {
	err := h.models.Ready(r.PathValue("model"), r.PathValue("version"))
	return map[string]any{"name": strings.Clone(r.PathValue("model")), "ready": err == nil}, err
}

func (h *handler) config(r *http.Request) (any, error) {
	return ConfigOf(r.Context(), h.models, r.PathValue("model"), r.PathValue("version"))
}

func (h *handler) stats(r *http.Request) (any, error) {
	list, err := StatisticsOf(h.models, r.PathValue("model"), r.PathValue("version"))
	return map[string]any{"model_stats": list}, err
}
