package openai_test

import (
	"net/http"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Each request of a load is answered. The log has how many a second there were: as many as the
// server takes from 16 callers at a time.
func TestLoad(t *testing.T) {
	url := "http://" + at(t, "SERVER")
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "Where do streams end?"}], "max_tokens": 8}`},
		{"/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "Where do streams end?"}], "max_tokens": 8, "stream": true}`},
		{"/v1/embeddings", `{"model": "vectors", "input": ["a b", "c d"]}`},
		{"/v1/rerank", `{"model": "ranks", "query": "a", "documents": ["a b", "c d", "e"]}`},
	} {
		target := vegeta.Target{Method: "POST", URL: url + c.path, Body: []byte(c.body), Header: http.Header{"Content-Type": {"application/json"}}}
		attacker := vegeta.NewAttacker(vegeta.Workers(16), vegeta.MaxWorkers(16), vegeta.Timeout(30*time.Second))
		var m vegeta.Metrics
		for r := range attacker.Attack(vegeta.NewStaticTargeter(target), vegeta.ConstantPacer{}, time.Second, c.path) {
			m.Add(r)
		}
		m.Close()
		t.Logf("%s %.70s: %d requests, %.0f a second, half within %v, 99 of 100 within %v", c.path, c.body, m.Requests, m.Throughput, m.Latencies.P50, m.Latencies.P99)
		if m.Success != 1 {
			t.Errorf("%s: %v %v", c.path, m.StatusCodes, m.Errors)
		}
	}
}
