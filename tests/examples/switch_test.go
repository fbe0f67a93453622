//go:build !windows

package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

const switchModel = "../../examples/switch/model"

// switchAnswers returns the questions that the little model knows. `want` is the output with the
// answers that Hugging Face's transformers gives for the same model.
func switchAnswers(t *testing.T) (prompts []string, want string) {
	t.Helper()
	text := must.Get(os.ReadFile("../../examples/switch/answers.json"))(t)
	var lines []struct{ Prompt, Text string }
	if err := json.Unmarshal(text, &lines); err != nil || len(lines) < 20 {
		t.Fatal(len(lines), err)
	}
	for _, l := range lines {
		prompts = append(prompts, l.Prompt)
		want += fmt.Sprintf("> %s\n%s\n", l.Prompt, l.Text)
	}
	return prompts, want
}

// The answers equal those of Hugging Face's transformers, for each way to keep and run experts.
func TestSwitch(t *testing.T) {
	prompts, want := switchAnswers(t)
	for _, test := range []struct{ flags, says string }{
		{"", "of them in a slot"},
		{"-slots 1", "experts by the copy engine"},
		{"-slots 8 -captured", "0 uses"},
		{"-dtype bfloat16 -slots 2", "over the bus, 0 experts"},
		{"-dtype bfloat16 -captured", "where the whole model would take 1.6 MB"},
	} {
		t.Run(test.flags, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, status := run(t, "switch", append(strings.Fields(test.flags), prompts...)...)
			if status != 0 || stdout != want {
				t.Errorf("status %d, got\n%s%swant\n%s", status, stdout, stderr, want)
			}
			if !strings.Contains(stderr, "tokens/s") || !strings.Contains(stderr, test.says) {
				t.Errorf("standard error must say %q:\n%s", test.says, stderr)
			}
		})
	}
}

// Questions that the model was not trained for get some answer too.
func TestSwitch_Prompts(t *testing.T) {
	for _, flags := range [][]string{
		{}, // the little model's own questions
		{"-slots", "2", "-prompt", "What is a slot?", "What is a hit?"},
		{"-prompt", ""}, {"☃ 流 \x01"}, {"</s><extra_id_0>"}, {"-max-tokens", "1", "What is a slot?"},
		{strings.Repeat("What is a slot? ", 40)},
	} {
		if out := mustRun(t, "switch", flags...); !strings.HasPrefix(out, "> ") || strings.Count(out, "\n") < 2 {
			t.Errorf("%q printed %q", flags, out)
		}
	}
	_, want := switchAnswers(t)
	if out := mustRun(t, "switch", "-max-tokens", "9", "What is a slot?"); !strings.Contains(want, strings.TrimSpace(out)) || strings.Contains(want, out) {
		t.Errorf("nine tokens are %q", out)
	}
}

func TestSwitch_Trace(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "trace.json")
	_, stderr, status := run(t, "switch", "-trace", path, "What is a slot?", "What is a hit?", "What is a miss?")
	if want := "trace.json: 60 steps, for ui.perfetto.dev; marks alone"; status != 0 || !strings.Contains(stderr, want) {
		t.Errorf("status %d, standard error must say %q:\n%s", status, want, stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil || !json.Valid(text) || strings.Count(string(text), `"token `) != 60 || !strings.Contains(string(text), `"token 4"`) {
		t.Errorf("the trace has not the marks of 60 tokens: %v", err)
	}
	_, stderr, status = run(t, "switch", "-trace", filepath.Join(folder, "short.json"), "-max-tokens", "2", "What is a slot?")
	if status != 1 || !strings.Contains(stderr, "there are 2 steps") {
		t.Errorf("too short for a trace: status %d, %s", status, stderr)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 {
		t.Errorf("%d files, want the trace alone", len(entries))
	}
}

// An interrupted run ends its answer, prints its costs and ends.
func TestSwitch_Interrupt(t *testing.T) {
	var args []string
	for range 3000 {
		args = append(args, "-prompt", "What is a slot?")
	}
	cmd, out := start(t, "switch", args...)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "another") && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	interrupt(t, cmd, syscall.SIGINT)
	if text := out.String(); !strings.Contains(text, "tokens/s") || strings.Contains(text, "switch:") {
		t.Errorf("it ended with %q", text[max(0, len(text)-600):])
	}
}

// output collects the text that a program has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts a program. The returned output collects the program's standard output and standard
// error together.
func start(t *testing.T, program string, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	cmd, out := exec.Command(filepath.Join(bin, program), args...), &output{}
	cmd.Stdout, cmd.Stderr = out, out
	must.Do(t, cmd.Start())
	return cmd, out
}

// changedModel returns a copy of the little model in which the function `change` has changed one
// file. The file is left out if `change` returns nil.
func changedModel(t *testing.T, file string, change func(data []byte) []byte) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		data := must.Get(os.ReadFile(filepath.Join(switchModel, name)))(t)
		if name == file {
			data = change(data)
		}
		if data == nil {
			continue
		}
		must.Do(t, os.WriteFile(filepath.Join(folder, name), data, 0o644))
	}
	return folder
}

