package oip

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Metrics answers Prometheus with the counts of models and of their requests, of the device's
// memory, and of the process. Their names begin with streamtorch_, go_ and process_.
type Metrics struct {
	handler  http.Handler
	models   *serve.Repository
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

// NewMetrics returns the metrics of models on a device. Give [Metrics.Observe] to
// [Options].Observe of each handler of the models.
func NewMetrics(models *serve.Repository, device cgotorch.Device) *Metrics {
	m := &Metrics{
		models: models,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "streamtorch_requests_total", Help: "Inference requests that have ended, by HTTP status."},
			[]string{"model", "version", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "streamtorch_request_seconds", Help: "Time from the request's header to its answer, of requests with the status 200.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"model"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.requests, m.took, &collector{models, device}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// ServeHTTP writes the metrics in Prometheus's format.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// Observe counts a request. A model that is not known has neither name nor version here: clients
// choose both.
func (m *Metrics) Observe(o Observation) {
	model, version := o.Model, o.Version
	if o.Err != nil && !slices.ContainsFunc(m.models.List(), func(i serve.ModelInfo) bool {
		return i.Name == model && (i.Version == version || version == "")
	}) {
		model, version = "", ""
	}
	m.requests.WithLabelValues(model, version, strconv.Itoa(o.Status)).Inc()
	if o.Status == http.StatusOK {
		m.took.WithLabelValues(model).Observe(o.Took.Seconds())
	}
}

// collector tells what the models count themselves.
type collector struct {
	models *serve.Repository
	device cgotorch.Device
}

func describes(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("streamtorch_"+name, help, labels, nil)
}

var (
	descReady    = describes("model_ready", "1 if the model is ready.", "model", "version")
	descBytes    = describes("model_bytes", "Bytes of a loaded model: weights, inputs and graphs.", "model", "version")
	descEntries  = describes("entries_total", "Entries that were computed since the model was loaded.", "model", "version")
	descBatches  = describes("batches_total", "Batches that were computed, by their number of entries.", "model", "version", "entries")
	descQueue    = describes("queue_seconds_total", "Time that computed requests waited for their batch.", "model", "version")
	descCompute  = describes("compute_seconds_total", "Time of computed requests from their batch to their answer.", "model", "version")
	descWaiting  = describes("waiting_entries", "Entries that wait.", "model", "version")
	descRefused  = describes("refused_total", "Requests for which the queue was full.", "model", "version")
	descDropped  = describes("dropped_total", "Requests that ended while they waited.", "model", "version")
	descFailed   = describes("failed_total", "Requests for which the model or the device failed; broken pictures do not count.", "model", "version")
	descDevice   = describes("device_bytes", "Bytes that LibTorch's allocator has given out on the device.", "device")
	descReserved = describes("device_reserved_bytes", "Bytes that LibTorch's allocator holds on the device.", "device")
)

func (c *collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	if memory, err := c.device.Memory(); err == nil {
		gauge(descDevice, float64(memory.Allocated), c.device.String())
		gauge(descReserved, float64(memory.Reserved), c.device.String())
	}
	for _, m := range c.models.List() {
		ready := 0.0
		if m.Ready {
			ready = 1
		}
		gauge(descReady, ready, m.Name, m.Version)
		if !m.Loaded {
			continue
		}
		s := m.Stats
		gauge(descBytes, float64(m.Bytes), m.Name, m.Version)
		gauge(descWaiting, float64(s.Waiting), m.Name, m.Version)
		counter(descEntries, float64(s.Entries), m.Name, m.Version)
		counter(descQueue, s.Queued.Seconds(), m.Name, m.Version)
		counter(descCompute, (s.Took - s.Queued).Seconds(), m.Name, m.Version)
		counter(descRefused, float64(s.Refused), m.Name, m.Version)
		counter(descDropped, float64(s.Dropped), m.Name, m.Version)
		counter(descFailed, float64(s.Failed), m.Name, m.Version)
		for entries, n := range s.Batches {
			counter(descBatches, float64(n), m.Name, m.Version, strconv.Itoa(entries))
		}
	}
}
