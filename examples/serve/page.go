package main

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

//go:embed page.html
var page []byte

// addPage adds the page, and the numbers that it shows.
func addPage(routes *http.ServeMux, models *serve.Repository, m *metrics, t *texts) {
	routes.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
		_, _ = w.Write(page) // an error means that the client is gone
	})
	routes.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(statusOf(models, m, t))
	})
}

// numbers is what the page shows.
type numbers struct {
	PerSecond float64      `json:"per_second"` // requests that were answered, in the last 5 seconds
	P50       float64      `json:"p50_ms"`
	P99       float64      `json:"p99_ms"`
	Failed    int          `json:"failed"` // of the last 5 seconds
	Models    []model      `json:"models"`
	Texts     []textStatus `json:"texts"`
	Limits    string       `json:"limits"`
}

type model struct {
	Name      string  `json:"name"`
	Version   string  `json:"version"`
	State     string  `json:"state"`
	Reason    string  `json:"reason,omitempty"`
	MiB       float64 `json:"mib"`
	Entries   int64   `json:"entries"`
	MeanBatch float64 `json:"mean_batch"`
	Waiting   int     `json:"waiting"`
}

func statusOf(models *serve.Repository, m *metrics, t *texts) numbers {
	const within = 5 * time.Second
	n := numbers{Models: []model{}, Texts: t.status(), Limits: t.limited}
	var took []time.Duration
	samples := m.last(within)
	for _, s := range samples {
		if s.ok {
			took = append(took, s.took)
		} else {
			n.Failed++
		}
	}
	if len(took) > 0 {
		over := within
		if len(samples) == len(m.recent) { // the ring holds less than 5 seconds
			oldest := slices.MinFunc(samples, func(a, b sample) int { return a.at.Compare(b.at) })
			over = max(time.Since(oldest.at), time.Millisecond)
		}
		slices.Sort(took)
		n.PerSecond = float64(len(took)) / over.Seconds()
		n.P50 = float64(took[len(took)/2].Microseconds()) / 1000
		n.P99 = float64(took[len(took)*99/100].Microseconds()) / 1000
	}
	for _, info := range models.List() {
		e := model{Name: info.Name, Version: info.Version, State: "not loaded", MiB: float64(info.Bytes) / (1 << 20), Entries: info.Stats.Entries, Waiting: info.Stats.Waiting}
		if info.Err != nil {
			e.Reason = info.Err.Error()
		}
		switch {
		case info.Err != nil && !info.Ready:
			e.State = "failed"
		case info.Loading:
			e.State = "loading"
		case info.Loaded:
			e.State = "ready"
		case info.Ready:
			e.State = "ready, out of memory until it is used"
		}
		batches := int64(0)
		for _, count := range info.Stats.Batches {
			batches += count
		}
		if batches > 0 {
			e.MeanBatch = float64(info.Stats.Entries) / float64(batches)
		}
		n.Models = append(n.Models, e)
	}
	return n
}
