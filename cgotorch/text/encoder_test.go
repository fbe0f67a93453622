package text_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// encoders has tiny models with what sentence-transformers makes of them.
const encoders = "../../tests/parity/encoders/testdata"

func openEncoder(t *testing.T, d cgotorch.Device, name string, o text.EncoderOptions) *text.Encoder {
	t.Helper()
	e := must.Get(text.OpenEncoder(d, filepath.Join(encoders, name), o))(t)
	t.Cleanup(func() { must.Do(t, e.Close()) })
	return e
}

// apartBy returns the largest difference of two vectors.
func apartBy(a, b []float32) (most float64) {
	for i := range a {
		most = max(most, math.Abs(float64(a[i]-b[i])))
	}
	return most
}

// Calls of many goroutines, in batches of a few tokens, get their own vectors. A call with a bad
// text fails alone.
func TestEncoder_Goroutines(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		e := openEncoder(t, d, "mpnet", text.EncoderOptions{Tokens: 40})
		var texts []string
		for i := range 60 {
			texts = append(texts, strings.Repeat("the tide turns ", i%7)+fmt.Sprint(i))
		}
		want := must.Get(e.Embed(t.Context(), texts))(t)
		var all sync.WaitGroup
		for k := range 12 {
			all.Add(1)
			go func() {
				defer all.Done()
				if k%4 == 3 {
					if _, err := e.EmbedTokens(t.Context(), [][]int64{{0, 5, 2}, {0, 90, 2}}); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "text 1") {
						t.Errorf("an id that is no token: got %v", err)
					}
					return
				}
				some := texts[k : 40+k]
				got, err := e.Embed(t.Context(), some)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range some {
					if d := apartBy(got[i], want[k+i]); !(d <= 1e-6) {
						t.Errorf("goroutine %d, text %d: the vector differs by %.2g", k, i, d)
					}
				}
			}()
		}
		all.Wait()
	})
}

// A call fails before its texts become tokens if too many wait, and when its ctx has ended.
func TestEncoder_Queue(t *testing.T) {
	e := openEncoder(t, cgotorch.CPU, "bert", text.EncoderOptions{Queue: 2})
	e.Occupy(2)
	if _, err := e.Embed(t.Context(), []string{"a"}); !errors.Is(err, serve.ErrQueueFull) {
		t.Errorf("with a full queue: got %v, want ErrQueueFull", err)
	}
	e.Occupy(-2)
	cause := errors.New("the user has left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := e.Embed(ctx, []string{"a"}); !errors.Is(err, cause) {
		t.Errorf("with a ctx that has ended: got %v, want its cause", err)
	}
	if got, err := e.Embed(t.Context(), nil); len(got) != 0 || err != nil {
		t.Errorf("of no text: got %v (%v)", got, err)
	}
}

// Calls take no more places than the queue has, while their texts become tokens and after.
func TestEncoder_QueueBound(t *testing.T) {
	const most = 3
	e := openEncoder(t, cgotorch.CPU, "bert", text.EncoderOptions{Queue: most})
	var all sync.WaitGroup
	for range 12 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 50 {
				if _, err := e.Embed(t.Context(), []string{"a boat", "b"}); err != nil && !errors.Is(err, serve.ErrQueueFull) {
					t.Error(err)
				}
				if n := e.Stats().Waiting; n < 0 || n > most {
					t.Errorf("%d calls wait in a queue of %d", n, most)
				}
			}
		}()
	}
	all.Wait()
}

