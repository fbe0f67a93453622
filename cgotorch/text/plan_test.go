package text_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// configFolder writes a config.json alone.
func configFolder(t *testing.T, config string) string {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
	return folder
}

// planned are models of all that takes memory: norms, biases, sinks, heads and experts.
var planned = map[string]string{
	"llama":   `"model_type": "llama", "attention_bias": true, "mlp_bias": true`,
	"mistral": `"model_type": "mistral", "sliding_window": 40`,
	"qwen2":   `"model_type": "qwen2", "tie_word_embeddings": true`,
	"qwen3":   `"model_type": "qwen3"`,
	"gemma2":  `"model_type": "gemma2", "sliding_window": 70`,
	"gemma3":  `"model_type": "gemma3_text", "sliding_window": 20, "sliding_window_pattern": 3`,
	"phi3":    `"model_type": "phi3", "pad_token_id": 0`,
	"olmo2":   `"model_type": "olmo2"`,
	"mixtral": mixtures["mixtral"],
	"moe":     mixtures["qwen3"],
	"gpt_oss": mixtures["gpt_oss"],
}

func plannedFolder(t *testing.T, name string) string {
	return configFolder(t, `{"vocab_size": 131, "hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 3,
		"num_key_value_heads": 1, "head_dim": 24, "max_position_embeddings": 900, `+planned[name]+"}")
}

// A model takes the memory that Plan tells, to the byte, and a page more does not fit.
func TestPlan_Open(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name := range planned {
		folder := plannedFolder(t, name)
		for _, o := range []text.Options{
			{DType: cgotorch.Float32}, {DType: cgotorch.Float64, Context: 300}, {DType: cgotorch.BFloat16, Context: 17},
			{DType: cgotorch.Float32, Quantize: "int8"}, {DType: cgotorch.Float32, Quantize: "int4", Context: 100}, {DType: cgotorch.Float32, Quantize: "int4-128"}, {DType: cgotorch.Float16, Quantize: "mxfp4", Context: 100},
		} {
			if o.RandomWeights = 3; o.Quantize == "mxfp4" && name != "mixtral" && name != "moe" && name != "gpt_oss" {
				continue
			}
			title, most := fmt.Sprintf("%s, %v, %q, Context %d", name, o.DType, o.Quantize, o.Context), int64(1<<21)
			if name == "mixtral" || name == "moe" || name == "gpt_oss" {
				most += 1 << 22
			}
			b, err := text.Plan(folder, most, o)
			if err != nil {
				t.Errorf("%s: %v", title, err)
				continue
			}
			o.CacheTokens = b.CacheTokens
			m := must.Get(text.Open(torchtest.Device(), folder, o))(t)
			weights, cache := m.Memory()
			must.Do(t, m.Close())
			if weights != b.Weights || b.Experts != 0 {
				t.Errorf("%s: the weights take %d bytes, and Plan tells %d and %d slots", title, weights, b.Weights, b.Experts)
			}
			if o.CacheTokens += 16; weights+cache > most {
				t.Errorf("%s: the model takes %d bytes of %d", title, weights+cache, most)
			}
			m = must.Get(text.Open(torchtest.Device(), folder, o))(t)
			weights, more := m.Memory()
			must.Do(t, m.Close())
			if weights+more <= most {
				t.Errorf("%s: %d tokens fit, and Plan tells %d", title, o.CacheTokens, b.CacheTokens)
			}
			if step := more - cache; b.WindowBytes == 0 && step != 16*b.TokenBytes {
				t.Errorf("%s: 16 more tokens take %d bytes, and one takes %d", title, step, b.TokenBytes)
			}
		}
	}
}

// So many conversations fit as Plan tells, and not one more.
func TestPlan_Conversations(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, most := range map[string]int64{"llama": 4 << 20, "gemma3": 4 << 20, "mistral": 4 << 20} {
		folder, o := plannedFolder(t, name), text.Options{DType: cgotorch.Float32, Context: 700, RandomWeights: 3}
		b := must.Get(text.Plan(folder, most, o))(t)
		o.CacheTokens = b.CacheTokens
		m := must.Get(text.Open(torchtest.Device(), folder, o))(t)
		for _, tokens := range []int{600, 90} {
			want := b.Conversations(tokens)
			if want < 2 {
				t.Errorf("%s: %d conversations of %d tokens, want some", name, want, tokens)
			}
			var all []*text.Conversation
			var err error
			for n := 0; err == nil && n <= want; n++ {
				all = append(all, m.NewConversation())
				if err = errorOf(t.Context(), all[n], make([]int64, tokens), text.GenerateOptions{MaxTokens: 1}); err != nil && n != want {
					t.Errorf("%s: conversation %d of %d tokens: %v, want %d", name, n, tokens, err, want)
				}
			}
			// Behind a prompt of several parts a window has less than within it.
			if (b.WindowBytes == 0 || tokens < 100) && !errors.Is(err, cgotorch.ErrOutOfMemory) {
				t.Errorf("%s: one conversation more than %d of %d tokens: got %v, want ErrOutOfMemory", name, want, tokens, err)
			}
			for _, c := range all {
				must.Do(t, c.Close())
			}
		}
		must.Do(t, m.Close())
		for _, tokens := range []int{-1, 0, 701} {
			if n := b.Conversations(tokens); n != 0 {
				t.Errorf("%s: %d conversations of %d tokens, want none", name, n, tokens)
			}
		}
	}
}

