package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// llamas are the configurations of Llama 3's models by their size.
var llamas = map[string]map[string]any{
	"1b":   llama(2048, 16, 64, 8192, true),
	"8b":   llama(4096, 32, 128, 14336, false),
	"tiny": llama(128, 2, 4, 256, true), // for -brief
}

func llama(width, layers, head, inner int, tied bool) map[string]any {
	return map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
		"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": head,
		"intermediate_size": inner, "vocab_size": 128256, "tie_word_embeddings": tied, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
		"max_position_embeddings": 8192, "bos_token_id": 128000, "eos_token_id": 128001, "attention_bias": false, "mlp_bias": false,
	}
}

// benchText returns a benchmark of one conversation with a model of random weights. The sides are
// tokens of [text.Conversation.Generate], PyTorch's own graph of such a token, and transformers.
func benchText(size string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		if c.brief {
			size = "tiny"
		}
		r := &textRun{c: c, size: size, emit: emit}
		defer r.close()
		if err := r.prepare(); err != nil {
			return err
		}
		for _, n := range r.contexts {
			if err := r.tokens(n); err != nil {
				return fmt.Errorf("context %d: %w", n, err)
			}
		}
		return nil
	}
}

// textRun is a run of the rows of one model.
type textRun struct {
	c        *config
	s        switches
	size     string
	folder   string // has config.json
	contexts []int
	m        *text.Model
	narrow   map[string]*text.Model // by Options.Quantize
	peers    [2]*peer               // the hand-written decoder, and transformers
	emit     func(row)
}

func (r *textRun) close() {
	for _, p := range r.peers {
		if p != nil {
			p.close()
		}
	}
	r.m.Close()
	for _, m := range r.narrow {
		m.Close()
	}
	os.RemoveAll(r.folder)
}

func (r *textRun) prepare() (err error) {
	r.contexts = []int{128, 1024}
	if r.folder, err = configFolder(llamas[r.size]); err != nil {
		return err
	}
	device := r.c.device.String()
	for i := range r.peers {
		if r.peers[i], err = r.c.startPeer("text.py", r.s); err != nil {
			return err
		}
	}
	err = errors.Join(
		r.peers[0].do(nil, "prepare", "config", llamas[r.size], "device", device, "contexts", r.contexts, "graph", r.c.device.IsCUDA()),
		r.peers[1].do(nil, "prepare_transformers", "config", llamas[r.size], "device", device))
	if err != nil {
		return err
	}
	began := time.Now()
	r.m, err = text.Open(r.c.device, r.folder, text.Options{RandomWeights: 1})
	r.c.tell(fmt.Sprintf("ours is ready after %.1f s", time.Since(began).Seconds()))
	r.narrow = map[string]*text.Model{}
	for _, form := range []string{"int8", "fp8"} {
		if err == nil {
			r.narrow[form], err = text.Open(r.c.device, r.folder, text.Options{RandomWeights: 1, Quantize: form})
		}
	}
	return err
}

// configFolder makes a folder with a config.json alone.
func configFolder(config map[string]any) (string, error) {
	folder, err := os.MkdirTemp("", "bench-text-")
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "config.json"), data, 0o666)
	}
	return folder, err
}

