package openai

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch/internal/metrics"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// ServeMetrics answers Prometheus with the counts of requests, of Batchers and of Encoders. Their
// names begin with streamtorch_text_.
func (h *Handler) ServeMetrics(w http.ResponseWriter, _ *http.Request) {
	var p metrics.Page
	h.write(&p)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(p.Bytes()) // an error means that the client is gone
}

func (h *Handler) write(p *metrics.Page) {
	order := func(a, b series) int {
		return cmp.Or(cmp.Compare(a.endpoint, b.endpoint), cmp.Compare(a.model, b.model), cmp.Compare(a.status, b.status))
	}
	h.mu.Lock()
	p.Begin("text_requests_total", "counter", "Requests for texts that have ended, by HTTP status.")
	for _, s := range slices.SortedFunc(maps.Keys(h.requests), order) {
		p.Line(float64(h.requests[s]), "endpoint", s.endpoint, "model", s.model, "status", strconv.Itoa(s.status))
	}
	p.Begin("text_request_seconds", "histogram", "Time from the request's header to the end of its answer, of requests with the status 200.")
	for _, s := range slices.SortedFunc(maps.Keys(h.took), order) {
		p.Histogram(h.took[s], "endpoint", s.endpoint, "model", s.model)
	}
	p.Begin("text_requests_under_way", "gauge", "Requests for texts that have begun and not ended.")
	p.Line(float64(h.under), "interface", "openai")
	var batchers []named[text.BatcherStats]
	var encoders []named[text.EncoderStats]
	for _, name := range slices.Sorted(maps.Keys(h.models)) {
		if s := h.models[name]; s.Batcher != nil {
			batchers = append(batchers, named[text.BatcherStats]{name, s.Batcher.Stats()})
		} else {
			encoders = append(encoders, named[text.EncoderStats]{name, s.Encoder.Stats()})
		}
	}
	h.mu.Unlock()
	writeStats(p, batchers, []metric[text.BatcherStats]{
		{"waiting", "gauge", "Answers that wait for their turn.", func(s *text.BatcherStats) float64 { return float64(s.Waiting) }},
		{"running", "gauge", "Answers that are computed.", func(s *text.BatcherStats) float64 { return float64(s.Running) }},
		{"answers_total", "counter", "Answers that ended with their last token.", func(s *text.BatcherStats) float64 { return float64(s.Answers) }},
		{"refused_total", "counter", "Answers for which the queue had no room.", func(s *text.BatcherStats) float64 { return float64(s.Refused) }},
		{"preempted_total", "counter", "Times that an answer gave its pages up for a while.", func(s *text.BatcherStats) float64 { return float64(s.Preempted) }},
		{"tokens_total", "counter", "Tokens of answers.", func(s *text.BatcherStats) float64 { return float64(s.Tokens) }},
		{"prompt_tokens_total", "counter", "Tokens of prompts that were computed.", func(s *text.BatcherStats) float64 { return float64(s.Prompts) }},
		{"shared_tokens_total", "counter", "Tokens of prompts whose keys and values were there.", func(s *text.BatcherStats) float64 { return float64(s.Shared) }},
		{"tokens_per_second", "gauge", "Tokens of answers in a second, over the last 1,024 of them.", func(s *text.BatcherStats) float64 { return s.Rate }},
		{"pages", "gauge", "Pages of the cache.", func(s *text.BatcherStats) float64 { return float64(s.Pages) }},
		{"free_pages", "gauge", "Pages that nobody has.", func(s *text.BatcherStats) float64 { return float64(s.FreePages) }},
		{"prefix_pages", "gauge", "Pages that are kept for equal beginnings.", func(s *text.BatcherStats) float64 { return float64(s.PrefixPages) }},
		{"first_token_p50_seconds", "gauge", "Time to the first token that half of the last 1,024 took at most.", func(s *text.BatcherStats) float64 { return s.FirstTokenP50.Seconds() }},
		{"first_token_p99_seconds", "gauge", "Time to the first token that 99 of 100 took at most.", func(s *text.BatcherStats) float64 { return s.FirstTokenP99.Seconds() }},
		{"next_token_p50_seconds", "gauge", "Time between two tokens that half of the last 1,024 took at most.", func(s *text.BatcherStats) float64 { return s.NextTokenP50.Seconds() }},
		{"next_token_p99_seconds", "gauge", "Time between two tokens that 99 of 100 took at most.", func(s *text.BatcherStats) float64 { return s.NextTokenP99.Seconds() }},
	})
	writeStats(p, encoders, []metric[text.EncoderStats]{
		{"encoder_waiting", "gauge", "Calls that wait.", func(s *text.EncoderStats) float64 { return float64(s.Waiting) }},
		{"encoder_refused_total", "counter", "Calls for which the queue had no room.", func(s *text.EncoderStats) float64 { return float64(s.Refused) }},
		{"encoder_batches_total", "counter", "Batches that were computed.", func(s *text.EncoderStats) float64 { return float64(s.Batches) }},
		{"encoder_texts_total", "counter", "Texts and pairs that were computed.", func(s *text.EncoderStats) float64 { return float64(s.Texts) }},
		{"encoder_tokens_total", "counter", "Their tokens.", func(s *text.EncoderStats) float64 { return float64(s.Tokens) }},
	})
}

// named are the counts of a model.
type named[S any] struct {
	model string
	stats S
}

// metric is one of the counts.
type metric[S any] struct {
	name, kind, help string
	value            func(s *S) float64
}

func writeStats[S any](p *metrics.Page, models []named[S], list []metric[S]) {
	for _, m := range list {
		if len(models) == 0 {
			return
		}
		p.Begin("text_"+m.name, m.kind, m.help)
		for i := range models {
			p.Line(m.value(&models[i].stats), "model", models[i].model)
		}
	}
}
