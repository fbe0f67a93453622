package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// chatNow is the clock of makechat.py.
var chatNow = time.Date(2026, 3, 7, 8, 5, 9, 0, time.UTC)

// wanted is what makechat.py writes.
type wanted struct {
	Tokens map[string]string
	Cases  []struct {
		Name      string
		Messages  []Message
		Tools     json.RawMessage
		Prompt    bool
		Continue  bool
		Variables map[string]json.RawMessage
	}
	Want map[string][]struct{ Text, Error, Kind string }
}

func readWanted(t *testing.T, path string) wanted {
	t.Helper()
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	var w wanted
	must.Do(t, json.NewDecoder(must.Get(gzip.NewReader(file))(t)).Decode(&w))
	return w
}

// Each template writes each conversation as transformers does, or refuses it where transformers
// does. CHAT_TEMPLATES names a folder with more templates and their want.json.gz.
func TestChat_LikeTransformers(t *testing.T) {
	folder := filepath.Join("testdata", "chat")
	if more := os.Getenv("CHAT_TEMPLATES"); more != "" {
		folder = more
	}
	w := readWanted(t, filepath.Join(folder, "want.json.gz"))
	tokens := &Tokenizer{chat: func() (*chatFiles, error) { return &chatFiles{tokens: w.Tokens}, nil }}
	equal, refused := 0, 0
	for _, name := range slices.Sorted(maps.Keys(w.Want)) {
		source := string(must.Get(os.ReadFile(filepath.Join(folder, name)))(t))
		for i, c := range w.Cases {
			variables := map[string]any{}
			for name, v := range c.Variables {
				variables[name] = v
			}
			o := ChatOptions{Tools: c.Tools, NoPrompt: !c.Prompt, Continue: c.Continue, Variables: variables, Template: source, Now: chatNow}
			got, err := tokens.Chat(c.Messages, o)
			switch want := w.Want[name][i]; {
			case want.Kind == "":
				if err != nil || got != want.Text {
					t.Errorf("%s, %s:\n got %q, %v\nwant %q", name, c.Name, got, err, want.Text)
				}
				equal++
			case err == nil:
				t.Errorf("%s, %s: got %q, want the failure %s", name, c.Name, got, want.Error)
			case want.Kind == "TemplateError" && !strings.HasSuffix(err.Error(), ": "+want.Error):
				t.Errorf("%s, %s: got %v, want %s", name, c.Name, err, want.Error)
			default:
				refused++
			}
		}
	}
	t.Logf("%d templates, %d texts, %d failures", len(w.Want), equal, refused)
	if len(w.Want) < 30 || equal < 800 {
		t.Errorf("there are only %d templates and %d texts", len(w.Want), equal)
	}
}

// chatFolder returns a folder with a tokenizer and the files.
func chatFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "a [strange] *folder?")
	must.Do(t, os.MkdirAll(filepath.Join(folder, "additional_chat_templates"), 0o755))
	must.Do(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), must.Get(os.ReadFile("testdata/t5.json"))(t), 0o644))
	for name, text := range files {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	return folder
}

