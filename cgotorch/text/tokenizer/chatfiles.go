package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// longestChatFile bounds the memory for the files beside a tokenizer.
const longestChatFile = 64 << 20

// chatFiles is what the files beside a tokenizer tell of chats.
type chatFiles struct {
	folder    string
	templates map[string]chatTemplate // "default", "tool_use" and others
	tokens    map[string]string       // the special tokens by the names of templates, such as bos_token
}

type chatTemplate struct{ file, text string }

// chatsOf returns a function that reads the files of a folder once.
func chatsOf(folder string) func() (*chatFiles, error) {
	return sync.OnceValues(func() (*chatFiles, error) { return readChatFiles(folder) })
}

func readChatFiles(folder string) (*chatFiles, error) {
	f := &chatFiles{folder, map[string]chatTemplate{}, map[string]string{}}
	if err := f.readConfig(filepath.Join(folder, "tokenizer_config.json")); err != nil {
		return nil, err
	}
	more, err := filepath.Glob(filepath.Join(globbed(folder), "additional_chat_templates", "*.jinja"))
	if err != nil {
		return nil, err
	}
	for _, path := range append(more, filepath.Join(folder, "chat_template.jinja")) {
		text, err := readChatFile(path)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		if name == "chat_template" {
			name = "default"
		}
		if text != nil {
			f.templates[name] = chatTemplate{path, string(text)}
		}
	}
	return f, nil
}

// globbed returns a folder as a pattern that matches it alone.
func globbed(folder string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(folder)
}

// readChatFile returns nil for a file that does not exist.
func readChatFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is no file", path, ErrFormat)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, longestChatFile+1))
	if len(data) > longestChatFile {
		return nil, fmt.Errorf("%s: %w: it has more than %d bytes", path, ErrFormat, longestChatFile)
	}
	return data, err
}

// readConfig reads the templates and the special tokens of tokenizer_config.json. Older folders
// have the tokens in special_tokens_map.json.
func (f *chatFiles) readConfig(path string) error {
	config, err := readObject(path)
	if err != nil {
		return err
	}
	f.addTokens(config)
	var named map[string]json.RawMessage // a list stands there for tokens without a name
	if json.Unmarshal(config["extra_special_tokens"], &named) == nil {
		f.addTokens(named)
	}
	if _, ok := config["added_tokens_decoder"]; !ok {
		older, err := readObject(filepath.Join(filepath.Dir(path), "special_tokens_map.json"))
		if err != nil {
			return err
		}
		f.addTokens(older)
	}
	text := config["chat_template"]
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(text, &one) == nil {
		f.templates["default"] = chatTemplate{path, one}
		return nil
	}
	var several []struct{ Name, Template *string }
	if err := json.Unmarshal(text, &several); err != nil {
		return fmt.Errorf("%s: %w", path, bad("chat_template", "it is neither a text nor a list of templates"))
	}
	for i, template := range several {
		if template.Name == nil || template.Template == nil {
			return fmt.Errorf("%s: %w", path, bad(fmt.Sprintf("chat_template[%d]", i), "name or template is missing"))
		}
		f.templates[*template.Name] = chatTemplate{path, *template.Template}
	}
	return nil
}

func readObject(path string) (map[string]json.RawMessage, error) {
	data, err := readChatFile(path)
	if data == nil || err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := unmarshal(data, "", &object); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return object, nil
}

// addTokens takes the fields whose names end with _token. A token is a text, or an object with the
// text as its content.
func (f *chatFiles) addTokens(fields map[string]json.RawMessage) {
	for name, data := range fields {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		var text *string
		var object struct{ Content *string }
		switch {
		case json.Unmarshal(data, &text) == nil && text != nil:
			f.tokens[name] = *text
		case json.Unmarshal(data, &object) == nil && object.Content != nil:
			f.tokens[name] = *object.Content
		}
	}
}

// choose returns the template for a chat, and the name of its file.
func (f *chatFiles) choose(o ChatOptions) (file, text string, err error) {
	if template, ok := f.templates[o.Template]; ok {
		return template.file, template.text, nil
	}
	if o.Template != "" {
		return "ChatOptions.Template", o.Template, nil
	}
	if template, ok := f.templates["tool_use"]; ok && len(o.Tools) > 0 && string(o.Tools) != "null" {
		return template.file, template.text, nil
	}
	if template, ok := f.templates["default"]; ok {
		return template.file, template.text, nil
	}
	if len(f.templates) > 0 {
		return "", "", fmt.Errorf("%s has %w for this case: name one of %s in ChatOptions.Template",
			f.folder, ErrNoTemplate, strings.Join(slices.Sorted(maps.Keys(f.templates)), ", "))
	}
	return "", "", fmt.Errorf("%s has %w, neither in chat_template.jinja nor in tokenizer_config.json: "+
		"give one in ChatOptions.Template", f.folder, ErrNoTemplate)
}
