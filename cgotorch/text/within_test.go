package text_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A conversation or its model may be closed in Mask, at any token. The answer then ends, and the
// conversation's pages are there for others.
func TestConversation_Close_InMask(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, whole := range []bool{false, true} {
		for at := range 3 {
			m := openRandom(t, configs["llama"], text.Options{Context: 64})
			c := m.NewConversation()
			err := errorOf(t.Context(), c, []int64{1, 2, 3}, text.GenerateOptions{IgnoreEnd: true, Mask: func(answer []int64, allowed []bool) {
				if allowed[3] = true; len(answer) == at && whole {
					must.Do(t, m.Close())
				} else if len(answer) == at {
					must.Do(t, c.Close())
				}
			}})
			if !errors.Is(err, cgotorch.ErrClosed) || !whole && len(c.Tokens()) > 0 {
				t.Errorf("model=%v, token %d: got %v, and the cache has %v", whole, at, err, c.Tokens())
			}
			other := m.NewConversation()
			err = errorOf(t.Context(), other, make([]int64, 62), text.GenerateOptions{MaxTokens: 2})
			if whole != errors.Is(err, cgotorch.ErrClosed) || !whole && err != nil {
				t.Errorf("model=%v: another conversation: got %v", whole, err)
			}
			must.Do(t, errors.Join(c.Close(), other.Close()))
		}
	}
}

// Other goroutines may close a conversation, and the model, while they generate.
func TestConversation_Close_Goroutines(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["windows"], text.Options{Context: 2000, CacheTokens: 8000})
	var all sync.WaitGroup
	var talks [4]*text.Conversation
	for i := range talks {
		talks[i] = m.NewConversation()
		all.Add(1)
		go func() {
			defer all.Done()
			if err := errorOf(t.Context(), talks[i], []int64{1, 2, 3}, text.GenerateOptions{IgnoreEnd: true}); !errors.Is(err, cgotorch.ErrClosed) {
				t.Errorf("got %v", err)
			}
		}()
	}
	time.Sleep(20 * time.Millisecond)
	must.Do(t, errors.Join(talks[0].Close(), talks[1].Close(), m.Close()))
	all.Wait()
	must.Do(t, errors.Join(talks[2].Close(), talks[3].Close()))
}

// Generate and Close inside a Do are refused. They do not wait for a goroutine that waits for the
// Do.
func TestConversation_InsideDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := cgotorch.DefaultStream(torchtest.Device())
	m := openRandom(t, configs["llama"], text.Options{Context: 4000, CacheTokens: 8000, Stream: s})
	c, other := m.NewConversation(), m.NewConversation()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	inside, outside := make(chan error, 2), make(chan error, 1)
	go func() { outside <- errorOf(ctx, other, []int64{1}, text.GenerateOptions{IgnoreEnd: true}) }()
	time.Sleep(50 * time.Millisecond)
	go s.Do(func(x *cgotorch.Exec) error {
		time.Sleep(50 * time.Millisecond) // the other one waits for the Do
		inside <- errorOf(ctx, c, []int64{1}, text.GenerateOptions{MaxTokens: 3})
		inside <- m.Close()
		return nil
	})
	for range 2 {
		select {
		case err := <-inside:
			if !errors.Is(err, cgotorch.ErrMisuse) {
				t.Errorf("got %v", err)
			}
		case <-ctx.Done():
			t.Fatal("a call inside a Do waits for ever")
		}
	}
	cancel()
	if err := <-outside; !errors.Is(err, context.Canceled) {
		t.Errorf("the other conversation: got %v", err)
	}
	must.Do(t, errors.Join(c.Close(), other.Close()))
}

// Options that the program changes between tokens change nothing.
func TestGenerateOptions_Changed(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64, CacheTokens: 128})
	c, other := m.NewConversation(), m.NewConversation()
	bias, got := map[int64]float64{7: 1e4}, []int64(nil)
	for token, err := range c.Generate(t.Context(), []int64{1}, text.GenerateOptions{MaxTokens: 3, Bias: bias}) {
		must.Do(t, err)
		got = append(got, token.ID)
		bias[7], bias[1000] = 0, 1
		tokensOf(t, other, []int64{2}, text.GenerateOptions{MaxTokens: 1}) // the options are loaded again
	}
	if want := []int64{7, 7, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	must.Do(t, errors.Join(c.Close(), other.Close()))
}

