package main

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

// metrics counts requests for Prometheus and for the page.
type metrics struct {
	models   *serve.Repository
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec

	mu     sync.Mutex
	recent [4096]sample // a ring
	next   int
}

// sample is a request that has ended.
type sample struct {
	at   time.Time
	took time.Duration
	ok   bool
}

func newMetrics(models *serve.Repository, device cgotorch.Device) *metrics {
	m := &metrics{
		models:   models,
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "streamtorch_requests_total", Help: "Inference requests that have ended, by HTTP status."},
			[]string{"model", "version", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "streamtorch_request_seconds", Help: "Time from the request's header to its answer, of requests with the status 200.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"model"}),
	}
	m.registry.MustRegister(m.requests, m.took, &modelCollector{models, device}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// observe counts a request. A model that is not known has neither name nor version here: clients
// choose both.
func (m *metrics) observe(o oip.Observation) {
	if o.Status == http.StatusInternalServerError {
		slog.Error(o.Err.Error(), "cause", errors.Unwrap(o.Err))
	}
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent[m.next%len(m.recent)] = sample{time.Now(), o.Took, o.Status == http.StatusOK}
	m.next++
}

// last returns the requests of the last seconds, at most 4,096 of them.
func (m *metrics) last(within time.Duration) (list []sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := time.Now().Add(-within)
	for _, s := range m.recent {
		if s.at.After(since) {
			list = append(list, s)
		}
	}
	return list
}

// modelCollector tells what the models count themselves.
type modelCollector struct {
	models *serve.Repository
	device cgotorch.Device
}

func description(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("streamtorch_"+name, help, labels, nil)
}

var (
	descReady    = description("model_ready", "1 if the model is ready.", "model", "version")
	descBytes    = description("model_bytes", "Bytes of a loaded model: weights, inputs and graphs.", "model", "version")
	descEntries  = description("entries_total", "Entries that were computed since the model was loaded.", "model", "version")
	descBatches  = description("batches_total", "Batches that were computed, by their number of entries.", "model", "version", "entries")
	descQueue    = description("queue_seconds_total", "Time that computed requests waited for their batch.", "model", "version")
	descCompute  = description("compute_seconds_total", "Time of computed requests from their batch to their answer.", "model", "version")
	descWaiting  = description("waiting_entries", "Entries that wait.", "model", "version")
	descRefused  = description("refused_total", "Requests for which the queue was full.", "model", "version")
	descDropped  = description("dropped_total", "Requests that ended while they waited.", "model", "version")
	descFailed   = description("failed_total", "Requests for which the model or the device failed.", "model", "version")
	descDevice   = description("device_bytes", "Bytes that LibTorch's allocator has given out on the device.", "device")
	descReserved = description("device_reserved_bytes", "Bytes that LibTorch's allocator holds on the device.", "device")
)

func (c *modelCollector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

func (c *modelCollector) Collect(to chan<- prometheus.Metric) {
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