func TestSwitch_Refuses(t *testing.T) {
	none := func([]byte) []byte { return nil }
	half := func(data []byte) []byte { return data[:len(data)/2] }
	replace := func(old, new string) func(data []byte) []byte {
		return func(data []byte) []byte {
			if !strings.Contains(string(data), old) {
				t.Fatalf("%q is not there", old)
			}
			return []byte(strings.Replace(string(data), old, new, 1))
		}
	}
	model := func(file string, change func(data []byte) []byte) []string {
		return []string{"-model", changedModel(t, file, change), "What is a slot?"}
	}
	for name, test := range map[string]struct {
		args []string
		want []string // in standard error
	}{
		"no such folder":          {[]string{"-model", "no/such", "Hello"}, []string{"no/such"}},
		"nothing to answer":       {[]string{"-model", switchModel}, []string{"-prompt"}},
		"a flag behind a prompt":  {[]string{"Hello", "-captured"}, []string{"-captured", "flags come first"}},
		"no tokens":               {[]string{"-max-tokens", "0"}, []string{"-max-tokens 0"}},
		"no slots":                {[]string{"-slots", "0"}, []string{"-slots 0"}},
		"unknown dtype":           {[]string{"-dtype", "int8"}, []string{"-dtype int8", "bfloat16"}},
		"unknown device":          {[]string{"-device", "tpu"}, []string{"tpu"}},
		"absent device":           {[]string{"-device", "cuda:63"}, []string{"cuda"}},
		"no folder for the trace": {[]string{"-trace", "no/such/trace.json"}, []string{"-trace"}},
		"no tokenizer":            {model("tokenizer.json", none), []string{"tokenizer.json"}},
		"half a tokenizer":        {model("tokenizer.json", half), []string{"tokenizer.json", "JSON"}},
		"another tokenizer":       {model("tokenizer.json", replace(`"Unigram"`, `"Trigram"`)), []string{"tokenizer.json", "model.type", "Trigram"}},
		"no config":               {model("config.json", none), []string{"config.json"}},
		"another kind of model":   {model("config.json", replace("switch_transformers", "t5")), []string{"config.json", "model_type"}},
		"fewer tokens":            {model("config.json", replace(`"vocab_size": `, `"vocab_size": 1, "was": `)), []string{"config.json", "eos_token_id"}},
		"more experts":            {model("config.json", replace(`"num_experts": 8`, `"num_experts": 9`)), []string{"model.safetensors", "classifier"}},
		"wider experts":           {model("config.json", replace(`"d_ff": 128`, `"d_ff": 120`)), []string{"model.safetensors", "wi.weight"}},
		"no weights":              {model("model.safetensors", none), []string{"model.safetensors"}},
		"half the weights":        {model("model.safetensors", half), []string{"model.safetensors"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, status := run(t, "switch", test.args...)
			if status != 1 || !strings.HasPrefix(stderr, "switch: ") || strings.Contains(stderr, "goroutine ") {
				t.Errorf("status %d, want 1:\n%s", status, stderr)
			}
			for _, want := range test.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error must name %q:\n%s", want, stderr)
				}
			}
		})
	}
}
