package text_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// asked is a request, and the answer of a conversation.
type asked struct {
	prompt, want []int64
	o            text.GenerateOptions
}

// askedOf returns requests of all kinds. Their prompts and answers end at and around the ends of
// pages and of pieces of 32 tokens.
func askedOf(t *testing.T, m *text.Model, n int) (all []asked) {
	t.Helper()
	r := rand.New(rand.NewPCG(11, 12))
	same := randomTokens(r, 80)
	for i := range n {
		length := []int{1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 50, 51, 64, 65, 80}[r.IntN(15)]
		a := asked{prompt: randomTokens(r, length), o: servedOptions(i, 61)}
		if i%4 == 0 {
			a.prompt = slices.Clone(same[:length])
		}
		a.o.MaxTokens = []int{1, 2, 15, 16, 17, 33, 40}[r.IntN(7)]
		c := m.NewConversation()
		a.want, _ = tokensOf(t, c, a.prompt, a.o)
		must.Do(t, c.Close())
		all = append(all, a)
	}
	return all
}

// ask lets goroutines ask all requests at once. Each answer must be the one that is wanted.
func ask(t *testing.T, b *text.Batcher, all []asked) {
	t.Helper()
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, _, err := answerOf(t.Context(), b, a.prompt, a.o)
			if err != nil || !torchtest.Device().IsCUDA() && !slices.Equal(got, a.want) || len(got) != len(a.want) {
				t.Errorf("request %d with a prompt of %d tokens: got %v, %v, want %v", i, len(a.prompt), got, err, a.want)
			}
		}()
	}
	wg.Wait()
}

// A Batcher that steps before it has read the last tokens gives the answers of conversations, also
// where pages are scarce.
func TestBatcher_Early(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			m := openServed(t, name, text.Options{Context: 128, CacheTokens: 300})
			free := m.FreePages()
			all := askedOf(t, m, 36)
			for _, o := range []text.BatcherOptions{{MaxBatch: 12, Piece: 32}, {MaxBatch: 5, Piece: 16}, {MaxBatch: 1, Queue: 99}} {
				b := must.Get(m.NewEarlyBatcher(o))(t)
				ask(t, b, all)
				must.Do(t, b.Close())
				s := b.Stats()
				if now := m.FreePages(); now != free || s.Running != 0 || s.Waiting != 0 {
					t.Errorf("%+v: %d pages are free, want %d: %+v", o, now, free, s)
				}
				if o.MaxBatch == 12 && name != "windows" && s.Preempted == 0 {
					t.Error("no request was preempted, and the test means some to be")
				}
			}
		})
	}
}

// Penalties count a token once, also where a request sits out a step of others: those of a long
// sequence have steps of their own.
func TestBatcher_PenaltiesBesideLong(t *testing.T) {
	m := openServed(t, "long", text.Options{Context: 128, CacheTokens: 600})
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 4})
	r := rand.New(rand.NewPCG(13, 14))
	var all []asked
	for _, length := range []int{70, 5, 80, 6} {
		a := asked{prompt: randomTokens(r, length), o: text.GenerateOptions{Greedy: true, FrequencyPenalty: 0.3, MaxTokens: 40, IgnoreEnd: true}}
		c := m.NewConversation()
		a.want, _ = tokensOf(t, c, a.prompt, a.o)
		must.Do(t, c.Close())
		all = append(all, a)
	}
	ask(t, b, all)
}
