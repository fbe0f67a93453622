package text_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A token reads all weights but the embeddings of other tokens and the experts that are not picked,
// and of a layer with a window no more than the window.
func TestModel_ReadBytes(t *testing.T) {
	const sizes = `"vocab_size": 10, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 4, "max_position_embeddings": 64, "dtype": "bfloat16"`
	const attention, keys = 8*16*2 + 8*8*2, 2 * 2 * 2 * 4 // elements of a layer's attention, and of a token's keys and values in both layers
	for name, c := range map[string]struct {
		config string
		tokens int
		want   int64
	}{
		"head":   {`{"model_type": "llama", ` + sizes + `}`, 5, 2*(8+80+2*(attention+3*8*6)+5*keys) + 4*5*8},
		"tied":   {`{"model_type": "llama", "tie_word_embeddings": true, ` + sizes + `}`, 5, 2*(80+2*(attention+3*8*6)+5*keys) + 4*5*8},
		"window": {`{"model_type": "mistral", "sliding_window": 3, ` + sizes + `}`, 5, 2*(8+80+2*(attention+3*8*6)+3*keys) + 4*5*8},
		"experts": {`{"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": null, ` + sizes + `}`, 5,
			2*(8+80+2*(attention+2*3*8*6)+5*keys) + 4*(5*8+2*8*5)}, // routers are float32
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.CheckLeaks(t)
			folder := t.TempDir()
			must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(c.config), 0o600))
			m := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1}))(t)
			defer m.Close()
			if got := m.ReadBytes(c.tokens); got != c.want {
				t.Errorf("a token reads %d bytes, want %d", got, c.want)
			}
			if m.Context() != 64 {
				t.Errorf("Context is %d", m.Context())
			}
		})
	}
}

// Experts of 4 bits are counted: a pick reads 64 rows of 80 bytes twice in each of 8 layers.
func TestModel_ReadBytes_Codes4(t *testing.T) {
	for _, quantize := range formsOf4 {
		read := map[int]int64{}
		for _, top := range []int{1, 3} {
			folder := t.TempDir()
			config := fmt.Sprintf(`{"model_type": "mixtral", "vocab_size": 10, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
				"head_dim": 16, "max_position_embeddings": 64, "num_local_experts": 6, "num_experts_per_tok": %d}`, top)
			must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o600))
			m := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Quantize: quantize}))(t)
			read[top] = m.ReadBytes(0)
			must.Do(t, m.Close())
		}
		if got, want := read[3]-read[1], int64(2*8*2*64*80); got != want {
			t.Errorf("%s: two picks more read %d bytes more, want %d", quantize, got, want)
		}
	}
}
