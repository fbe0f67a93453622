package text_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// soon fails the test if fn does not return.
func soon(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan bool)
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s waits for ever", what)
	}
}

// A Mask may close the Batcher and its model, use a conversation, and never return.
func TestBatcher_Mask(t *testing.T) {
	torchtest.CheckLeaks(t)
	for at := range 3 {
		for _, what := range []string{"Batcher.Close", "Model.Close", "Conversation", "block", "Goexit", "panic", "nothing"} {
			m := openServed(t, "llama", text.Options{Context: 64, CacheTokens: 256})
			b := must.Get(m.NewBatcher(text.BatcherOptions{MaxBatch: 2}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			release := make(chan bool)
			other := make(chan error, 1)
			mask := func(answer []int64, allowed []bool) {
				if allowed[3] = true; len(answer) != at {
					return
				}
				switch what {
				case "Batcher.Close":
					must.Do(t, b.Close())
				case "Model.Close":
					must.Do(t, m.Close())
				case "Conversation":
					c := m.NewConversation()
					other <- errors.Join(errorOf(ctx, c, []int64{1, 2}, text.GenerateOptions{MaxTokens: 3}), c.Close())
				case "block":
					go func() {
						_, _, err := answerOf(t.Context(), b, []int64{1}, text.GenerateOptions{MaxTokens: 4})
						other <- err
					}()
					cancel()
					<-release
				case "Goexit":
					runtime.Goexit()
				case "panic":
					panic("no")
				case "nothing":
					allowed[3] = false
				}
			}
			soon(t, what, func() {
				ids, _, err := answerOf(ctx, b, []int64{1, 2}, text.GenerateOptions{MaxTokens: 5, IgnoreEnd: true, Mask: mask})
				good := err != nil && strings.Contains(err.Error(), "Mask")
				switch what {
				case "Batcher.Close", "Model.Close":
					good = errors.Is(err, cgotorch.ErrClosed)
				case "Conversation":
					good = err == nil && <-other == nil
				case "block":
					good = errors.Is(err, context.Canceled) && <-other == nil
				}
				if want := map[bool]int{true: 5, false: at}[what == "Conversation"]; !good || len(ids) != want && what != "block" {
					t.Errorf("%s behind %d tokens: got %v, %v", what, at, ids, err)
				}
				close(release)
				must.Do(t, errors.Join(b.Close(), b.Close()))
			})
			cancel()
		}
	}
}

// A Batcher, or its model, may be closed while requests of all kinds are under way.
func TestBatcher_Close_Goroutines(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i := range 12 {
		m := openServed(t, []string{"llama", "windows"}[i%2], text.Options{Context: 200, CacheTokens: 1000})
		free := m.FreePages()
		b := must.Get(m.NewBatcher(text.BatcherOptions{MaxBatch: 8, Piece: 16, Queue: 20}))(t)
		if i%3 == 2 {
			must.Do(t, b.Close())
			b = must.Get(m.NewEarlyBatcher(text.BatcherOptions{MaxBatch: 8, Piece: 16}))(t)
		}
		var wg sync.WaitGroup
		for k := range 200 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				o := servedOptions(k, 61)
				o.MaxTokens = 1 + k
				answerOf(t.Context(), b, randomTokens(rand.New(rand.NewPCG(1, uint64(k))), 1+k%90), o)
			}()
		}
		time.Sleep(time.Duration(i*i) * time.Millisecond)
		soon(t, "Close", func() {
			if i%4 == 1 {
				must.Do(t, m.Close())
			}
			must.Do(t, b.Close())
			wg.Wait()
		})
		if now := m.FreePages(); now != free {
			t.Errorf("%d pages are free, want %d", now, free)
		}
		if _, _, err := answerOf(t.Context(), b, []int64{1}, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrClosed) {
			t.Errorf("behind Close: got %v, want ErrClosed", err)
		}
	}
}

// Pages that only prefixes hold go to conversations, and to other Batchers of the model.
func TestBatcher_PrefixesGiveWay(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 128})
	b, other := batcherOf(t, m, text.BatcherOptions{MaxBatch: 4}), batcherOf(t, m, text.BatcherOptions{MaxBatch: 4})
	r := rand.New(rand.NewPCG(21, 22))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	o := text.GenerateOptions{MaxTokens: 8, IgnoreEnd: true}
	for range 3 {
		for _, b := range []*text.Batcher{b, other} {
			if _, _, err := answerOf(ctx, b, randomTokens(r, 110), o); err != nil {
				t.Fatalf("a Batcher: %v", err)
			}
		}
		c := m.NewConversation()
		if err := errorOf(ctx, c, randomTokens(r, 110), o); err != nil {
			t.Errorf("a conversation: %v", err)
		}
		must.Do(t, c.Close())
	}
	if s := b.Stats(); s.Preempted != 0 || s.Pages != 16 {
		t.Errorf("%+v", s)
	}
}

// The highest priority comes first, then the caller with the fewest seats, then the oldest.
func TestBatcher_Order(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 64, CacheTokens: 640})
	driven(t, m, text.BatcherOptions{MaxBatch: 3, Queue: 8}, false, func(b text.Driven) {
		var all []*text.DrivenRequest
		for _, o := range []text.GenerateOptions{
			{Caller: "a"}, {Caller: "a"}, {Caller: "b"}, {Caller: "b", Priority: -1 << 63}, {Caller: "a", Priority: 1<<63 - 1}, {Caller: "c", Priority: -1}, {Caller: "a"}, {Caller: "d"},
		} {
			o.MaxTokens, o.IgnoreEnd = 1, true
			all = append(all, must.Get(b.Ask(t.Context(), []int64{1, 2, 3}, o))(t))
		}
		if _, err := b.Ask(t.Context(), []int64{1}, text.GenerateOptions{}); err == nil {
			t.Error("a ninth request waits in a queue of eight")
		}
		var order []int
		for range 20 {
			b.Turn()
			for i, r := range all {
				if len(idsOf(t, r)) > 0 && !slices.Contains(order, i) {
					order = append(order, i)
				}
			}
		}
		for from, want := range map[int][]int{0: {2, 4, 7}, 3: {0, 1, 6}, 6: {3, 5}} { // those of one turn, by number
			if len(order) != 8 || !slices.Equal(slices.Sorted(slices.Values(order[from:from+len(want)])), want) {
				t.Errorf("the order is %v, want %v from %d on", order, want, from)
			}
		}
	})
}