func TestChat_FromFolder(t *testing.T) {
	const named = `{"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T{{ tools | length }}"},{"name":"rag","template":"R"}]}`
	tools := json.RawMessage(`[{"type":"function"}]`)
	for _, test := range []struct {
		name  string
		files map[string]string
		o     ChatOptions
		want  string // or a part of the error
	}{
		{"a file", map[string]string{"chat_template.jinja": "F{{ add_generation_prompt }}"}, ChatOptions{}, "FTrue"},
		{"without prompt", map[string]string{"chat_template.jinja": "F{{ add_generation_prompt }}"}, ChatOptions{NoPrompt: true}, "FFalse"},
		{"a field", map[string]string{"tokenizer_config.json": `{"chat_template":"C\n"}`}, ChatOptions{}, "C"},
		{"both", map[string]string{"tokenizer_config.json": `{"chat_template":"C"}`, "chat_template.jinja": "F"}, ChatOptions{}, "F"},
		{"a list", map[string]string{"tokenizer_config.json": named}, ChatOptions{}, "D"},
		{"a list, with tools", map[string]string{"tokenizer_config.json": named}, ChatOptions{Tools: tools}, "T1"},
		{"a list, by name", map[string]string{"tokenizer_config.json": named}, ChatOptions{Tools: tools, Template: "rag"}, "R"},
		{"further files", map[string]string{"chat_template.jinja": "F", "additional_chat_templates/tool_use.jinja": "A"}, ChatOptions{Tools: tools}, "A"},
		{"further files without default", map[string]string{"additional_chat_templates/rag.jinja": "A"}, ChatOptions{}, "name one of rag in ChatOptions.Template"},
		{"another template", map[string]string{"chat_template.jinja": "F"}, ChatOptions{Template: "{{ messages[0].content }}!"}, "Hi!"},
		{"no template", nil, ChatOptions{}, "has no chat template, neither in chat_template.jinja nor in tokenizer_config.json: give one in ChatOptions.Template"},
		{"special tokens", map[string]string{
			"tokenizer_config.json": `{"bos_token":"<s>","eos_token":{"__type":"AddedToken","content":"</s>"},"pad_token":null,
				"extra_special_tokens":{"image_token":"<img>"},"added_tokens_decoder":{},"chat_template":"{{ [bos_token, eos_token, image_token, pad_token is defined] }}"}`,
			"special_tokens_map.json": `{"bos_token":"no"}`}, ChatOptions{}, "['<s>', '</s>', '<img>', False]"},
		{"older special tokens", map[string]string{
			"tokenizer_config.json":   `{"bos_token":"no","extra_special_tokens":["x"],"chat_template":"{{ bos_token + eos_token }}"}`,
			"special_tokens_map.json": `{"bos_token":"<s>","eos_token":{"content":"</s>"}}`}, ChatOptions{}, "<s></s>"},
		{"variables", map[string]string{"chat_template.jinja": "{{ thinking }}{{ d.items() | list }}{{ bos_token }}{{ documents }}{{ tools }}"},
			ChatOptions{Variables: map[string]any{"thinking": true, "bos_token": "B", "d": struct{ Z, A int }{1, 2}}}, "True[('Z', 1), ('A', 2)]BNoneNone"},
		{"a variable of Chat's", map[string]string{"chat_template.jinja": ""}, ChatOptions{Variables: map[string]any{"tools": 1}}, `ChatOptions.Variables has "tools", which Chat sets itself`},
		{"no variable", map[string]string{"chat_template.jinja": ""}, ChatOptions{Variables: map[string]any{"f": func() {}}}, `ChatOptions.Variables["f"]: json`},
		{"no tools", map[string]string{"chat_template.jinja": ""}, ChatOptions{Tools: json.RawMessage("[{]")}, "ChatOptions.Tools: json"},
		{"refusal", map[string]string{"chat_template.jinja": "\n{{ raise_exception('never') }}"}, ChatOptions{}, "chat_template.jinja: line 2: never"},
		{"damaged template", map[string]string{"chat_template.jinja": "{% if %}"}, ChatOptions{}, "chat_template.jinja: damaged tokenizer file: line 1"},
		{"damaged template given", nil, ChatOptions{Template: "{{"}, "ChatOptions.Template: damaged tokenizer file: line 1"},
		{"damaged field", map[string]string{"tokenizer_config.json": `{"chat_template":5}`}, ChatOptions{}, "chat_template: it is neither a text nor a list"},
		{"damaged list", map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"x"}]}`}, ChatOptions{}, "chat_template[0]: name or template is missing"},
		{"damaged config", map[string]string{"tokenizer_config.json": `{`}, ChatOptions{}, "tokenizer_config.json"},
		{"bytes that are no UTF-8", map[string]string{"chat_template.jinja": "\xff{{ messages[0].content }}"}, ChatOptions{}, "\uFFFDHi"},
	} {
		tokens := must.Get(Open(filepath.Join(chatFolder(t, test.files), "tokenizer.json")))(t)
		got, err := tokens.Chat([]Message{{Role: "user", Content: "Hi"}}, test.o)
		if err == nil && got != test.want || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
		if none := test.name == "no template" || test.name == "further files without default"; errors.Is(err, ErrNoTemplate) != none {
			t.Errorf("%s: %v, and ErrNoTemplate is wanted: %v", test.name, err, none)
		}
		if strings.HasPrefix(test.name, "damaged") && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v is no ErrFormat", test.name, err)
		}
	}
}

func TestChat_Messages(t *testing.T) {
	folder := chatFolder(t, map[string]string{"chat_template.jinja": "{% for m in messages %}{{ m }}{% endfor %}"})
	tokens := must.Get(Open(filepath.Join(folder, "tokenizer.json")))(t)
	message := Message{"assistant", "a\xff", "why", json.RawMessage(`[{"z":1,"a":2}]`), "id", "me"}
	want := `{'thinking': 'why', 'role': 'assistant', 'content': 'a` + "\uFFFD" + `', 'reasoning_content': 'why', ` +
		`'tool_calls': [{'z': 1, 'a': 2}], 'tool_call_id': 'id', 'name': 'me'}{'role': '', 'content': ''}`
	if got, err := tokens.Chat([]Message{message, {ToolCalls: json.RawMessage("null")}}, ChatOptions{}); err != nil || got != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
	for want, messages := range map[string][]Message{
		"a chat wants at least one message": nil,
		"messages[1].ToolCalls: ":           {{}, {ToolCalls: json.RawMessage("[")}},
	} {
		if _, err := tokens.Chat(messages, ChatOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The tokens of a chat are those of its text: special tokens by name, and none around the text.
func TestTokenizer_Chat_EncodePart(t *testing.T) {
	folder := chatFolder(t, map[string]string{"chat_template.jinja": "{% for m in messages %}{{ m.content }}</s>{% endfor %}"})
	tokens := must.Get(Open(filepath.Join(folder, "tokenizer.json")))(t)
	text := must.Get(tokens.Chat([]Message{{Content: "Every expert"}, {Content: "has a slot."}}, ChatOptions{}))(t)
	got, want := tokens.EncodePart(text), slices.Concat(tokens.Encode("Every expert"), tokens.Encode("has a slot."))
	if !slices.Equal(got, want) { // Encode puts </s> behind a text
		t.Errorf("%q has the tokens %v, want %v", text, got, want)
	}
}
