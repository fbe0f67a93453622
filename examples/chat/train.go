package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// Tokens of the small model that stand for no text. A text and a turn of a chat end with `end`.
const end, user, assistant = "<|end|>", "<|user|>", "<|assistant|>"

const template = `{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`

const (
	rows    = 4   // of a batch
	columns = 257 // tokens of a row; each but the last predicts the next one
)

// trainModel writes a small Llama into a new folder, and trains it for a while.
func trainModel(device cgotorch.Device, texts, folder string, limit time.Duration) error {
	if there, _ := filepath.Glob(filepath.Join(folder, "*.safetensors")); len(there) > 0 {
		return fmt.Errorf("%s is there already: give -train another folder, or delete the file", there[0])
	}
	learn, held, err := readTexts(texts)
	if err == nil {
		err = writeFolder(folder, learn)
	}
	if err != nil {
		return err
	}
	m, err := text.Open(device, folder, text.Options{RandomWeights: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	t := &trainer{model: m, stream: cgotorch.DefaultStream(device), limit: limit}
	if err := t.train(learn); err != nil {
		return err
	}
	if err := t.stream.Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) }); err != nil {
		return err
	}
	return t.report(held)
}

// writeFolder writes all files of a model but its weights.
func writeFolder(folder string, texts []string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	special := []string{end, user, assistant, "<|system|>"}
	tokens, err := writeTokenizer(filepath.Join(folder, "tokenizer.json"), texts, 4096, special)
	if err != nil {
		return err
	}
	for name, content := range map[string]any{
		"config.json": map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "float32", "vocab_size": tokens, "tie_word_embeddings": true,
			"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
			"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "eos_token_id": tokens - len(special), "bos_token_id": nil,
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "chat_template": template, "clean_up_tokenization_spaces": false,
		},
	} {
		data, err := json.MarshalIndent(content, "", "  ")
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trainer trains a model until its time is over.
type trainer struct {
	model      *text.Model
	stream     *cgotorch.Stream
	optimizers []*optim.Optimizer
	schedule   optim.Schedule // has the factor of the learning rates for each thousandth of the time
	limit      time.Duration
	begin      time.Time
	told       time.Time // when progress was printed last
	seen       int       // tokens
}

func (t *trainer) train(texts []string) error {
	ids := t.encode(texts)
	if len(ids) < rows*columns {
		return fmt.Errorf("the texts have %d tokens, and a batch has %d: give more -texts", len(ids), rows*columns)
	}
	table := cgotorch.Must(data.NewTable(data.Of("ids", ids[:len(ids)/columns*columns], columns)))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: rows, Shuffle: true, DropLast: true}))
	defer loader.Close()
	ahead := cgotorch.Must(prefetcher.NewTensors(loader, t.stream.Device(), prefetcher.TensorOptions{}))
	defer ahead.Close()

	var matrices, others optim.Group
	for _, n := range nn.NamedParameters(t.model) {
		if strings.HasSuffix(n.Name, "proj.weight") {
			matrices.Params = append(matrices.Params, n.Tensor)
		} else {
			others.Params = append(others.Params, n.Tensor)
		}
	}
	t.optimizers = []*optim.Optimizer{
		cgotorch.Must(optim.NewMuon(optim.MuonOptions{LR: 0.02, WeightDecay: 0.01}, matrices)),
		cgotorch.Must(optim.NewAdamW(optim.AdamOptions{LR: 0.003, Betas: cgotorch.Set([2]float64{0.9, 0.95})}, others)),
	}
	t.schedule = optim.Warmup(30, 0.01, optim.Cosine(970, 0.05))
	t.begin = time.Now()
	ctx, stop := context.WithTimeout(context.Background(), t.limit)
	defer stop()
	var err error
	for err == nil {
		_, err = cgotorch.DoEach(t.stream, ahead.Epoch(ctx), func(x *cgotorch.Exec, batch *prefetcher.TensorBatch) { t.step(x, batch.Use(x)["ids"]) })
	}
	for _, o := range t.optimizers {
		err = errors.Join(err, o.Close())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

func (t *trainer) encode(texts []string) (ids []int64) {
	for _, text := range texts {
		ids = append(ids, t.model.Tokenizer.Encode(text)...)
	}
	return ids
}

func (t *trainer) step(x *cgotorch.Exec, ids *cgotorch.Tensor) {
	passed := time.Since(t.begin)
	for _, o := range t.optimizers {
		o.SetScale(t.schedule(int(1000 * min(passed, t.limit) / t.limit)))
		o.ZeroGrad()
	}
	loss := t.loss(x, ids)
	x.Backward(loss)
	optim.ClipGradNorm(x, nn.Parameters(t.model), 1)
	for _, o := range t.optimizers {
		o.Step(x)
	}
	t.seen += rows * (columns - 1)
	if time.Since(t.told) > 10*time.Second {
		t.told = time.Now()
		fmt.Fprintf(os.Stderr, "%4.0f s: loss %.2f, %.0f tokens/s\n", passed.Seconds(), x.Item(loss), float64(t.seen)/time.Since(t.begin).Seconds())
	}
}

// loss is the mean cross entropy of each next token, for ids [rows, columns].
func (t *trainer) loss(x *cgotorch.Exec, ids *cgotorch.Tensor) *cgotorch.Tensor {
	n := int(ids.Shape()[1]) - 1
	logits := t.model.Forward(x, x.Narrow(ids, 1, 0, n))
	return nn.CrossEntropy(x, x.Flatten(logits, 0, 1), x.Reshape(x.Narrow(ids, 1, 1, n), -1), nn.CrossEntropyOptions{})
}

// report prints how well the model predicts texts that it has not seen, beside gzip.
func (t *trainer) report(held []string) error {
	plain := strings.NewReplacer(end, "", user, "", assistant, "").Replace(strings.Join(held, ""))
	packed := new(bytes.Buffer)
	w, _ := gzip.NewWriterLevel(packed, gzip.BestCompression) // the level is legal
	if _, err := w.Write([]byte(plain)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	bits, ids := 0.0, append(t.encode([]string{end}), t.encode(held)...)
	for at := 0; at+1 < len(ids); at += columns - 1 {
		row := ids[at:min(at+columns, len(ids))]
		if err := t.stream.Do(func(x *cgotorch.Exec) error {
			loss := t.loss(x.NoGrad(), cgotorch.FromSlice(x, row, 1, int64(len(row))))
			bits += x.Item(loss) * float64(len(row)-1) / math.Ln2
			return nil
		}); err != nil {
			return err
		}
	}
	size := float64(len(plain))
	fmt.Fprintf(os.Stderr, "%d tokens seen in %v; held-out texts of %.0f bytes take %.3f bits a byte, and %.3f with gzip -9\n",
		t.seen, t.limit, size, bits/size, 8*float64(packed.Len())/size)
	return nil
}
