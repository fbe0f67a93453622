package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
)

// decoderConfig is a model with a token for each byte, and for the marks of decoderTokenizer.
const decoderConfig = `{"model_type": "llama", "vocab_size": 260, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
	"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
	"rope_theta": 10000.0, "eos_token_id": 256, "bos_token_id": 257, "torch_dtype": "float32"}`

// decoderTemplate writes chats and calls in the form of Qwen.
const decoderTemplate = `{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}`

// decoderTokenizer returns a tokenizer.json of bytes, whose names are those of byte-level BPE.
func decoderTokenizer(t testing.TB) []byte {
	vocab, other := map[string]int{}, rune(256)
	for b := range 256 {
		name := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			name = other
			other++
		}
		vocab[string(name)] = b
	}
	var added []map[string]any
	for i, name := range []string{"<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"} {
		added = append(added, map[string]any{"id": 256 + i, "content": name, "special": i < 2, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false})
	}
	return must.Get(json.Marshal(map[string]any{
		"added_tokens": added, "pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder": map[string]any{"type": "ByteLevel"}, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	}))(t)
}

// writeDecoder writes the folder of a language model with random weights.
func writeDecoder(t testing.TB) (folder string) {
	folder = t.TempDir()
	for name, text := range map[string][]byte{
		"config.json": []byte(decoderConfig), "tokenizer.json": decoderTokenizer(t), "chat_template.jinja": []byte(decoderTemplate),
		"generation_config.json": fmt.Appendf(nil, `{"eos_token_id": 256, "do_sample": true}`),
	} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), text, 0o644))
	}
	m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 5}))(t)
	defer m.Close()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) }))
	return folder
}
