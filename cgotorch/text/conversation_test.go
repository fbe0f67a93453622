package text_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// configs are models of which each takes another way through the cache.
var configs = map[string]string{
	"llama": `{"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.3, "eos_token_id": 60}`,
	"windows": `{"model_type": "gemma3_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
		"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 20, "sliding_window_pattern": 2, "max_position_embeddings": 4096, "initializer_range": 0.3}`,
	"long": `{"model_type": "phi3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
		"max_position_embeddings": 4096, "original_max_position_embeddings": 50, "initializer_range": 0.3, "pad_token_id": 0,
		"rope_scaling": {"type": "longrope", "short_factor": [1, 1.1, 1.2, 1.3], "long_factor": [2, 3, 4, 5]}}`,
	"experts": `{"model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 4096,
		"initializer_range": 0.3}`,
}

// openRandom opens a model of a config with random weights.
func openRandom(t *testing.T, config string, o text.Options) *text.Model {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
	if o.RandomWeights == 0 {
		o.RandomWeights = 7
	}
	m := must.Get(text.Open(torchtest.Device(), folder, o))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	return m
}

// tokensOf runs a whole Generate.
func tokensOf(t *testing.T, c *text.Conversation, prompt []int64, o text.GenerateOptions) (ids []int64, logs []float64) {
	t.Helper()
	for token, err := range c.Generate(t.Context(), prompt, o) {
		must.Do(t, err)
		ids, logs = append(ids, token.ID), append(logs, token.LogProb)
	}
	return ids, logs
}

// logsOf returns the log probabilities of an answer in a new conversation, in which each of its
// tokens alone is allowed.
func logsOf(t *testing.T, m *text.Model, prompt, answer []int64, o text.GenerateOptions) []float64 {
	t.Helper()
	c := m.NewConversation()
	defer c.Close()
	o.Mask = func(made []int64, allowed []bool) { allowed[answer[len(made)]] = true }
	got, logs := tokensOf(t, c, prompt, o)
	if !slices.Equal(got, answer) {
		t.Errorf("got %v, and only %v was allowed", got, answer)
	}
	return logs
}

func randomTokens(r *rand.Rand, n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = r.Int64N(60)
	}
	return ids
}

// errorOf returns the error with which a Generate ends.
func errorOf(ctx context.Context, c *text.Conversation, prompt []int64, o text.GenerateOptions) (last error) {
	for _, err := range c.Generate(ctx, prompt, o) {
		last = err
	}
	return last
}

// A conversation that goes on, is cut back, left early and cancelled answers as a new one does.
func TestConversation_Detours(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			m := openRandom(t, config, text.Options{Context: 700, CacheTokens: 1400})
			talk := m.NewConversation()
			defer talk.Close()
			said := randomTokens(r, 5)
			turns := 25 // STREAMTORCH_SOAK is another number; 2500 make 100,000 tokens
			if text := os.Getenv("STREAMTORCH_SOAK"); text != "" {
				turns = must.Get(strconv.Atoi(text))(t)
			} else if testing.Short() {
				turns = 6
			}
			ties := 0
			for turn := range turns {
				switch r.IntN(5) {
				case 0: // back to any position
					said = said[:1+r.IntN(len(said))]
				case 1: // left early
					for range talk.Generate(t.Context(), said, text.GenerateOptions{MaxTokens: 9}) {
						if r.IntN(3) == 0 {
							break
						}
					}
				case 2: // cancelled
					ctx, cancel := context.WithCancel(t.Context())
					for _, err := range talk.Generate(ctx, said, text.GenerateOptions{MaxTokens: 9, IgnoreEnd: true}) {
						if cancel(); err != nil && !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					}
					cancel()
				}
				o := text.GenerateOptions{MaxTokens: 1 + r.IntN(30), IgnoreEnd: true, Seed: uint64(turn), Ranked: 3}
				if turn%2 == 1 {
					o.Temperature, o.TopP, o.RepetitionPenalty = 1.3, 0.9, 1.1
				}
				if len(said)+o.MaxTokens+40 > 700 {
					said = said[:30]
				}
				got, logs := tokensOf(t, talk, said, o)
				fresh := m.NewConversation()
				want, wantLogs := tokensOf(t, fresh, said, o)
				must.Do(t, fresh.Close())
				if !slices.Equal(got, want) {
					// The last bits differ, because the parts of a prompt differ. So one draw of
					// many thousands is another one.
					if ties++; ties > turns/1000 {
						t.Fatalf("turn %d after %d tokens: got %v, want %v", turn, len(said), got, want)
					}
					wantLogs = logsOf(t, m, said, got, o)
				}
				for i := range logs {
					if math.Abs(logs[i]-wantLogs[i]) > 1e-4 {
						t.Fatalf("turn %d: log probability %d is %v, want %v", turn, i, logs[i], wantLogs[i])
					}
				}
				said = slices.Concat(said, got, randomTokens(r, 1+r.IntN(40)))
			}
		})
	}
}

