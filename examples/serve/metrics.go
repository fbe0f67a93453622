package main

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

// metrics counts requests for Prometheus and for the page.
type metrics struct {
	*oip.Metrics
	process *prometheus.Registry // of Go and of the process

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
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &metrics{Metrics: oip.NewMetrics(models, device), process: process}
}

// ServeHTTP writes the metrics of the models, and those of the process.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.Metrics.ServeHTTP(w, r)
	families, err := m.process.Gather()
	if err != nil {
		slog.Error("metrics of the process: " + err.Error())
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return // the client is gone
		}
	}
}

// observe counts a request, and logs one that the server has failed.
func (m *metrics) observe(o oip.Observation) {
	if o.Status == http.StatusInternalServerError {
		slog.Error(o.Err.Error(), "cause", errors.Unwrap(o.Err))
	}
	m.Observe(o)
	m.add(o.Took, o.Status)
}

// add keeps what the page shows of a request.
func (m *metrics) add(took time.Duration, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent[m.next%len(m.recent)] = sample{time.Now(), took, status == http.StatusOK}
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