// A vector that is no numbers is an error of its call, and of no other.
func TestEncoder_NaN(t *testing.T) {
	folder := t.TempDir()
	must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join(encoders, "bert"))))
	path := filepath.Join(folder, "model.safetensors")
	data := must.Get(os.ReadFile(path))(t)
	header := 8 + int(binary.LittleEndian.Uint64(data))
	var tensors map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	must.Do(t, json.Unmarshal(data[8:header], &tensors))
	const id, width = 7, 16
	row := data[header+tensors["embeddings.word_embeddings.weight"].Offsets[0]+4*width*id:]
	binary.LittleEndian.PutUint32(row, math.Float32bits(float32(math.NaN())))
	must.Do(t, os.WriteFile(path, data, 0o600))
	e := must.Get(text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{}))(t)
	defer e.Close()
	if _, err := e.EmbedTokens(t.Context(), [][]int64{{5}, {id, 6}}); err == nil || !strings.Contains(err.Error(), "text 1: the model has computed NaN") {
		t.Errorf("with a weight that is NaN: got %v", err)
	}
	if _, err := e.EmbedTokens(t.Context(), [][]int64{{5}, {6}}); err != nil {
		t.Error(err)
	}
}

// Calls that wait end with their ctx, and with Close.
func TestEncoder_Close(t *testing.T) {
	torchtest.CheckLeaks(t)
	e := must.Get(text.OpenEncoder(cgotorch.CPU, filepath.Join(encoders, "bert"), text.EncoderOptions{Tokens: 1}))(t)
	begun, release := make(chan struct{}), make(chan struct{})
	go e.Stream().Do(func(*cgotorch.Exec) error {
		close(begun)
		<-release
		return nil
	})
	<-begun
	cause := errors.New("the user has left")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	for _, ctx := range []context.Context{ctx, t.Context()} {
		go func() {
			_, err := e.Embed(ctx, []string{"a", "b", "c"})
			ended <- err
		}()
	}
	for e.Waiting() < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel(cause)
	if err := <-ended; !errors.Is(err, cause) {
		t.Errorf("when ctx ends: got %v, want its cause", err)
	}
	closed := make(chan error)
	go func() { closed <- e.Close() }()
	if err := <-ended; !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("when the Encoder is closed: got %v, want ErrClosed", err)
	}
	close(release)
	must.Do(t, <-closed)
	must.Do(t, e.Close())
	if _, err := e.Embed(t.Context(), []string{"a"}); !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("after Close: got %v, want ErrClosed", err)
	}
}

// Bad arguments are refused, each with its place.
func TestEncoder_Arguments(t *testing.T) {
	e, ranker := openEncoder(t, cgotorch.CPU, "bert", text.EncoderOptions{}), openEncoder(t, cgotorch.CPU, "cross-bert", text.EncoderOptions{})
	_, few := e.EmbedTokens(t.Context(), [][]int64{{1}, {}})
	_, many := e.EmbedTokens(t.Context(), [][]int64{slices.Repeat([]int64{1}, 21)})
	_, below := e.EmbedTokens(t.Context(), [][]int64{{-1}})
	_, vectors := ranker.Embed(t.Context(), []string{"a"})
	_, scores := e.Rank(t.Context(), "a", []string{"b"})
	_, prompt := e.WithPrompt("question")
	_, option := text.OpenEncoder(cgotorch.CPU, filepath.Join(encoders, "bert"), text.EncoderOptions{Tokens: -1})
	_, name := text.OpenEncoder(cgotorch.CPU, filepath.Join(encoders, "bert"), text.EncoderOptions{Prompt: "question"})
	folder := t.TempDir()
	must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join(encoders, "cross-bert"))))
	writeJSON(t, filepath.Join(folder, "config_sentence_transformers.json"), map[string]any{"prompts": map[string]string{"query": "find: "}})
	_, ranked := text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{Prompt: "query"})
	_, withPrompt := ranker.WithPrompt("")
	for want, err := range map[string]error{
		"leave EncoderOptions.Prompt out": ranked, "WithPrompt: the model ranks": withPrompt,
		"text 1: it has no tokens": few, "it has 21 tokens, and the model takes 20": many, "its ids are -1 to -1": below, "call Rank": vectors, "call Embed": scores,
		`there is no prompt "question", and prompts has ["document" "query"]`: prompt, "Tokens is -1": option, "no prompt": name,
	} {
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
	}
	if packed, all := e.Pack(); packed != 0 && packed != all {
		t.Errorf("%d of %d products have ordered weights", packed, all)
	}
}