// Conversations that take turns token by token answer as alone.
func TestConversation_Turns(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, masked := range []bool{false, true} {
		m := openRandom(t, configs["windows"], text.Options{Context: 200, CacheTokens: 800})
		o := text.GenerateOptions{MaxTokens: 40, Temperature: 1, FrequencyPenalty: 0.3}
		if masked {
			o.Mask = func(answer []int64, allowed []bool) {
				for i := range allowed {
					allowed[i] = (i+len(answer))%3 == 0
				}
			}
		}
		r := rand.New(rand.NewPCG(3, 4))
		var prompts, want [][]int64
		for i := range 3 {
			prompts = append(prompts, randomTokens(r, 10+i*30))
			c := m.NewConversation()
			o.Seed = uint64(i)
			ids, _ := tokensOf(t, c, prompts[i], o)
			want = append(want, ids)
			must.Do(t, c.Close())
		}
		type talk struct {
			next func() (text.Token, error, bool)
			got  []int64
		}
		talks := make([]talk, 3)
		for i := range talks {
			c := m.NewConversation()
			defer c.Close()
			o.Seed = uint64(i)
			next, stop := iter.Pull2(c.Generate(t.Context(), prompts[i], o))
			defer stop()
			talks[i].next = next
		}
		for going := true; going; {
			going = false
			for i := range talks {
				if r.IntN(2) == 0 {
					going = true
					continue
				}
				token, err, ok := talks[i].next()
				if must.Do(t, err); ok {
					talks[i].got, going = append(talks[i].got, token.ID), true
				}
			}
		}
		for i := range talks {
			if !slices.Equal(talks[i].got, want[i]) {
				t.Errorf("masked=%v: conversation %d: got %v, want %v", masked, i, talks[i].got, want[i])
			}
		}
	}
}

// A conversation may be closed where the program is called. It then ends, and leaves all pages.
func TestConversation_Close_Within(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64, CacheTokens: 128})
	for range 8 {
		c, other := m.NewConversation(), m.NewConversation()
		tokensOf(t, other, []int64{4, 5}, text.GenerateOptions{MaxTokens: 2, IgnoreEnd: true})
		var ids []int64
		var last error
		o := text.GenerateOptions{IgnoreEnd: true, Mask: func(_ []int64, allowed []bool) {
			must.Do(t, other.Close())
			allowed[3] = true
		}}
		for token, err := range c.Generate(t.Context(), []int64{1, 2, 3}, o) {
			if last = err; err == nil {
				ids = append(ids, token.ID)
				must.Do(t, c.Close())
			}
		}
		if len(ids) != 1 || !errors.Is(last, cgotorch.ErrClosed) || len(c.Tokens()) > 0 {
			t.Errorf("got tokens %v, %v, and the cache has %v", ids, last, c.Tokens())
		}
	}
	c := m.NewConversation()
	defer c.Close()
	tokensOf(t, c, make([]int64, 60), text.GenerateOptions{MaxTokens: 2}) // pages are there
}

// What cannot be done is an error that says what to do, and the conversation goes on behind it.
func TestConversation_Refusals(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64})
	c := m.NewConversation()
	defer c.Close()
	want, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 8})
	for _, test := range []struct {
		name   string
		prompt []int64
		o      text.GenerateOptions
		kind   error
		text   string
	}{
		{"empty", nil, text.GenerateOptions{}, cgotorch.ErrInvalidArgument, "the prompt is empty"},
		{"long", make([]int64, 64), text.GenerateOptions{}, cgotorch.ErrInvalidArgument, "Options.Context is 64"},
		{"token", []int64{1, 61}, text.GenerateOptions{}, cgotorch.ErrInvalidArgument, "token 1 of the prompt is 61"},
		{"temperature", []int64{1}, text.GenerateOptions{Temperature: math.NaN()}, cgotorch.ErrInvalidArgument, "Temperature is NaN"},
		{"top-k", []int64{1}, text.GenerateOptions{TopK: 5000}, cgotorch.ErrInvalidArgument, "TopK is 5000"},
		{"bias", []int64{1}, text.GenerateOptions{Bias: map[int64]float64{99: 1}}, cgotorch.ErrInvalidArgument, "Bias has token 99"},
		{"infinite bias", []int64{1}, text.GenerateOptions{Bias: map[int64]float64{5: math.Inf(1)}}, cgotorch.ErrInvalidArgument, "a Bias is +Inf"},
		{"mask", []int64{1}, text.GenerateOptions{Mask: func([]int64, []bool) {}}, cgotorch.ErrInvalidArgument, "Mask allows no token"},
		{"stop", []int64{1}, text.GenerateOptions{Stop: []string{"x"}}, cgotorch.ErrInvalidArgument, "neither tokenizer.json nor tekken.json"},
	} {
		err := errorOf(t.Context(), c, test.prompt, test.o)
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %v, want %v with %q", test.name, err, test.kind, test.text)
		}
		if got, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 8}); !slices.Equal(got, want) {
			t.Errorf("after %s: got %v, want %v", test.name, got, want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := errorOf(ctx, c, []int64{1}, text.GenerateOptions{}); !errors.Is(err, cause) {
		t.Errorf("a cancelled context: got %v", err)
	}
	other := m.NewConversation()
	defer other.Close()
	tokensOf(t, c, make([]int64, 50), text.GenerateOptions{MaxTokens: 2})
	if err := errorOf(t.Context(), other, make([]int64, 40), text.GenerateOptions{MaxTokens: 2}); !errors.Is(err, cgotorch.ErrOutOfMemory) || !strings.Contains(err.Error(), "CacheTokens") {
		t.Errorf("out of pages: got %v", err)
	}
	must.Do(t, c.Close())
	tokensOf(t, other, make([]int64, 40), text.GenerateOptions{MaxTokens: 2})
	if err := errorOf(t.Context(), c, []int64{1}, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("a closed conversation: got %v", err)
	}
}

// Weights that are not numbers are told, and not answered.
func TestConversation_NaN(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64, Stream: cgotorch.DefaultStream(torchtest.Device())})
	c := m.NewConversation()
	defer c.Close()
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
		x.NoGrad().FillInPlace(m.Weights[3].Tensor, math.NaN())
		return nil
	}))
	if err := errorOf(t.Context(), c, []int64{1, 2}, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("got %v", err)
	}
}