// tokens makes the rows of one context.
func (r *textRun) tokens(length int) error {
	steps := r.c.or(4, 64)
	conversation := r.m.NewConversation()
	defer conversation.Close()
	var prompts, rest sample
	ours := func() (float64, error) {
		first, each, err := answer(conversation, greedy, length, steps)
		prompts = append(prompts, first)
		return each, err
	}
	transformers := func() (float64, error) {
		var reply struct{ Milliseconds, Prompt float64 }
		err := r.peers[1].do(&reply, "transformers_block", "context", length, "steps", steps)
		rest = append(rest, reply.Prompt)
		return reply.Milliseconds, err
	}
	sides := []side{ours, r.peers[0].value("milliseconds", "block", "context", length, "steps", steps), transformers}
	if r.c.device.IsCUDA() {
		sides = append(sides, r.peers[0].value("milliseconds", "block", "context", length, "steps", steps, "form", "compiled"))
	}
	values, err := interleave(r.c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	weights, _ := r.m.Memory()
	common := fmt.Sprintf("batch 1, bfloat16, random weights, %d tokens behind a context of %d; %.2f TB/s of weights; %s; %v; %s",
		steps, length, float64(weights)/values[0].median()/1e9, r.c.settings(), r.s, r.peers[0].versions)
	name := fmt.Sprintf("text/llama-%s/%d/", r.size, length)
	peer := "PyTorch graph"
	if !r.c.device.IsCUDA() {
		peer = "PyTorch eager"
	}
	r.emit(inTurns(name+"token", values[0], "ms", peer, values[1], lower, fmt.Sprintf("ours %v; peer %v; %s", values[0], values[1], common)))
	if r.c.device.IsCUDA() {
		r.emit(inTurns(name+"token-compile", values[0], "ms", "torch.compile in a graph", values[3], lower, common))
	}
	r.emit(inTurns(name+"token-generate", values[0], "ms", "transformers generate", values[2], lower, common))
	r.emit(inTurns(name+"prompt-generate", prompts[1:], "ms", "transformers generate", rest[1:], lower, "the first token with its prompt; "+common))
	drawn := text.GenerateOptions{Temperature: 0.8, TopK: 50, TopP: 0.95}
	return errors.Join(
		r.beside(name+"token-drawn", r.m, drawn, length, steps, ours, "temperature 0.8, top-k 50, top-p 0.95; "+common),
		r.beside(name+"token-int8", r.narrow["int8"], greedy, length, steps, ours, common),
		r.beside(name+"token-fp8", r.narrow["fp8"], greedy, length, steps, ours, common))
}

var greedy = text.GenerateOptions{Greedy: true}

// beside makes the row of other tokens than the likeliest of bfloat16, beside those.
func (r *textRun) beside(name string, m *text.Model, o text.GenerateOptions, length, steps int, likeliest func() (float64, error), common string) error {
	conversation := m.NewConversation()
	defer conversation.Close()
	values, err := interleave(r.c.roundsOr(7), func() (float64, error) {
		_, each, err := answer(conversation, o, length, steps)
		return each, err
	}, likeliest)
	if err != nil {
		return err
	}
	r.emit(inTurns(name, values[0], "ms", "greedy in bfloat16", values[1], lower,
		fmt.Sprintf("the weights changed by %.4f of their length; ours %v; peer %v; %s", m.QuantizationError(), values[0], values[1], common)))
	return nil
}

// answer lets a conversation answer a prompt of `length` tokens that it has not seen. It returns
// the milliseconds of the first token, and of each of the `steps` tokens behind it.
func answer(c *text.Conversation, o text.GenerateOptions, length, steps int) (first, each float64, err error) {
	prompt := make([]int64, length)
	for i := range prompt {
		prompt[i] = int64(1 + i%100)
	}
	prompt[0] = 200 + time.Now().UnixNano()%100_000 // what the cache has is of no use
	began := time.Now()
	n := 0
	o.MaxTokens, o.IgnoreEnd = steps+1, true
	for _, err := range c.Generate(context.Background(), prompt, o) {
		if err != nil {
			return 0, 0, err
		}
		if n == 0 {
			first = time.Since(began).Seconds() * 1e3
			began = time.Now()
		}
		n++
	}
	if n != steps+1 {
		return 0, 0, fmt.Errorf("the answer has %d tokens, want %d", n, steps+1)
	}
	return first, time.Since(began).Seconds() * 1e3 / float64(steps), nil
}

// saveModel writes a model as Hugging Face does.
func saveModel(m *text.Model, folder string) error {
	return cgotorch.DefaultStream(m.Weights[0].Tensor.Device()).Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) })
}

// benchTextLoad measures the load of a folder with the weights of an 8B model, whose files are in
// the page cache.
func benchTextLoad(c *config, emit func(row)) error {
	size := "8b"
	if c.brief {
		size = "tiny"
	}
	folder, err := configFolder(llamas[size])
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	m, err := text.Open(c.device, folder, text.Options{RandomWeights: 1})
	if err != nil {
		return err
	}
	bytes, _ := m.Memory()
	saved := filepath.Join(folder, "saved")
	if err := errors.Join(saveModel(m, saved), m.Close()); err != nil {
		return err
	}
	var s switches
	p, err := c.startPeer("text.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	var grown sample // of host memory, in MiB
	ours := func() (float64, error) {
		failed := resetPeak()
		before, began := peakMiB(), time.Now()
		m, err := text.Open(c.device, saved, text.Options{})
		took := time.Since(began).Seconds()
		grown = append(grown, peakMiB()-before)
		return took, errors.Join(failed, err, m.Close())
	}
	values, err := interleave(c.roundsOr(3), ours, p.value("seconds", "load", "folder", saved, "device", c.device.String()))
	if err != nil {
		return err
	}
	emit(inTurns("text/load/"+size, values[0], "s", "transformers", values[1], lower,
		fmt.Sprintf("%.2f GB of bfloat16 in safetensors, in one file, in the page cache; our host memory grew by %.0f MiB; ours %v; peer %v; %s; %s", float64(bytes)/1e9, grown.max(), values[0], values[1], c.settings(), p.versions)))
	return nil
}
