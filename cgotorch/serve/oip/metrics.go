package oip

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Metrics answers Prometheus with the counts of models and of their requests, and the memory of
// the device. Their names begin with streamtorch_. Its methods may be called from any goroutine.
type Metrics struct {
	models *serve.Repository
	device cgotorch.Device

	mu       sync.Mutex
	requests map[series]int64
	took     map[string]*histogram // by model
}

// series are the labels of a count of requests.
type series struct{ model, version, status string }

// histogram counts times up to each of the bounds.
type histogram struct {
	buckets [len(bounds)]int64
	count   int64
	sum     time.Duration
}

// bounds are seconds.
var bounds = [...]float64{0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}

// NewMetrics returns the metrics of models on a device. Give [Metrics.Observe] to
// [Options].Observe of each handler of the models.
func NewMetrics(models *serve.Repository, device cgotorch.Device) *Metrics {
	return &Metrics{models: models, device: device, requests: map[series]int64{}, took: map[string]*histogram{}}
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
		h = new(histogram)
		m.took[of.model] = h
	}
	h.count++
	h.sum += o.Took
	for i, bound := range bounds {
		if o.Took.Seconds() <= bound {
			h.buckets[i]++
		}
	}
}

// ServeHTTP writes the metrics in Prometheus's text format.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var page page
	m.write(&page)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // an error means that the client is gone
}

func (m *Metrics) write(p *page) {
	m.mu.Lock()
	p.begin("requests_total", "counter", "Inference requests that have ended, by HTTP status.")
	order := func(a, b series) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.version, b.version), cmp.Compare(a.status, b.status))
	}
	for _, s := range slices.SortedFunc(maps.Keys(m.requests), order) {
		p.line("", float64(m.requests[s]), "model", s.model, "status", s.status, "version", s.version)
	}
	p.begin("request_seconds", "histogram", "Time from the request's header to its answer, of requests with the status 200.")
	for _, model := range slices.Sorted(maps.Keys(m.took)) {
		h := m.took[model]
		for i, bound := range bounds {
			p.line("_bucket", float64(h.buckets[i]), "model", model, "le", number(bound))
		}
		p.line("_bucket", float64(h.count), "model", model, "le", "+Inf")
		p.line("_sum", h.sum.Seconds(), "model", model)
		p.line("_count", float64(h.count), "model", model)
	}
	m.mu.Unlock()

	if memory, err := m.device.Memory(); err == nil {
		p.begin("device_bytes", "gauge", "Bytes that LibTorch's allocator has given out on the device.")
		p.line("", float64(memory.Allocated), "device", m.device.String())
		p.begin("device_reserved_bytes", "gauge", "Bytes that LibTorch's allocator holds on the device.")
		p.line("", float64(memory.Reserved), "device", m.device.String())
	}
	list := m.models.List()
	p.begin("model_ready", "gauge", "1 if the model is ready.")
	for _, i := range list {
		ready := 0.0
		if i.Ready {
			ready = 1
		}
		p.line("", ready, "model", i.Name, "version", i.Version)
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
		p.begin(f.name, f.kind, f.help)
		for _, i := range list {
			p.line("", f.value(i), "model", i.Name, "version", i.Version)
		}
	}
	p.begin("batches_total", "counter", "Batches that were computed, by their number of entries.")
	for _, i := range list {
		for _, entries := range slices.Sorted(maps.Keys(i.Stats.Batches)) {
			p.line("", float64(i.Stats.Batches[entries]), "entries", strconv.Itoa(entries), "model", i.Name, "version", i.Version)
		}
	}
}

// page is a text in Prometheus's format.
type page struct {
	bytes.Buffer
	name string // of the metric
}

func (p *page) begin(name, kind, help string) {
	p.name = "streamtorch_" + name
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", p.name, help, p.name, kind)
}

var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// line writes a value with its labels, which are names and values in turn.
func (p *page) line(suffix string, value float64, labels ...string) {
	p.WriteString(p.name + suffix)
	for i := 0; i < len(labels); i += 2 {
		fmt.Fprintf(p, `%c%s="%s"`, "{,"[min(i, 1)], labels[i], escaped.Replace(labels[i+1]))
	}
	fmt.Fprintf(p, "} %s\n", number(value))
}

func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