// Goroutines that generate at the same time get what they would have got alone.
func TestConversation_Goroutines(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["windows"], text.Options{Context: 200, CacheTokens: 1600})
	o := func(i int) text.GenerateOptions {
		o := text.GenerateOptions{MaxTokens: 60, Temperature: 1.5, PresencePenalty: 0.2, Seed: uint64(i)}
		if i%2 == 0 {
			o.Mask = func(answer []int64, allowed []bool) {
				for k := range allowed {
					allowed[k] = (k+len(answer)+i)%3 == 0
				}
			}
		}
		return o
	}
	prompt := func(i int) []int64 { return randomTokens(rand.New(rand.NewPCG(5, uint64(i))), 10+i*20) }
	var want [6][]int64
	for i := range want {
		c := m.NewConversation()
		want[i], _ = tokensOf(t, c, prompt(i), o(i))
		must.Do(t, c.Close())
	}
	var all sync.WaitGroup
	for i := range want {
		all.Add(1)
		go func() {
			defer all.Done()
			c := m.NewConversation()
			defer c.Close()
			var got []int64
			for token, err := range c.Generate(t.Context(), prompt(i), o(i)) {
				if err != nil {
					t.Errorf("conversation %d: %v", i, err)
				}
				got = append(got, token.ID)
			}
			if !slices.Equal(got, want[i]) {
				t.Errorf("conversation %d: got %v, want %v", i, got, want[i])
			}
		}()
	}
	all.Wait()
}

// A step does not wait for the device, whatever its options are.
func TestConversation_NoWaits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, name := range []string{"llama", "windows", "long"} {
		m := openRandom(t, configs[name], text.Options{Context: 64})
		c := m.NewConversation()
		defer c.Close()
		tokensOf(t, c, randomTokens(rand.New(rand.NewPCG(1, 1)), 30), text.GenerateOptions{MaxTokens: 1})
		for _, o := range []text.GenerateOptions{
			{Greedy: true}, {Temperature: 1}, {Temperature: 1, TopK: 5}, {Temperature: 1, TopP: 0.5, MinP: 0.1, RepetitionPenalty: 1.2, Ranked: 5},
			{Bias: map[int64]float64{3: 1}, Mask: func(_ []int64, allowed []bool) { allowed[3] = true }},
		} {
			if err := c.StepUnderNoWaits(o); err != nil {
				t.Errorf("%s, %+v: %v", name, o, err)
			}
		}
	}
}

// What a token without numbers leaves in the cache does not reach later answers.
func TestConversation_NaN_Behind(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64, Stream: cgotorch.DefaultStream(torchtest.Device())})
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		x.FillInPlace(x.Narrow(m.Weights[0].Tensor, 0, 5, 1), math.NaN())
		return nil
	}))
	c := m.NewConversation()
	defer c.Close()
	want, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 4, Bias: map[int64]float64{5: -1e4}})
	if err := errorOf(t.Context(), c, []int64{1, 2, 5, 5, 5, 5}, text.GenerateOptions{MaxTokens: 1}); !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("a token without numbers: got %v", err)
	}
	got, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 4, Bias: map[int64]float64{5: -1e4}})
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := errorOf(t.Context(), c, []int64{7, 8, 5}, text.GenerateOptions{MaxTokens: 1}); !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("a token without numbers in one pass with others: got %v", err)
	}
	if err := errorOf(t.Context(), c, []int64{7, 8, 9}, text.GenerateOptions{MaxTokens: 1, Bias: map[int64]float64{5: -1e4}}); err != nil {
		t.Errorf("the other tokens of that pass: got %v", err)
	}
}

// Forward does not wait for the device without experts.
func TestModel_Forward_NoWaits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, name := range []string{"llama", "windows", "long"} {
		m := openRandom(t, configs[name], text.Options{Context: 64})
		err := cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
			ids := cgotorch.FromSlice(x, make([]int64, 100), 1, 100)
			m.Forward(x, ids).Close() // the first one may wait for memory
			m.Forward(x.NoWaits(), ids)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
