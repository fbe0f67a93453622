package text_test

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// tokenConfigs have what the kernels of a token tell apart: heads that share keys, norms of heads
// and behind layers, biases, windows, caps, sinks, partial rotations, experts.
var tokenConfigs = map[string]string{
	"llama": `"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16`,
	"qwen2": `"model_type": "qwen2", "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 48`,
	"qwen3": `"model_type": "qwen3", "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32`,
	"gemma2": `"model_type": "gemma2", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 12,
		"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0`,
	"gemma3": `"model_type": "gemma3_text", "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 20, "sliding_window_pattern": 2`,
	"phi3":   `"model_type": "phi3", "num_attention_heads": 2, "head_dim": 80, "partial_rotary_factor": 0.4, "original_max_position_embeddings": 4096, "pad_token_id": 0`,
	"olmo2":  `"model_type": "olmo2", "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 96`,
	"gptoss": `"model_type": "gpt_oss", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2`,
}

func tokenModel(t *testing.T, name string) *text.Model {
	config := `{"vocab_size": 1031, "hidden_size": 72, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 4096, "initializer_range": 0.2, ` +
		tokenConfigs[name] + "}"
	dtype := cgotorch.Float32
	if torchtest.Device().IsCUDA() {
		dtype = cgotorch.BFloat16
	}
	return openRandom(t, config, text.Options{DType: dtype})
}

// The kernels of a token give what the layers give that also run prompts. Their edges give equal
// bits.
func TestModel_TokenKernels(t *testing.T) {
	torchtest.CheckLeaks(t)
	r := rand.New(rand.NewPCG(1, 2))
	for name := range tokenConfigs {
		t.Run(name, func(t *testing.T) {
			m := tokenModel(t, name)
			prompt := randomTokens(r, 29)
			m.Edge("")
			c := m.NewConversation()
			answer, _ := tokensOf(t, c, prompt, text.GenerateOptions{MaxTokens: 60, Greedy: true, IgnoreEnd: true})
			c.Close()
			want := logsOf(t, m, prompt, answer, text.GenerateOptions{MaxTokens: len(answer), IgnoreEnd: true})
			var first []float64
			for _, edge := range []string{"full", "early", "wait"} {
				m.Edge(edge)
				if s := m.KernelStats(); !s.Own {
					t.Fatalf("KernelStats says %+v", s)
				}
				got := logsOf(t, m, prompt, answer, text.GenerateOptions{MaxTokens: len(answer), IgnoreEnd: true})
				if first == nil {
					first = got
				}
				if !slices.Equal(got, first) {
					t.Errorf("edges %s give other log probabilities than full ones", edge)
				}
				tolerance := 1e-4
				if torchtest.Device().IsCUDA() {
					tolerance = 0.04 // both round to bfloat16 at other places, and may pick other experts
				}
				if d := medianDistance(got, want); d > tolerance {
					t.Errorf("edges %s: log probabilities are %v, and LibTorch's layers give %v: distance %v", edge, got, want, d)
				}
				c := m.NewConversation()
				ids, logs := tokensOf(t, c, prompt, text.GenerateOptions{MaxTokens: 20, Greedy: true, IgnoreEnd: true})
				c.Close()
				again := logsOf(t, m, prompt, ids, text.GenerateOptions{MaxTokens: len(ids), IgnoreEnd: true})
				for i := range logs {
					if math.Abs(logs[i]-again[i]) > 1e-5 {
						t.Errorf("edges %s: the likeliest token %d has %v, and the sampler's operators give %v", edge, i, logs[i], again[i])
						break
					}
				}
			}
		})
	}
}

func medianDistance(a, b []float64) float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = math.Abs(a[i] - b[i])
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// A model whose shapes the kernels do not take says so, and runs.
func TestModel_KernelStats(t *testing.T) {
	m := openRandom(t, configs["llama"], text.Options{})
	s := m.KernelStats()
	if s.Own || s.Reason == "" {
		t.Errorf("a model with heads of 8 elements says %+v", s)
	}
	if torchtest.Device().IsCUDA() != strings.Contains(s.Reason, "needed") {
		t.Errorf("the reason on %v is %q", torchtest.Device(), s.Reason)
	}
}

// The limits by which a model takes the kernels are those that the kernels check.
func TestKernelLimits(t *testing.T) {
	source := ""
	for _, name := range []string{"token_linear.cc", "token_attention.cc"} {
		source += string(must.Get(os.ReadFile(filepath.Join("../../csrc/kernels", name)))(t))
	}
	for name, limit := range text.KernelLimits {
		if found := regexp.MustCompile(name + ` = (\d+)`).FindStringSubmatch(source); found == nil || found[1] != strconv.Itoa(limit) {
			t.Errorf("csrc/kernels has %v, want %s = %d", found, name, limit)
		}
	}
}
