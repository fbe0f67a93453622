package text_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// driven runs fn with a Batcher whose turns it makes, and with one whose steps take pieces of
// prompts with them. All pages must come back.
func driven(t *testing.T, m *text.Model, o text.BatcherOptions, early bool, fn func(b text.Driven)) {
	t.Helper()
	for _, beside := range []bool{false, true} {
		free := m.FreePages()
		b := must.Get(m.NewDriven(o, early))(t)
		if able := b.CapturePieces(beside); able || !beside {
			fn(b)
		}
		must.Do(t, b.Close())
		if now := m.FreePages(); now != free {
			t.Errorf("%d pages are free, want %d", now, free)
		}
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
// that goes on.
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
					b.Turn()
					if seat := first.Seat(); seat >= 0 {
						t.Errorf("early %v, turn %d: a request that has ended has seat %d", early, at, seat)
					}
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

// A prompt that goes on behind an answer shares the keys that were computed, and no others: not
// that of the answer's last token, nor those of a short sequence if it is long.
func TestBatcher_GoOn(t *testing.T) {
	for name := range configs {
		m := openServed(t, name, text.Options{Context: 128, CacheTokens: 600})
		o := text.GenerateOptions{Greedy: true, MaxTokens: 12, IgnoreEnd: true}
		for _, length := range []int{4, 5, 6, 20, 21, 36, 40, 52} {
			driven(t, m, text.BatcherOptions{MaxBatch: 2, Piece: 16}, false, func(b text.Driven) {
				said := randomTokens(rand.New(rand.NewPCG(uint64(length), 2)), length)
				for range 3 {
					r := must.Get(b.Ask(t.Context(), said, o))(t)
					turns(t, b)
					tokens, want := must.Get(r.Tokens())(t), logsOf(t, m, said, idsOf(t, r), o)
					for i, token := range tokens {
						if !torchtest.Device().IsCUDA() && math.Abs(token.LogProb-want[i]) > 1e-4 {
							t.Errorf("%s, %d tokens: token %d has the log probability %v, want %v", name, len(said), i, token.LogProb, want[i])
							break
						}
					}
					said = append(slices.Concat(said, idsOf(t, r)), 9, 8)
				}
			})
		}
	}
}

// A seat that another request was moved to has that one's random numbers.
func TestBatcher_SeedOfSeat(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 600})
	o := func(seed uint64, tokens int) text.GenerateOptions {
		return text.GenerateOptions{Temperature: 1.5, TopK: -1, Seed: seed, MaxTokens: tokens, IgnoreEnd: true}
	}
	driven(t, m, text.BatcherOptions{MaxBatch: 2}, false, func(b text.Driven) {
		first := must.Get(b.Ask(t.Context(), []int64{1, 2}, o(1, 3)))(t)
		second := must.Get(b.Ask(t.Context(), []int64{3, 4}, o(2, 9)))(t)
		for range 6 {
			b.Turn()
		}
		if first.Seat() != -1 || second.Seat() != 0 {
			t.Fatalf("the seats are %d and %d, want none and 0", first.Seat(), second.Seat())
		}
		turns(t, b)
		third := must.Get(b.Ask(t.Context(), []int64{1, 2}, o(1, 20)))(t)
		turns(t, b)
		if got, want := idsOf(t, third), wantOf(t, m, []int64{1, 2}, o(1, 20)); !torchtest.Device().IsCUDA() && !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// A request that comes back to the seat of another one has its own token and its own mask there.
func TestBatcher_ResumeInOtherSeat(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 600})
	only := func(id int64) func([]int64, []bool) { return func(_ []int64, allowed []bool) { allowed[id] = true } }
	driven(t, m, text.BatcherOptions{MaxBatch: 2}, false, func(b text.Driven) {
		prompt, o := []int64{3, 4, 5}, text.GenerateOptions{Greedy: true, MaxTokens: 20, IgnoreEnd: true}
		first := must.Get(b.Ask(t.Context(), []int64{1, 2}, text.GenerateOptions{MaxTokens: 3, Mask: only(7)}))(t)
		second := must.Get(b.Ask(t.Context(), prompt, o))(t)
		b.Turn()
		for first.Seat() >= 0 {
			b.Turn()
		}
		if second.Seat() != 1 {
			t.Fatalf("the second request has seat %d, want 1", second.Seat())
		}
		second.Stay()
		must.Get(b.Ask(t.Context(), prompt, text.GenerateOptions{MaxTokens: 9, Mask: only(11)}))(t)
		b.Turn()
		if second.Seat() != 0 || b.Stats().Preempted != 1 {
			t.Fatalf("the second request has seat %d, and %d gave their pages up, want 0 and 1", second.Seat(), b.Stats().Preempted)
		}
		turns(t, b)
		if got, want := idsOf(t, second), wantOf(t, m, prompt, o); !torchtest.Device().IsCUDA() && !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// The queue's bound counts requests that have not begun. One that has given its pages up is in.
func TestBatcher_QueueOfPreempted(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 600})
	driven(t, m, text.BatcherOptions{MaxBatch: 1, Queue: 1}, false, func(b text.Driven) {
		o := text.GenerateOptions{Greedy: true, MaxTokens: 5, IgnoreEnd: true}
		first := must.Get(b.Ask(t.Context(), []int64{1, 2}, o))(t)
		b.Turn()
		b.Turn()
		first.GiveUp(b)
		second := must.Get(b.Ask(t.Context(), []int64{3, 4}, o))(t)
		if _, err := b.Ask(t.Context(), []int64{5, 6}, o); !errors.Is(err, serve.ErrQueueFull) || b.Stats().Waiting != 2 {
			t.Errorf("a third request: got %v with %d waiting, want ErrQueueFull with 2", err, b.Stats().Waiting)
		}
		turns(t, b)
		for i, r := range []*text.DrivenRequest{first, second} {
			if got := idsOf(t, r); len(got) != 5 {
				t.Errorf("request %d has %d tokens, want 5", i, len(got))
			}
		}
	})
}
