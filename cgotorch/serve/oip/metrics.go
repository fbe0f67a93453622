package oip

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/metrics"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Metrics answers Prometheus with the counts of models and of their requests, and the memory of
// the device. Their names begin with streamtorch_. Its methods may be called from any goroutine.
type Metrics struct {
	models *serve.Repository
	device cgotorch.Device

	mu       sync.Mutex
	requests map[series]int64
	took     map[string]*metrics.Histogram // by model
}

// series are the labels of a count of requests.
type series struct{ model, version, status string }

// NewMetrics returns the metrics of models on a device. Give [Metrics.Observe] to
// [Options].Observe of each handler of the models.
func NewMetrics(models *serve.Repository, device cgotorch.Device) *Metrics {
	return &Metrics{models: models, device: device, requests: map[series]int64{}, took: map[string]*metrics.Histogram{}}
}

// Observe counts a request. A model that is not known has neither name nor version here: clients
// choose both.
func (m *Metrics) Observe(o Observation) {
	of := series{o.Model, o.Version, strconv.Itoa(o.Status)}
	if o.Err != nil && !slices.ContainsFunc(m.models.List(), func(i serve.ModelInfo) bool {
		return i.Name == of.model && (i.Version == of.version || of.version == "")
	}) {
		of.model, of.version = "", ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[of]++
	if o.Status != http.StatusOK {
		return
	}
	h := m.took[of.model]
	if h == nil {
		h = new(metrics.Histogram)
		m.took[of.model] = h
	}
	h.Add(o.Took)
}

// ServeHTTP writes the metrics in Prometheus's text format.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var page metrics.Page
	m.write(&page)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // an error means that the client is gone
}

func (m *Metrics) write(p *metrics.Page) {
	m.mu.Lock()
	p.Begin("requests_total", "counter", "Inference requests that have ended, by HTTP status.")
	order := func(a, b series) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.version, b.version), cmp.Compare(a.status, b.status))
	}
	for _, s := range slices.SortedFunc(maps.Keys(m.requests), order) {
		p.Line(float64(m.requests[s]), "model", s.model, "status", s.status, "version", s.version)
	}
	p.Begin("request_seconds", "histogram", "Time from the request's header to its answer, of requests with the status 200.")
	for _, model := range slices.Sorted(maps.Keys(m.took)) {
		p.Histogram(m.took[model], "model", model)
	}
	m.mu.Unlock()

	if memory, err := m.device.Memory(); err == nil {
		p.Begin("device_bytes", "gauge", "Bytes that LibTorch's allocator has given out on the device.")
		p.Line(float64(memory.Allocated), "device", m.device.String())
		p.Begin("device_reserved_bytes", "gauge", "Bytes that LibTorch's allocator holds on the device.")
		p.Line(float64(memory.Reserved), "device", m.device.String())
	}
	list := m.models.List()
	p.Begin("model_ready", "gauge", "1 if the model is ready.")
	for _, i := range list {
		ready := 0.0
		if i.Ready {
			ready = 1
		}
		p.Line(ready, "model", i.Name, "version", i.Version)
	}
	list = slices.DeleteFunc(list, func(i serve.ModelInfo) bool { return !i.Loaded })
	for _, f := range []struct {
		name, kind, help string
		value            func(i serve.ModelInfo) float64
	}{
		{"model_bytes", "gauge", "Bytes of a loaded model: weights, inputs and graphs.", func(i serve.ModelInfo) float64 { return float64(i.Bytes) }},
		{"waiting_entries", "gauge", "Entries that wait.", func(i serve.ModelInfo) float64 { return float64(i.Stats.Waiting) }},
		{"entries_total", "counter", "Entries that were computed since the model was loaded.", func(i serve.ModelInfo) float64 { return float64(i.Stats.Entries) }},
		{"queue_seconds_total", "counter", "Time that computed requests waited for their batch.", func(i serve.ModelInfo) float64 { return i.Stats.Queued.Seconds() }},
		{"compute_seconds_total", "counter", "Time of computed requests from their batch to their answer.", func(i serve.ModelInfo) float64 { return (i.Stats.Took - i.Stats.Queued).Seconds() }},
		{"refused_total", "counter", "Requests for which the queue was full.", func(i serve.ModelInfo) float64 { return float64(i.Stats.Refused) }},
		{"dropped_total", "counter", "Requests that ended while they waited.", func(i serve.ModelInfo) float64 { return float64(i.Stats.Dropped) }},
		{"failed_total", "counter", "Requests for which the model or the device failed; broken pictures do not count.", func(i serve.ModelInfo) float64 { return float64(i.Stats.Failed) }},
	} {
		p.Begin(f.name, f.kind, f.help)
		for _, i := range list {
			p.Line(f.value(i), "model", i.Name, "version", i.Version)
		}
	}
	p.Begin("batches_total", "counter", "Batches that were computed, by their number of entries.")
	for _, i := range list {
		for _, entries := range slices.Sorted(maps.Keys(i.Stats.Batches)) {
			p.Line(float64(i.Stats.Batches[entries]), "entries", strconv.Itoa(entries), "model", i.Name, "version", i.Version)
		}
	}
}
