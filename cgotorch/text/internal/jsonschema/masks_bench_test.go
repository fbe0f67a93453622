package jsonschema

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/schematest"
)

// BenchmarkAnswer_Fill fills masks of a vocabulary of 128,256 tokens, for answers to random
// schemas. first is the first answer of each schema. later is another one behind 20 of them.
func BenchmarkAnswer_Fill(b *testing.B) {
	v := large(b)
	for _, kind := range []string{"first", "later"} {
		b.Run("answer="+kind, func(b *testing.B) {
			var times []time.Duration
			for seed := uint64(0); len(times) < max(b.N, 2000); seed++ {
				r := rand.New(rand.NewPCG(5, seed))
				g, err := Compile([]byte(schematest.Random(r)))
				if err != nil {
					continue
				}
				m := NewMasks(g, v)
				if kind == "later" {
					for n := range uint64(20) {
						fillTimes(rand.New(rand.NewPCG(8+n, seed)), m, nil)
					}
				}
				times = fillTimes(rand.New(rand.NewPCG(7, seed)), m, times)
			}
			slices.Sort(times)
			sum := time.Duration(0)
			for _, t := range times {
				sum += t
			}
			us := func(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1e3 }
			b.ReportMetric(us(sum)/float64(len(times)), "µs/token")
			b.ReportMetric(us(times[len(times)/2]), "µs-median")
			b.ReportMetric(us(times[len(times)*99/100]), "µs-p99")
			b.ReportMetric(us(times[len(times)-1]), "µs-most")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fillTimes writes an answer, and appends the time of each mask.
func fillTimes(r *rand.Rand, m *Masks, times []time.Duration) []time.Duration {
	answer, tokens, allowed := m.NewAnswer([]int64{end}, false), []int64{}, make([]bool, len(m.v.bytes))
	for len(tokens) < 300 {
		clear(allowed)
		began := time.Now()
		answer.Fill(tokens, allowed)
		times = append(times, time.Since(began))
		id := int64(r.IntN(len(allowed)))
		for !allowed[id] {
			id = (id + 1) % int64(len(allowed))
		}
		if id == end {
			break
		}
		tokens = append(tokens, id)
	}
	return times
}
