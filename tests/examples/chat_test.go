//go:build !windows

package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const question = "What does optim.NewAdam do?"

// A model that chat has trained for a second answers as a whole one does.
func TestChat(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "model")
	_, stderr, status := run(t, "chat", "-device", "cpu", "-train", "-time", "1s", "-texts", "../../cgotorch/optim", folder)
	bits := regexp.MustCompile(`held-out texts of [0-9]+ bytes take ([0-9.]+) bits a byte, and [0-9.]+ with gzip -9`).FindStringSubmatch(stderr)
	if status != 0 || bits == nil {
		t.Fatalf("status %d:\n%s", status, stderr)
	}
	if b, _ := strconv.ParseFloat(bits[1], 64); !(b > 0.5 && b < 6) {
		t.Errorf("a byte takes %s bits", bits[1])
	}
	t.Run("turns", func(t *testing.T) { testChatTurns(t, folder) })
	t.Run("transformers", func(t *testing.T) { testChatPeer(t, folder) })
	t.Run("refuses", func(t *testing.T) { testChatRefuses(t, folder) })
	t.Run("without a template", func(t *testing.T) { // the program completes the text
		must.Do(t, os.Remove(filepath.Join(folder, "tokenizer_config.json")))
		mustRun(t, "chat", "-device", "cpu", "-max", "3", "-prompt", "func ", folder)
	})
}

// More turns than the model's context takes leave out the first ones. Each answer has its figures.
func testChatTurns(t *testing.T, folder string) {
	const turns = 30
	path := filepath.Join(folder, "generation_config.json")
	must.Do(t, os.WriteFile(path, []byte(`{"top_k": 0}`), 0o600)) // else the end is one of 50 tokens
	defer os.Remove(path)
	c := exec.Command(filepath.Join(bin, "chat"), "-device", "cpu", "-temperature", "100", "-max", "12", "-system", "Be short.", folder)
	c.Stdin = strings.NewReader(strings.Repeat(question+"\n\n", turns))
	out, err := c.CombinedOutput()
	figures := regexp.MustCompile(`(?m)^12 tokens, the first after .*s, the others at [0-9.]+ tokens/s: with [0-9.]+ MB a token, [0-9]+ % of the memory's [0-9.]+ GB/s$`)
	if n := len(figures.FindAll(out, -1)); err != nil || n < turns-3 { // few answers end early, because all tokens are about as likely
		t.Errorf("%v, got %d answers:\n%s", err, n, out)
	}
}

// transformers opens the folder, and gives the same answer.
func testChatPeer(t *testing.T, folder string) {
	peer := exec.Command(torchtest.Python(t, "transformers"), "-c", `
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokens, model = (c.from_pretrained(sys.argv[1]) for c in (AutoTokenizer, AutoModelForCausalLM))
ids = tokens.apply_chat_template([{"role": "user", "content": sys.argv[2]}], add_generation_prompt=True, return_tensors="pt")["input_ids"]
print(tokens.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0][ids.shape[1]:], skip_special_tokens=True))`, folder, question)
	want := string(must.Get(peer.Output())(t))
	if got := mustRun(t, "chat", "-device", "cpu", "-max", "12", "-prompt", question, folder); got != want {
		t.Errorf("got %q, and transformers answers %q", got, want)
	}
}

func testChatRefuses(t *testing.T, folder string) {
	bare, few := t.TempDir(), t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(few, "a.md"), []byte("A text."), 0o600))
	for _, name := range []string{"config.json", "model.safetensors"} {
		must.Do(t, os.Link(filepath.Join(folder, name), filepath.Join(bare, name)))
	}
	for name, c := range map[string]struct{ args, want string }{
		"a model that is there": {"-train " + folder, "model.safetensors is there already"},
		"few texts":             {"-train -texts " + few + " " + filepath.Join(few, "model"), "give -texts a folder with 8 or more"},
		"no texts":              {"-train -texts no/such " + filepath.Join(few, "model"), "no/such"},
		"no folder":             {"-prompt hello no/such", "no/such"},
		"no tokenizer":          {"-prompt hello " + bare, "has no tokenizer.json"},
		"no device":             {"-device cuda:63 -prompt hello " + folder, "cuda"},
		"temperature":           {"-temperature -1 -prompt hello " + folder, "Temperature is -1"},
	} {
		if _, stderr, status := run(t, "chat", strings.Fields(c.args)...); status != 1 || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "goroutine ") {
			t.Errorf("%s: status %d, want 1; standard error must name %q:\n%s", name, status, c.want, stderr)
		}
	}
}
