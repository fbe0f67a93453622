package text_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// mixtures are models with experts: one tensor for all experts or two or three for each, with and
// without biases.
var mixtures = map[string]string{
	"gpt_oss": `"model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16`,
	"mixtral": `"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2`,
	"qwen3":   `"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true, "decoder_sparse_step": 2`,
}

// openMixture opens a mixture of experts in a folder with `slots` slots in each layer, or with all
// experts on the device if slots is 0. Its tokens take the kernels, on the CPU too.
func openMixture(t *testing.T, folder string, slots int, quantize string) *text.Model {
	t.Helper()
	o := text.Options{DType: cgotorch.Float32, Context: 160, Quantize: quantize, ExpertPolicy: []weights.Policy{weights.LRU, weights.LFU}[slots%2], PredictExperts: slots == 5}
	if torchtest.Device().IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	if !strings.HasPrefix(filepath.Base(folder), "saved") {
		o.RandomWeights = 7
	}
	m := must.Get(text.Open(torchtest.Device(), folder, o))(t)
	if slots > 0 {
		o.DeviceMemory = m.BudgetFor(slots)
		must.Do(t, m.Close())
		m = must.Get(text.Open(torchtest.Device(), folder, o))(t)
	}
	t.Cleanup(func() { must.Do(t, m.Close()) })
	m.Edge("early")
	return m
}

func mixtureFolder(t *testing.T, name string) string {
	folder := t.TempDir()
	config := `{"vocab_size": 131, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 16, "max_position_embeddings": 4096, "initializer_range": 0.2, ` + cmp.Or(mixtures[name], `"model_type": "`+name+`"`) + "}"
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
	return folder
}

// With slots on the device for some experts, answers have the bits of a model that has all of them
// there. Prompts, files and changed weights do, too.
func TestModel_ExpertSlots(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	passes := false
	defer func() {
		if !passes {
			t.Error("no prompt copies the experts of its layers")
		}
	}()
	for name := range mixtures {
		for _, quantize := range append([]string{""}, formsOf4...) {
			folder := mixtureFolder(t, name)
			for _, saved := range []bool{false, true} {
				if saved {
					wide := openMixture(t, folder, 0, "")
					folder = filepath.Join(folder, "saved")
					torchtest.DoOn(t, wide.OwnStream(), func(x *cgotorch.Exec) { must.Do(t, wide.Save(x, folder)) })
				}
				resident := openMixture(t, folder, 0, quantize)
				for _, slots := range []int{2, 5} {
					m := openMixture(t, folder, slots, quantize)
					passes = passes || m.Passes()
					m.Fetch(func(n int) bool { return slots == 5 && n%7 < 3 })
					sameAnswers(t, resident, m, m.BudgetFor(slots))
					if s := must.Get(m.ExpertStats())(t); (s.Fetched > 0) != (slots == 5) || s.Fetched > s.Misses || (s.Ahead > 0) != (slots == 5) || s.AheadPicked > s.Ahead {
						t.Errorf("%s, %d slots: %+v", folder, slots, s)
					}
				}
			}
		}
	}
}

// sameAnswers checks that a model with slots has the answers of one with all experts on the device,
// and its memory within the budget. It then changes the experts of both, and checks them again.
func sameAnswers(t *testing.T, resident, m *text.Model, budget int64) {
	t.Helper()
	stats := must.Get(m.ExpertStats())(t)
	if weights, cache := m.Memory(); stats.HostBytes == 0 || stats.DeviceBytes == 0 || weights+cache > budget {
		t.Fatalf("%s: %+v, and %d and %d bytes of %d", m.Folder(), stats, weights, cache, budget)
	}
	answerOf := func(m *text.Model) (ids []int64, logs []float64) {
		c := m.NewConversation()
		defer c.Close()
		return tokensOf(t, c, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, text.GenerateOptions{MaxTokens: 30, Temperature: 1.5, TopK: -1, Seed: 3, IgnoreEnd: true})
	}
	for range 2 {
		ids, logs := answerOf(m)
		if wantIDs, wantLogs := answerOf(resident); !slices.Equal(ids, wantIDs) || !slices.Equal(logs, wantLogs) {
			t.Errorf("%s: the answer is %v with %v, want %v with %v", m.Folder(), ids, logs, wantIDs, wantLogs)
		}
		for _, of := range []*text.Model{m, resident} {
			torchtest.DoOn(t, of.OwnStream(), func(x *cgotorch.Exec) {
				for _, n := range of.Weights {
					if strings.Contains(n.Name, "experts") && strings.Contains(n.Name, "down") {
						nn.Copy(x.NoGrad(), n.Tensor, x.MulScalar(x.Detach(n.Tensor), -1))
					}
				}
			})
		}
	}
	if stats := must.Get(m.ExpertStats())(t); stats.Misses == 0 || stats.Hits == 0 {
		t.Errorf("%s: after two answers %+v", m.Folder(), stats)
	}
}

