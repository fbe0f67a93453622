package text_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// trained has the models that training.py trains, and the number of steps.
var trained = map[string]int{
	"llama": 200, "qwen3-moe": 200,
	"llama-mha": 3, "llama3": 3, "mistral": 3, "qwen2-window": 3, "qwen3-tied": 3, "gemma2": 3, "gemma3": 3, "phi3-long": 3, "olmo2": 3, "mixtral": 3, "qwen3-moe-dense": 3, "gpt-oss": 3,
}

const trainedBatch, trainedLength = 2, 24 // of training.py

func training(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(torchtest.Python(t, "transformers"), append([]string{"training.py"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("training.py: %v\n%s", err, out)
	}
}

// Each loss of a training is that of transformers, for each family. transformers opens the folder
// that was saved afterwards, and has the same logits. The model generates by what it has learnt.
// A model that is saved untouched, in float32 or bfloat16, has the bytes of its folder.
func TestModel_Training(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	args := []string{"train", folder}
	for name, steps := range trained {
		args = append(args, fmt.Sprintf("%s=%d", name, steps))
	}
	training(t, args...)
	after, saved := map[string][]float32{}, []string{"open"}
	for name := range trained {
		t.Run(name, func(t *testing.T) {
			checkUntouched(t, filepath.Join(folder, name))
			checkUntouched(t, filepath.Join(folder, name+"-bfloat16"))
			m := must.Get(text.Open(cgotorch.CPU, filepath.Join(folder, name), text.Options{}))(t)
			defer m.Close()
			ids := elements[int64](t, filepath.Join(folder, name, "ids.bin"))
			want := elements[float64](t, filepath.Join(folder, name, "losses.bin"))
			furthest := 0.0
			for i, loss := range trainedLosses(t, m, ids) {
				furthest = max(furthest, math.Abs(loss-want[i]))
			}
			t.Logf("%d losses, from %.3f to %.3f, differ by %.2g", len(want), want[0], want[len(want)-1], furthest)
			if len(want) != trained[name] || !(furthest <= 1e-4) {
				t.Errorf("%d losses differ by %.2g, want at most 1e-4", len(want), furthest)
			}
			last := ids[len(ids)-trainedBatch*trainedLength:]
			after[name] = forward(t, m, trainedBatch, last)
			vocab := len(after[name]) / len(last)
			checkNext(t, m, last[:trainedLength], after[name][(trainedLength-1)*vocab:trainedLength*vocab])

			to := filepath.Join(folder, name+"-saved")
			save(t, m, to)
			must.Do(t, os.WriteFile(filepath.Join(to, "ids.bin"), must.Get(os.ReadFile(filepath.Join(folder, name, "ids.bin")))(t), 0o600))
			saved = append(saved, to)
		})
	}
	training(t, saved...)
	for name, got := range after {
		d := furthest(got, elements[float32](t, filepath.Join(folder, name+"-saved", "logits.bin")))
		t.Logf("%s: the logits of the saved folder differ by %.2g of the largest", name, d)
		if !(d <= 1e-5) {
			t.Errorf("%s: the logits of the saved folder differ by %.2g of the largest, want at most 1e-5", name, d)
		}
	}
}

// trainedLosses trains with the settings of training.py.
func trainedLosses(t *testing.T, m *text.Model, ids []int64) (losses []float64) {
	t.Helper()
	parameters := nn.Parameters(m)
	opt := must.Get(optim.NewAdamW(optim.AdamOptions{
		LR: 2e-3, Betas: cgotorch.Set([2]float64{0.9, 0.95}), Eps: 1e-6, WeightDecay: 0.1,
	}, optim.Group{Params: parameters}))(t)
	defer opt.Close()
	for ; len(ids) > 0; ids = ids[trainedBatch*trainedLength:] {
		must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
			batch := cgotorch.FromSlice(x, ids[:trainedBatch*trainedLength], trainedBatch, trainedLength)
			logits := x.Narrow(m.Forward(x, batch), 1, 0, trainedLength-1)
			labels := x.Reshape(x.Narrow(batch, 1, 1, trainedLength-1), -1)
			loss := nn.CrossEntropy(x, x.Reshape(logits, labels.Numel(), -1), labels, nn.CrossEntropyOptions{})
			opt.Minimize(x, loss)
			losses = append(losses, x.Item(loss))
			return nil
		}))
	}
	return losses
}

