package main

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

// metrics counts requests for Prometheus and for the page.
type metrics struct {
	*oip.Metrics

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
	return &metrics{Metrics: oip.NewMetrics(models, device)}
}

// observe counts a request, and logs one that the server has failed.
func (m *metrics) observe(o oip.Observation) {
	if o.Status == http.StatusInternalServerError {
		slog.Error(o.Err.Error(), "cause", errors.Unwrap(o.Err))
	}
	m.Observe(o)
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