// After a step of an optimizer a conversation goes on as a new one does.
func TestConversation_Trained(t *testing.T) {
	torchtest.CheckLeaks(t)
	s, said := cgotorch.DefaultStream(torchtest.Device()), []int64{1, 2, 3, 4, 5, 6, 7, 8}
	m := openRandom(t, configs["llama"], text.Options{Context: 64, CacheTokens: 128, Stream: s})
	opt := must.Get(optim.NewAdamW(optim.AdamOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(m)}))(t)
	c, fresh := m.NewConversation(), m.NewConversation()
	tokensOf(t, c, said, text.GenerateOptions{MaxTokens: 20, IgnoreEnd: true})
	must.Do(t, s.Do(func(x *cgotorch.Exec) error {
		x.Backward(x.Sum(x.Square(m.Forward(x, cgotorch.FromSlice(x, said, 1, 8)))))
		opt.Step(x)
		return nil
	}))
	_, got := tokensOf(t, c, said, text.GenerateOptions{MaxTokens: 5, IgnoreEnd: true})
	_, want := tokensOf(t, fresh, said, text.GenerateOptions{MaxTokens: 5, IgnoreEnd: true})
	if !slices.Equal(got, want) {
		t.Errorf("got the log probabilities %v, want %v", got, want)
	}
	must.Do(t, errors.Join(c.Close(), fresh.Close(), opt.Close()))
}

// A top_k of 0 in generation_config.json means all tokens, as in transformers. No top_k means 50.
func TestGenerateOptions_FolderTopK(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := savedModel(t, configs["llama"])
	for config, want := range map[string]int64{`{"do_sample": true, "top_k": 0}`: 61, `{"do_sample": true}`: 50, `{"do_sample": true, "top_k": 3}`: 3} {
		write(t, filepath.Join(folder, "generation_config.json"), config)
		m := must.Get(text.Open(torchtest.Device(), folder, text.Options{Context: 16}))(t)
		c, drawn := m.NewConversation(), map[int64]bool{}
		for seed := range uint64(600) {
			ids, _ := tokensOf(t, c, []int64{1}, text.GenerateOptions{MaxTokens: 1, Temperature: 1e4, Seed: seed * 0x9E3779B97F4A7C15})
			drawn[ids[0]] = true
		}
		if int64(len(drawn)) != want {
			t.Errorf("%s: %d tokens were drawn, want %d", config, len(drawn), want)
		}
		must.Do(t, errors.Join(c.Close(), m.Close()))
	}
}

// A context that ends in Mask lets at most one more token through.
func TestConversation_CancelInMask(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64})
	for range 10 {
		c, tokens := m.NewConversation(), -1 // the last one is the error
		ctx, cancel := context.WithCancel(t.Context())
		for range c.Generate(ctx, []int64{1}, text.GenerateOptions{Mask: func(_ []int64, allowed []bool) { allowed[3] = true; cancel() }}) {
			tokens++
		}
		if must.Do(t, c.Close()); tokens > 1 {
			t.Fatalf("%d tokens came after the end", tokens)
		}
	}
}

// A token that Mask forbids is not given, even if the logits of all others are -Inf. A logit of
// +Inf is no number to sample with. One element of the hidden state makes the logit, and so its
// sign.
func TestConversation_MaskedInf(t *testing.T) {
	torchtest.CheckLeaks(t)
	stream := cgotorch.DefaultStream(torchtest.Device())
	m := openRandom(t, configs["llama"], text.Options{Context: 64, DType: cgotorch.Float16, Stream: stream})
	var told []string
	for _, weight := range []float64{-60000, 60000} {
		must.Do(t, stream.Do(func(x *cgotorch.Exec) error {
			x = x.NoGrad()
			for _, n := range m.Weights {
				if n.Name == "model.norm.weight" {
					x.FillInPlace(n.Tensor, 100)
				}
			}
			row := x.Narrow(m.Weights[len(m.Weights)-1].Tensor, 0, 7, 1)
			x.FillInPlace(row, 0)
			x.FillInPlace(x.Narrow(row, 1, 0, 1), weight)
			return nil
		}))
		c := m.NewConversation()
		err := errorOf(t.Context(), c, []int64{3, 2, 3}, text.GenerateOptions{MaxTokens: 1, Mask: func(_ []int64, allowed []bool) { allowed[7] = true }})
		if must.Do(t, c.Close()); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Fatalf("got %v", err)
		}
		told = append(told, err.Error())
	}
	if slices.Sort(told); !strings.Contains(told[0], "are not numbers") || !strings.Contains(told[1], "are -Inf") {
		t.Errorf("got %q", told)
	}
}