// Folders that say something else than is computed are refused, with the file and the field.
func TestOpenEncoder_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, test := range []struct {
		model, file, field, value string
		want                      string
	}{
		{"bert", "config.json", "hidden_act", `"mish"`, `config.json: hidden_act or hidden_activation is "mish"`},
		{"bert", "config.json", "vocab_size", `16000000`, "tensor embeddings.word_embeddings.weight is F32[90 16]"},
		{"bert", "config.json", "num_hidden_layers", `1000`, "tensor encoder.layer.2.attention.self.query.weight is missing"},
		{"bert", "config.json", "num_hidden_layers", `1`, "is not the model's"},
		{"bert", "config.json", "hidden_size", `"many"`, "config.json: hidden_size is a string, want an integer"},
		{"bert", "config.json", "num_attention_heads", `3`, "no multiple of num_attention_heads, 3"},
		{"bert", "config.json", "position_embedding_type", `"relative_key"`, "position_embedding_type"},
		{"bert", "config.json", "is_decoder", `true`, "is_decoder"},
		{"bert", "config.json", "model_type", `"albert"`, `model_type is "albert" (BertModel), and only the encoders bert, modernbert`},
		{"bert", "config.json", "type_vocab_size", `3`, "tensor embeddings.token_type_embeddings.weight"},
		{"bert", "sentence_bert_config.json", "do_lower_case", `true`, "do_lower_case is true: add"},
		{"bert", "sentence_bert_config.json", "max_seq_length", `0`, "max_seq_length is 0"},
		{"bert", "sentence_bert_config.json", "max_seq_length", `2`, "2 stand around it"},
		{"bert", "1_Pooling/config.json", "pooling_mode", `"median"`, "1_Pooling/config.json: pooling_mode is median"},
		{"bert", "1_Pooling/config.json", "embedding_dimension", `17`, "embedding_dimension or word_embedding_dimension is 17"},
		{"qwen3", "1_Pooling/config.json", "include_prompt", `false`, "include_prompt is false"},
		{"qwen3", "config.json", "vocab_size", `1000`, "tensor embed_tokens.weight is F32[90 16]"},
		{"bert-dense", "2_Dense/config.json", "activation_function", `"my.module.Tanh"`, `2_Dense/config.json: activation_function is "my.module.Tanh"`},
		{"bert-dense", "2_Dense/config.json", "in_features", `8`, "in_features is 8"},
		{"bert-dense", "2_Dense/config.json", "out_features", `8`, "tensor linear.weight is F32[10 16]"},
		{"cross-bert", "tokenizer_config.json", "model_max_length", `3`, "3 stand around it"},
		{"cross-bert", "config.json", "id2label", `{"0": "no", "1": "yes"}`, "2 labels"},
		{"cross-bert", "config_sentence_transformers.json", "activation_fn", `"torch.nn.modules.activation.Softplus"`, "activation_fn"},
		{"mpnet", "config.json", "relative_attention_num_buckets", `16`, "relative_attention_num_buckets"},
		{"modernbert", "config.json", "layer_types", `["full_attention"]`, "layer_types has 1 entries"},
		{"modernbert", "config.json", "local_attention", `0`, "local_attention is 0"},
		{"modernbert", "config.json", "rope_scaling", `{"rope_type": "yarn"}`, "rope_scaling"},
	} {
		t.Run(test.model+"/"+test.field, func(t *testing.T) {
			folder := t.TempDir()
			must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join(encoders, test.model))))
			path, fields := filepath.Join(folder, test.file), map[string]json.RawMessage{}
			must.Do(t, json.Unmarshal(must.Get(os.ReadFile(path))(t), &fields))
			fields[test.field] = json.RawMessage(test.value)
			writeJSON(t, path, fields)
			e, err := text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{})
			if err == nil {
				e.Close()
			}
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, test.want)
		})
	}
}

