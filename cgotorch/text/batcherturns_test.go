package text_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// driven runs fn with a Batcher whose turns it makes. All pages must come back.
func driven(t *testing.T, m *text.Model, o text.BatcherOptions, early bool, fn func(b text.Driven)) {
	t.Helper()
	free := m.FreePages()
	b := must.Get(m.NewDriven(o, early))(t)
	fn(b)
	must.Do(t, b.Close())
	if now := m.FreePages(); now != free {
		t.Errorf("%d pages are free, want %d", now, free)
	}
}

// idsOf returns the tokens of a request so far.
func idsOf(t *testing.T, r *text.DrivenRequest) (ids []int64) {
	t.Helper()
	tokens := must.Get(r.Tokens())(t)
	for _, token := range tokens {
		ids = append(ids, token.ID)
	}
	return ids
}

// wantOf returns a conversation's answer.
func wantOf(t *testing.T, m *text.Model, prompt []int64, o text.GenerateOptions) []int64 {
	t.Helper()
	c := m.NewConversation()
	defer c.Close()
	want, _ := tokensOf(t, c, prompt, o)
	return want
}

// turns makes turns until nothing is left to do.
func turns(t *testing.T, b text.Driven) {
	t.Helper()
	for range 1000 {
		if !b.Turn() {
			return
		}
	}
	t.Fatal("1,000 turns, and there is more to do")
}

// A request may give its pages up before each of its tokens. Its answer is the same, beside one
// that
// goes on.
func TestBatcher_PreemptEachToken(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			m := openServed(t, name, text.Options{Context: 128, CacheTokens: 600})
			r := rand.New(rand.NewPCG(15, 16))
			prompt, other := randomTokens(r, 40), randomTokens(r, 20)
			o := text.GenerateOptions{Temperature: 1, TopK: -1, FrequencyPenalty: 0.2, Bias: map[int64]float64{4: 2}, Seed: 3, MaxTokens: 20, IgnoreEnd: true}
			want, wantOther := wantOf(t, m, prompt, o), wantOf(t, m, other, text.GenerateOptions{MaxTokens: 30})
			for _, early := range []bool{false, true} {
				for at := range 20 {
					driven(t, m, text.BatcherOptions{MaxBatch: 3}, early, func(b text.Driven) {
						first := must.Get(b.Ask(t.Context(), prompt, o))(t)
						second := must.Get(b.Ask(t.Context(), other, text.GenerateOptions{MaxTokens: 30}))(t)
						for range 1000 {
							if len(idsOf(t, first)) < at {
								b.Turn()
							}
						}
						first.Stay()
						turns(t, b)
						if got := idsOf(t, first); !torchtest.Device().IsCUDA() && !slices.Equal(got, want) || len(got) != len(want) {
							t.Errorf("early %v, token %d: got %v, want %v", early, at, got, want)
						}
						if got := idsOf(t, second); !torchtest.Device().IsCUDA() && !slices.Equal(got, wantOther) {
							t.Errorf("early %v, token %d: the other one: got %v, want %v", early, at, got, wantOther)
						}
						if s := b.Stats(); at > 0 && at < 18 && s.Preempted != 1 {
							t.Errorf("early %v, token %d: %d requests gave their pages up, want 1", early, at, s.Preempted)
						}
					})
				}
			}
		})
	}
}

// A request may end before each of its tokens, whether its caller leaves or its context ends. The
// answer beside it is not changed, nor that of the next request with the same prompt.
func TestBatcher_LeaveEachToken(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			m := openServed(t, name, text.Options{Context: 128, CacheTokens: 600})
			r := rand.New(rand.NewPCG(17, 18))
			prompt, other := randomTokens(r, 40), randomTokens(r, 20)
			o := text.GenerateOptions{Temperature: 1, TopK: -1, RepetitionPenalty: 1.2, Bias: map[int64]float64{4: 2}, Seed: 3, MaxTokens: 20, IgnoreEnd: true}
			plain := text.GenerateOptions{MaxTokens: 30, Greedy: true, IgnoreEnd: true}
			want, wantOther := wantOf(t, m, prompt, o), wantOf(t, m, other, plain)
			for made := range 40 {
				early, cancels, at := made%2 == 1, made/2%2 == 1, made/4*2
				driven(t, m, text.BatcherOptions{MaxBatch: 3, Piece: 16}, early, func(b text.Driven) {
					ctx, cancel := context.WithCancel(t.Context())
					second := must.Get(b.Ask(t.Context(), other, plain))(t)
					first := must.Get(b.Ask(ctx, prompt, o))(t)
					for range at {
						b.Turn()
					}
					if cancels {
						cancel()
					} else {
						first.Leave()
					}
					third := must.Get(b.Ask(t.Context(), prompt, o))(t)
					turns(t, b)
					cancel()
					if got := idsOf(t, third); !torchtest.Device().IsCUDA() && !slices.Equal(got, want) || len(got) != len(want) {
						t.Errorf("early %v, turn %d: got %v, want %v", early, at, got, want)
					}
					if got := idsOf(t, second); !torchtest.Device().IsCUDA() && !slices.Equal(got, wantOther) || len(got) != len(wantOther) {
						t.Errorf("early %v, turn %d: the other one: got %v, want %v", early, at, got, wantOther)
					}
				})
			}
		})
	}
}