// Forward on a stream of its own does not meet the prompts and the tokens of a conversation.
func TestModel_ExpertSlots_Forward(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	folder := mixtureFolder(t, "gpt_oss")
	prompt := randomTokens(rand.New(rand.NewPCG(3, 3)), 40)
	answerOf := func(m *text.Model) []int64 {
		c := m.NewConversation()
		defer c.Close()
		ids, _ := tokensOf(t, c, prompt, text.GenerateOptions{MaxTokens: 10, Greedy: true, IgnoreEnd: true})
		return ids
	}
	forwardOf := func(m *text.Model, s *cgotorch.Stream) (logits []float32) {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			logits = cgotorch.ToSlice[float32](x, m.Forward(x.NoGrad(), cgotorch.FromSlice(x, prompt, 1, int64(len(prompt)))))
		})
		return logits
	}
	s := torchtest.NewStream(t, torchtest.Device())
	resident, m := openMixture(t, folder, 0, ""), openMixture(t, folder, 5, "")
	ids, logits := answerOf(resident), forwardOf(resident, s)
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		for range 5 {
			if got := forwardOf(m, s); !slices.Equal(got, logits) {
				t.Error("Forward beside a conversation gives other logits")
			}
		}
	}()
	for range 5 {
		if got := answerOf(m); !slices.Equal(got, ids) {
			t.Errorf("a conversation beside Forward answers %v, want %v", got, ids)
		}
	}
	all.Wait()
}

// Experts that change in the middle of an answer are used from the next token on.
func TestModel_ExpertSlots_ChangeInAnswer(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := mixtureFolder(t, "mixtral")
	var want []int64
	for _, slots := range []int{0, 2, 5} {
		m := openMixture(t, folder, slots, "")
		c := m.NewConversation()
		var got []int64
		for token, err := range c.Generate(t.Context(), []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 20, Greedy: true, IgnoreEnd: true}) {
			must.Do(t, err)
			if got = append(got, token.ID); len(got)%5 == 0 {
				torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) {
					for _, n := range m.Weights {
						if strings.Contains(n.Name, "experts") {
							nn.Copy(x.NoGrad(), n.Tensor, x.MulScalar(x.Detach(n.Tensor), -1))
						}
					}
				})
			}
		}
		c.Close()
		if slots == 0 {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("with %d slots the answer is %v, want %v", slots, got, want)
		}
	}
}

// After a token that has failed in its middle, the next one does not trust the slots.
func TestModel_ExpertSlots_FailedToken(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := mixtureFolder(t, "mixtral")
	var want []int64
	for _, slots := range []int{0, 5} {
		m := openMixture(t, folder, slots, "")
		answerOf := func() []int64 {
			c := m.NewConversation()
			defer c.Close()
			ids, _ := tokensOf(t, c, []int64{1, 2}, text.GenerateOptions{MaxTokens: 10, Greedy: true, IgnoreEnd: true})
			return ids
		}
		if slots == 0 {
			want = answerOf()
		}
		for range 2 {
			before := must.Get(m.ExpertStats())(t).Misses
			if got := answerOf(); !slices.Equal(got, want) {
				t.Errorf("%d slots: the answer is %v, want %v", slots, got, want)
			}
			if after := must.Get(m.ExpertStats())(t).Misses; slots > 0 && after < before+2*8 {
				t.Errorf("after a failed token %d experts came over the bus, and all slots are to be filled again", after-before)
			}
			torchtest.WantError(t, m.FailToken(), cgotorch.ErrUnsupported, "FailToken")
		}
	}
}