// The modules of a folder are refused if they are others, or lie outside of the folder.
func TestOpenEncoder_Modules(t *testing.T) {
	const transformer = `{"path": "", "type": "sentence_transformers.models.Transformer"}`
	for modules, want := range map[string]string{
		`[` + transformer + `]`: "modules.json has no Pooling",
		`[]`:                    "modules.json has no Pooling",
		`[{"path": "", "type": "mine.Transformer"}]`: `the type of module 0 is "mine.Transformer"`,
		`[` + transformer + `, ` + transformer + `]`: "the type of module 1",
		`{"path": ""}`: "modules.json: it is a object, want a list",
		`[` + transformer + `, {"path": "../x", "type": "sentence_transformers.models.Pooling"}]`:                                                                `the path of module 1 is "../x"`,
		`[` + transformer + `, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}, {"path": "", "type": "sentence_transformers.models.CNN"}]`: `CNN", want Normalize or Dense`,
	} {
		folder := t.TempDir()
		must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join(encoders, "bert"))))
		must.Do(t, os.WriteFile(filepath.Join(folder, "modules.json"), []byte(modules), 0o600))
		_, err := text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, want)
	}
}

// In narrower dtypes the vectors are near those of float32.
func TestEncoder_Narrow(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		texts := []string{"the tide of a small harbour turns twice in one day", "mud", "a boat", strings.Repeat("so that men can sail ", 8)}
		for _, name := range []string{"bert", "mpnet", "modernbert-bias", "qwen3"} {
			want := must.Get(openEncoder(t, d, name, text.EncoderOptions{}).Embed(t.Context(), texts))(t)
			for _, dtype := range []cgotorch.DType{cgotorch.BFloat16, cgotorch.Float16} {
				got := must.Get(openEncoder(t, d, name, text.EncoderOptions{DType: dtype}).Embed(t.Context(), texts))(t)
				for i := range texts {
					if far := apartBy(got[i], want[i]); !(far <= 0.05) {
						t.Errorf("%s in %v: vector %d differs by %.2g", name, dtype, i, far)
					}
				}
			}
		}
	})
}

// Batches of many sizes give each text the numbers that it has alone. On CUDA they are captured.
func TestEncoder_Captured(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, name := range []string{"bert", "bert-relu", "roberta", "xlm-roberta", "modernbert-bias", "qwen3"} {
			e := must.Get(text.OpenEncoder(d, filepath.Join(encoders, name), text.EncoderOptions{DType: cgotorch.BFloat16, Tokens: 600}))(t)
			var texts []string
			for i := range 60 {
				texts = append(texts, strings.Repeat("the tide turns ", i*i%14)+fmt.Sprint("mud ", i))
			}
			var want [][]float32
			for _, one := range texts {
				want = append(want, must.Get(e.Embed(t.Context(), []string{one}))(t)...)
			}
			for range 3 { // eager, captured, launched
				for _, n := range []int{1, 2, 3, 7, 20, 31, 60} {
					for at := 0; at+n <= len(texts); at += max(n, 9) {
						for i, row := range must.Get(e.Embed(t.Context(), texts[at:at+n]))(t) {
							if far := apartBy(row, want[at+i]); !(far <= 0.03*(1+largest(want[at+i]))) {
								t.Errorf("%s, text %d of %d at %d: the vector differs by %.2g", name, i, n, at, far)
							}
						}
					}
				}
			}
			if launches, why := e.Captured(); d.IsCUDA() && (launches < 20 || why != "") {
				t.Errorf("%s: %d launches, %q", name, launches, why)
			}
			must.Do(t, e.Close())
		}
	})
}

func largest(row []float32) (most float64) { return apartBy(row, make([]float32, len(row))) }

// The biases of MPNet are those of transformers' relative_position_bucket.
func TestBucket(t *testing.T) {
	for distance, want := range map[int]int64{0: 0, -1: 1, 1: 17, -7: 7, 7: 23, -8: 8, 8: 24, -11: 8, -12: 9, -16: 10, 31: 27, -63: 13, 64: 30, -127: 15, 128: 31, -5000: 15, 5000: 31} {
		if got := text.Bucket(distance); got != want {
			t.Errorf("of %d: got %d, want %d", distance, got, want)
		}
	}
}