// checkNext checks the next token that the model generates against logits.
func checkNext(t *testing.T, m *text.Model, prompt []int64, logits []float32) {
	t.Helper()
	talk := m.NewConversation()
	defer talk.Close()
	for token, err := range talk.Generate(t.Context(), prompt, text.GenerateOptions{Greedy: true, MaxTokens: 1, IgnoreEnd: true}) {
		must.Do(t, err)
		if want := logProbability(logits, token.ID); !(math.Abs(token.LogProb-want) <= 1e-4) {
			t.Errorf("the next token has the log probability %v, and by the whole sequence %v", token.LogProb, want)
		}
		for id, v := range logits {
			if v > logits[token.ID] {
				t.Errorf("the next token is %d, and %d is likelier", token.ID, id)
			}
		}
	}
}

// Weights that are frozen do not change, and the others do.
func TestModel_Freeze(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	config := `{"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}`
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o600))
	m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 1}))(t)
	defer m.Close()
	nn.Freeze(m)
	const open = "model.layers.1.self_attn."
	var parameters []*cgotorch.Tensor
	for _, n := range m.Weights {
		if strings.HasPrefix(n.Name, open) {
			must.Do(t, n.Tensor.SetRequiresGrad(true))
			parameters = append(parameters, n.Tensor)
		}
	}
	before := weights(t, m)
	opt := must.Get(optim.NewAdamW(optim.AdamOptions{}, optim.Group{Params: parameters}))(t)
	defer opt.Close()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		logits := m.Forward(x, cgotorch.FromSlice(x, []int64{1, 2, 3, 4, 5, 6}, 2, 3))
		opt.Minimize(x, x.Mean(x.Square(logits)))
		return nil
	}))
	for i, after := range weights(t, m) {
		name := m.Weights[i].Name
		if changed, want := after != before[i], strings.HasPrefix(name, open); changed != want {
			t.Errorf("%s changed: %v, want %v", name, changed, want)
		}
	}
}

// weights returns the bytes of all weights.
func weights(t *testing.T, m *text.Model) (all []string) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		for _, n := range m.Weights {
			all = append(all, string(cgotorch.ToBytes(x, x.Detach(n.Tensor))))
		}
		return nil
	}))
	return all
}

// checkUntouched opens and saves a model. The bytes must be those of the folder that it came from.
func checkUntouched(t *testing.T, from string) {
	t.Helper()
	m := must.Get(text.Open(cgotorch.CPU, from, text.Options{}))(t)
	defer m.Close()
	to := from + "-untouched"
	save(t, m, to)
	sameTensors(t, filepath.Join(to, "model.safetensors"), filepath.Join(from, "model.safetensors"))
}

func save(t *testing.T, m *text.Model, to string) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { return m.Save(x, to) }))
}

func sameTensors(t *testing.T, got, want string) {
	t.Helper()
	a, b := must.Get(safetensors.Open(got))(t), must.Get(safetensors.Open(want))(t)
	defer a.Close()
	defer b.Close()
	if len(a.Tensors()) != len(b.Tensors()) {
		t.Errorf("%d tensors, want %d", len(a.Tensors()), len(b.Tensors()))
	}
	for _, info := range b.Tensors() {
		is, ok := a.Lookup(info.Name)
		if !ok || is.DType != info.DType || fmt.Sprint(is.Shape) != fmt.Sprint(info.Shape) {
			t.Errorf("%s is %s %v, want %s %v", info.Name, is.DType, is.Shape, info.DType, info.Shape)
			continue
		}
		if string(must.Get(a.Read(info.Name))(t)) != string(must.Get(b.Read(info.Name))(t)) {
			t.Errorf("%s has other bytes", info.Name)
		}
	}
}
