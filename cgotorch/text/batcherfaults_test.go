package text_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Work that fails ends the requests in seats, and nothing of it is left for the next ones.
func TestBatcher_FailedWork(t *testing.T) {
	for name := range configs {
		m := openServed(t, name, text.Options{Context: 128, CacheTokens: 800})
		r := rand.New(rand.NewPCG(31, 32))
		prompts, o := [][]int64{randomTokens(r, 40), randomTokens(r, 33), randomTokens(r, 7)}, text.GenerateOptions{MaxTokens: 20, Greedy: true, IgnoreEnd: true}
		for _, early := range []bool{false, true} {
			for at := range 5 {
				driven(t, m, text.BatcherOptions{MaxBatch: 4, Piece: 16}, early, func(b text.Driven) {
					var all []*text.DrivenRequest
					for range 2 {
						for _, prompt := range prompts {
							all = append(all, must.Get(b.Ask(t.Context(), prompt, o))(t))
						}
					}
					for range at {
						b.Turn()
					}
					mend := m.Break()
					b.Turn()
					mend()
					same := func() {
						if host, device, err := b.Positions(); err != nil || !slices.Equal(host, device) {
							t.Errorf("%s, early %v, turn %d: the positions are %v on the device, and %v on the host, %v", name, early, at, device, host, err)
						}
					}
					same()
					for i, r := range all[:3] {
						if _, err := r.Tokens(); err == nil && !torchtest.Device().IsCUDA() { // graphs that are captured do not fail
							t.Errorf("%s, early %v, turn %d: request %d does not tell the error", name, early, at, i)
						}
					}
					turns(t, b)
					for i, r := range all[4:] {
						want := wantOf(t, m, prompts[i+1], o)
						if got := idsOf(t, r); !torchtest.Device().IsCUDA() && !slices.Equal(got, want) || len(got) != len(want) {
							t.Errorf("%s, early %v, turn %d: request %d: got %v, want %v", name, early, at, i+4, got, want)
						}
					}
					same()
				})
			}
		}
	}
}

// Keys of old weights are no prefixes of requests that begin with new ones.
func TestBatcher_Trained(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 800})
	prompt, o := randomTokens(rand.New(rand.NewPCG(33, 34)), 70), text.GenerateOptions{MaxTokens: 20, Greedy: true, IgnoreEnd: true}
	for at := range 24 {
		driven(t, m, text.BatcherOptions{MaxBatch: 2, Piece: 16}, false, func(b text.Driven) {
			must.Get(b.Ask(t.Context(), prompt, o))(t)
			for range at {
				b.Turn()
			}
			must.Do(t, m.OwnStream().Do(func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				for _, w := range m.Weights {
					x.MulScalarInPlace(w.Tensor, 1.02)
				}
				return nil
			}))
			turns(t, b)
			r := must.Get(b.Ask(t.Context(), prompt, o))(t)
			turns(t, b)
			tokens := must.Get(r.Tokens())(t)
			c := m.NewConversation()
			want, logs := tokensOf(t, c, prompt, o)
			must.Do(t, c.Close())
			for i, token := range tokens {
				if torchtest.Device().IsCUDA() {
					break
				}
				if token.ID != want[i] || math.Abs(token.LogProb-logs[i]) > 1e-3 {
					t.Errorf("turn %d, token %d: got %d with %v, want %d with %v", at, i, token.ID, token.LogProb, want[i], logs[i])
					break
				}
			}
		})
	}
}

// A token whose keys are not numbers ends its own requests alone. Its pages serve others, also
// those of a request that has left before a token told it.
func TestBatcher_NaN(t *testing.T) {
	for _, name := range []string{"llama", "long", "experts"} { // the other one has a NaN in all logits then
		m := openServed(t, name, text.Options{Context: 128, CacheTokens: 200})
		must.Do(t, m.OwnStream().Do(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			x.FillInPlace(x.Narrow(m.Weights[0].Tensor, 0, 59, 1), math.NaN())
			return nil
		}))
		good, bad := []int64{1, 2, 3, 4, 5}, slices.Repeat([]int64{59}, 100)
		o := text.GenerateOptions{MaxTokens: 20, Greedy: true, Bias: map[int64]float64{59: -1e4}, IgnoreEnd: true}
		for _, early := range []bool{false, true} {
			for at := range 8 {
				driven(t, m, text.BatcherOptions{MaxBatch: 3, Piece: 32}, early, func(b text.Driven) {
					must.Get(b.Ask(t.Context(), []int64{9, 8, 7}, o))(t) // beside it, prompts go in pieces
					b.Turn()
					first := must.Get(b.Ask(t.Context(), bad, o))(t)
					for range at {
						b.Turn()
					}
					first.Leave()
					for range 2 {
						r := must.Get(b.Ask(t.Context(), good, o))(t)
						turns(t, b)
						if tokens, err := r.Tokens(); err != nil || len(tokens) != 20 {
							t.Errorf("%s, early %v, turn %d: got %d tokens, %v", name, early, at, len(tokens), err)
						}
					}
				})
			}
		}
		driven(t, m, text.BatcherOptions{}, false, func(b text.Driven) {
			must.Get(b.Ask(t.Context(), slices.Repeat(good, 8), o))(t)
			turns(t, b)
			r := must.Get(b.Ask(t.Context(), bad, o))(t)
			turns(t, b)
			if _, err := r.Tokens(); err == nil || b.Stats().PrefixPages != 0 {
				t.Errorf("%s: the error is %v, and %d pages are prefixes, want none", name, err, b.Stats().PrefixPages)
			}
		})
	}
}

// The memory for experts may change between turns.
func TestBatcher_SetDeviceMemory(t *testing.T) {
	m := openMixture(t, mixtureFolder(t, "qwen3"), 3, "")
	prompt, o := randomTokens(rand.New(rand.NewPCG(5, 5)), 20), text.GenerateOptions{MaxTokens: 30, Greedy: true, IgnoreEnd: true}
	want := wantOf(t, m, prompt, o)
	driven(t, m, text.BatcherOptions{MaxBatch: 2}, false, func(b text.Driven) {
		r := must.Get(b.Ask(t.Context(), prompt, o))(t)
		for i := range 20 {
			b.Turn()
			if i%5 == 4 {
				must.Do(t, m.SetDeviceMemory(m.BudgetFor([]int{2, 6, 4, 3}[i/5])))
				if n := b.Captures(); n != 0 {
					t.Errorf("%d steps are captured with the old memory", n)
				}
			}
		}
		turns(t, b)
		if got := idsOf(t, r); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