// What a model with experts in host memory cannot do is refused, with what to do.
func TestModel_ExpertSlots_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := mixtureFolder(t, "mixtral")
	for _, c := range []struct {
		memory int64
		kind   error
		text   string
	}{
		{-1, cgotorch.ErrInvalidArgument, "DeviceMemory is -1"},
		{100_000, cgotorch.ErrOutOfMemory, "or more, or a smaller Context"},
	} {
		_, err := text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, DeviceMemory: c.memory})
		torchtest.WantError(t, err, c.kind, "text", c.text)
	}
	m := openMixture(t, folder, 3, "")
	_, err := text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, DType: m.DType(), DeviceMemory: m.BudgetFor(3), Context: 160, ExpertPolicy: weights.NextLayer})
	torchtest.WantError(t, err, weights.ErrInvalidOptions, "NextLayer, want LRU or LFU")
	err = m.OwnStream().Do(func(x *cgotorch.Exec) error {
		m.Forward(x, x.Ones(cgotorch.Int64, 1, 4))
		return nil
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Model.Forward", "lie in host memory")
	torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) {
		if got := m.Forward(x.NoGrad(), x.Ones(cgotorch.Int64, 1, 4)).Shape(); !slices.Equal(got, []int64{1, 4, 131}) {
			t.Errorf("Forward gives %v", got)
		}
	})
	must.Do(t, m.Close())
	_, err = m.ExpertStats()
	torchtest.WantError(t, err, cgotorch.ErrClosed, "text: the model")
	all := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, DeviceMemory: 1 << 30}))(t)
	defer all.Close()
	if s := must.Get(all.ExpertStats())(t); s.HostBytes != 0 {
		t.Errorf("with room for all experts: %+v", s)
	}
}

// An answer goes on with the same bits while the memory for experts becomes less and more.
func TestModel_SetDeviceMemory(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	folder := mixtureFolder(t, "qwen3")
	resident, m := openMixture(t, folder, 0, ""), openMixture(t, folder, 3, "")
	prompt := randomTokens(rand.New(rand.NewPCG(5, 5)), 20)
	o := text.GenerateOptions{MaxTokens: 100, Temperature: 1.5, TopK: -1, Seed: 9, IgnoreEnd: true}
	whole, talk := resident.NewConversation(), m.NewConversation()
	defer whole.Close()
	defer talk.Close()
	want, _ := tokensOf(t, whole, prompt, o)
	var got []int64
	picks := int64(0)
	for token, err := range talk.Generate(t.Context(), prompt, o) {
		must.Do(t, err)
		if got = append(got, token.ID); len(got)%5 != 0 {
			continue
		}
		slots := []int{2, 6, 4, 40, 3}[len(got)/5%5] // of six experts
		budget := m.BudgetFor(slots)
		must.Do(t, m.SetDeviceMemory(budget))
		torchtest.WantError(t, m.SetDeviceMemory(m.BudgetFor(1)), cgotorch.ErrOutOfMemory, "DeviceMemory is", "give ")
		stats := must.Get(m.ExpertStats())(t)
		each := stats.HostBytes / 6
		if weights, cache := m.Memory(); weights+cache > budget || stats.DeviceBytes < each*int64(min(slots, 6)) || stats.Hits+stats.Misses <= picks {
			t.Errorf("with %d bytes for %d slots: %+v, and %d bytes on the device", budget, slots, stats, weights+cache)
		}
		picks = stats.Hits + stats.Misses
	}
	if !slices.Equal(got, want) {
		t.Errorf("the answer is %v, want %v", got, want)
	}
	torchtest.WantError(t, resident.SetDeviceMemory(1<<30), cgotorch.ErrInvalidArgument, "SetDeviceMemory", "all experts are on the device")
	torchtest.WantError(t, m.SetDeviceMemory(0), cgotorch.ErrInvalidArgument, "DeviceMemory is 0")
	torchtest.WantError(t, m.SetDeviceMemory(-1), cgotorch.ErrInvalidArgument, "DeviceMemory is -1")
	err := m.OwnStream().Do(func(*cgotorch.Exec) error { return m.SetDeviceMemory(m.BudgetFor(3)) })
	torchtest.WantError(t, err, cgotorch.ErrMisuse)
}