// Where experts do not all fit, Plan tells the slots that Open makes.
func TestPlan_Experts(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name := range mixtures {
		folder, o := mixtureFolder(t, name), text.Options{DType: cgotorch.BFloat16, Context: 100, RandomWeights: 3, PredictExperts: name == "mixtral"}
		all := must.Get(text.Plan(folder, 1<<30, o))(t)
		slots := 0
		for less := -50 * all.TokenBytes; less < all.Weights; less += all.Weights / 16 { // at first half a conversation fits
			o := o
			o.DeviceMemory = all.Weights - less
			b, err := text.Plan(folder, o.DeviceMemory, o)
			o.CacheTokens = b.CacheTokens
			if err != nil {
				_, opened := text.Open(torchtest.Device(), folder, o)
				if !errors.Is(err, cgotorch.ErrOutOfMemory) || !errors.Is(opened, cgotorch.ErrOutOfMemory) {
					t.Errorf("%s, %d bytes: Plan fails with %v, and Open with %v", name, o.DeviceMemory, err, opened)
				}
				continue
			}
			if torchtest.Device().IsCUDA() {
				continue // Open wants kernels that so small a model has not
			}
			m := must.Get(text.Open(torchtest.Device(), folder, o))(t)
			if weights, cache := m.Memory(); weights != b.Weights || weights+cache > o.DeviceMemory || b.Experts == 0 {
				t.Errorf("%s: the weights take %d bytes of %d, and Plan tells %d and %d slots", name, weights, o.DeviceMemory, b.Weights, b.Experts)
			}
			must.Do(t, m.Close())
			slots++
		}
		if slots < 2 && !torchtest.Device().IsCUDA() {
			t.Errorf("%s: %d budgets have slots, want some", name, slots)
		}
	}
}

// Known models have the weights and the cache that their publishers tell.
func TestPlan_Known(t *testing.T) {
	for name, known := range map[string]struct {
		weights float64 // numbers
		token   int64
		config  string
	}{
		"Llama-3.1-8B": {8030261248, 131072, `{"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
			"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`},
		"Qwen2.5-0.5B": {494032768, 12288, `{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
			"num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}`},
		"Qwen3-30B-A3B": {30532122624, 98304, `{"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
			"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
			"max_position_embeddings": 40960, "torch_dtype": "bfloat16"}`},
		"gpt-oss-20b": {20914757184, 12 * 2048, `{"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
			"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
			"max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`},
	} {
		b, err := text.Plan(configFolder(t, known.config), 80e9, text.Options{})
		if err != nil || math.Abs(float64(b.Weights)/(2*known.weights)-1) > 0.005 || b.TokenBytes != known.token || b.Experts != 0 {
			t.Errorf("%s: %+v, %v, want %.0f bytes of weights and %d a token", name, b, err, 2*known.weights, known.token)
		}
		t.Logf("%s in 80 GB: %d conversations of 4096 tokens", name, b.Conversations(4096))
		if used := float64(b.Weights) + float64(b.CacheTokens)*float64(b.TokenBytes); used > 80e9 || b.WindowBytes == 0 && used < 79.9e9 {
			t.Errorf("%s takes %.0f bytes of 80 GB", name, used)
		}
		if narrow := must.Get(text.Plan(configFolder(t, known.config), 80e9, text.Options{Quantize: "fp8"}))(t); narrow.Weights >= b.Weights || narrow.CacheTokens <= b.CacheTokens {
			t.Errorf("%s: with fp8 %+v, and without %+v", name, narrow, b)
		}
	}
}

// What cannot be planned is refused, with what is needed.
func TestPlan_Refused(t *testing.T) {
	folder := plannedFolder(t, "llama")
	for name, c := range map[string]struct {
		folder string
		memory int64
		o      text.Options
		kind   error
		text   string
	}{
		"no memory":       {folder, 0, text.Options{}, cgotorch.ErrInvalidArgument, "memory is 0"},
		"negative":        {folder, -5, text.Options{}, cgotorch.ErrInvalidArgument, "memory is -5"},
		"too little":      {folder, 1000, text.Options{}, cgotorch.ErrOutOfMemory, "or more"},
		"no experts room": {plannedFolder(t, "mixtral"), 1000, text.Options{}, cgotorch.ErrOutOfMemory, "or more"},
		"no folder":       {filepath.Join(folder, "gone"), 1 << 30, text.Options{}, os.ErrNotExist, "gone"},
		"no json":         {configFolder(t, "{"), 1 << 30, text.Options{}, cgotorch.ErrInvalidArgument, "config.json"},
		"Quantize":        {folder, 1 << 30, text.Options{Quantize: "int3"}, cgotorch.ErrInvalidArgument, "int3"},
		"mxfp4":           {folder, 1 << 30, text.Options{Quantize: "mxfp4"}, cgotorch.ErrInvalidArgument, "mxfp4"},
		"DType":           {folder, 1 << 30, text.Options{DType: cgotorch.Int64}, cgotorch.ErrInvalidArgument, "DType"},
		"Context":         {folder, 1 << 30, text.Options{Context: 901}, cgotorch.ErrInvalidArgument, "Context is 901"},
	} {
		if b, err := text.Plan(c.folder, c.memory, c.o); b.Conversations(1) != 0 {
			t.Errorf("%s: %+v has room for conversations", name, b)
		} else {
			torchtest.WantError(t, err, c.kind, "text: ", c.text)
		}
	}
	// The bytes that the error asks for are enough, and one less is not.
	need := int64(0)
	_, err := text.Plan(folder, 1000, text.Options{})
	_, after, _ := strings.Cut(err.Error(), "give ")
	fmt.Sscan(after, &need)
	if b, err := text.Plan(folder, need, text.Options{}); err != nil || b.CacheTokens != 16 {
		t.Errorf("with the %d bytes of the error: %+v, %v", need, b, err)
	}
	if _, err := text.Plan(folder, need-1, text.Options{}); !errors.Is(err, cgotorch.ErrOutOfMemory) {
		t.Errorf("with a byte less: got %v", err)
	}
}
